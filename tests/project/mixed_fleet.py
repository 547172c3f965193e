"""Processes of an earlier version and of this one on one store, on SQLite, Redis and PostgreSQL.

CHECKOUT is a working tree of the earlier version with an environment in `.venv`, as `git worktree add` and
`make` leave it. Half of the processes are of each version. They share circuits, and run the same batches at
the same time, pass after pass. Prints what each store came to, and exits with 1 if an effect was sent
twice or a process did not see a change of a circuit.

    python -m tests.project.mixed_fleet ../v0.2.0
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.prefect_server import end_server, start_server
from tests.stores_servers import PostgresServer, RedisServer

ROOT = Path(__file__).parents[2]
EACH, EFFECTS, PASSES = 3, 8, 3
"""Processes of each version; effects of each kind in each of two batches; passes of each process."""
WORKER = """
import json, sys, time
from pathlib import Path
from prefect import flow
from prefect_resilience import CircuitBreaker, batch, resilient_task
from prefect_resilience.effects import Effect
from prefect_resilience.errors.exceptions import CircuitOpenError, ResilienceError

url, sent, effects, number = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
say = lambda **what: print(json.dumps(what), flush=True)
shared = dict(store=url, sync_interval=0.1, failure_threshold=3, open_for=3600, open_max=3600)
breaker = CircuitBreaker("fleet:shared", **shared)

@resilient_task(retry=1, effect=Effect(kind="external", key="send:{item}", max_wait=60))
def send(item):
    with sent.open("a") as file:
        file.write(f"{item}\\n")
    return f"receipt {item}"

@resilient_task(retry=1, effect=Effect(kind="external", max_wait=60))
def send_by_default_key(item):
    with sent.open("a") as file:
        file.write(f"{item}\\n")
    return f"receipt {item}"

@flow
def billing(name):
    for place in range(effects):
        item = (number - place if number % 2 else number + place) % effects
        for task, kind in ((send, "key"), (send_by_default_key, "default")):
            try:
                with batch(name):
                    task(f"{name}/{kind}/{item}")
            except ResilienceError as error:
                say(stopped=type(error).__name__, kind=kind)

def state_is(wanted):
    end = time.monotonic() + 120
    while breaker.snapshot().state != wanted:
        if time.monotonic() > end:
            return say(failed=f"never {wanted}, but {breaker.snapshot().state}")
        time.sleep(0.02)
    say(saw=wanted)

say(ready=number)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "fail":
        for _ in range(3):
            breaker.record_failure(ConnectionError("down"))
        say(done=word)
    elif word == "state":
        state_is(*rest)
    elif word == "call":
        try:
            breaker.call(int)
            say(done="made")
        except CircuitOpenError:
            say(done="rejected")
    elif word == "force":
        getattr(breaker, rest[0])("by hand")
        say(done=word)
    elif word == "send":
        billing(*rest)
        say(done=word)
"""


@dataclass
class Member:
    """A process of the fleet. It answers each order with lines of JSON."""

    version: str
    process: subprocess.Popen[str]

    def ask(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, object]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the version {self.version!r} ended with {self.process.wait()}")
        return json.loads(line)

    def hear_all(self) -> list[dict[str, object]]:
        """The answers until it is done."""
        found = [self.hear()]
        while "done" not in found[-1]:
            found.append(self.hear())
        return found


@dataclass(frozen=True)
class Fleet:
    """The working trees by version, and what each process gets."""

    trees: dict[str, Path]
    api: str

    @contextmanager
    def started(self, url: str, folder: Path) -> Iterator[list[Member]]:
        script, sent = folder / "worker.py", folder / "sent"
        script.write_text(WORKER)
        sent.touch()
        members = [self._member(url, folder, number) for number in range(2 * EACH)]
        try:
            for member in members:
                member.hear()
            yield members
        finally:
            for member in members:
                member.process.kill()
                member.process.wait()

    def _member(self, url: str, folder: Path, number: int) -> Member:
        version = [*self.trees][number % 2]
        tree = self.trees[version]
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")},
            "PREFECT_RESILIENCE_STORE_URL": url,
            "PREFECT_API_URL": self.api,
            "PREFECT_HOME": str(folder / "home"),
            "PREFECT_LOGGING_LEVEL": "CRITICAL",
            "PREFECT_LOGGING_TO_API_ENABLED": "false",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PYTHONPATH": str(tree),
        }
        words = [tree / ".venv" / "bin" / "python", "worker.py", url, folder / "sent", EFFECTS, number]
        process = subprocess.Popen(
            [*map(str, words)],
            env=environment,
            cwd=folder,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return Member(version, process)

    def circuits(self, members: list[Member]) -> tuple[int, list[str]]:
        """The changes of a circuit, and the answers that were not as they should be."""
        wrong: list[str] = []

        def all_say(expected: dict[str, object], *words: object) -> None:
            for member in members:
                member.ask(*words)
            wrong.extend(f"{one.version}: {found}" for one in members if (found := one.hear()) != expected)

        changes = 0
        for first, second in ((members[0], members[1]), (members[1], members[0])):
            for member, order, state, outcome in (
                (first, ("fail",), "open", "rejected"),
                (second, ("force", "force_closed"), "closed", "made"),
                (first, ("force", "force_open"), "forced_open", "rejected"),
                (second, ("force", "reset"), "closed", "made"),
            ):
                member.ask(*order)
                member.hear()
                all_say({"saw": state}, "state", state)
                all_say({"done": outcome}, "call")
                changes += 1
        return changes, wrong

    def batches(self, members: list[Member], sent: Path) -> dict[str, object]:
        """Two batches, each in several passes by all processes at once."""
        stops = Counter[str]()
        for batch in ("batch-1", "batch-2"):
            for _ in range(PASSES):
                for member in members:
                    member.ask("send", batch)
                for member in members:
                    stopped = [one for one in member.hear_all() if "stopped" in one]
                    stops.update(f"{member.version}: {one['stopped']} ({one['kind']} key)" for one in stopped)
        lines = Counter(sent.read_text().split())
        return {
            "effects": 4 * EFFECTS,
            "sent": len(lines),
            "twice": sorted(line for line, number in lines.items() if number > 1),
            "stops": dict(stops),
        }


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("checkout", type=Path)
    given = words.parse_args()
    redis, postgres = RedisServer(), PostgresServer()
    good = True
    with tempfile.TemporaryDirectory(prefix="pr-fleet-") as place:
        (home := Path(place) / "api").mkdir()
        try:
            for server in (redis, postgres):
                server.start()
            trees = {"earlier": given.checkout.resolve(), "this": ROOT}
            fleet = Fleet(trees, start_server(home, os.getpid()))
            stores = {
                "SQLite": f"sqlite:///{place}/fleet.db",
                "Redis": redis.url(),
                "PostgreSQL": postgres.url(),
            }
            for name, url in stores.items():
                (folder := Path(place) / name).mkdir()
                with fleet.started(url, folder) as members:
                    changes, wrong = fleet.circuits(members)
                    found = fleet.batches(members, folder / "sent")
                print(name, json.dumps({"changes seen by all": changes, "wrong": wrong, **found}), flush=True)
                good &= not wrong and not found["twice"]
        finally:
            end_server(home)
            for server in (redis, postgres):
                server.remove()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
