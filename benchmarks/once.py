"""One payment, and everything that may go wrong around it: `@once` beside the libraries that try the same.

    python3.11 -m venv ENV && ENV/bin/pip install -r benchmarks/once_requirements.txt
    python -m benchmarks.once --python ENV/bin/python [--only LIBRARY ...] [--faults NAME ...] [--write]

Each cell is one library under one fault. A tool pays at a receiver on loopback that takes whatever arrives,
and can be asked for a payment. The tool runs in processes that are killed where the fault says. Later passes
begin PAUSE seconds after the kill, so that a lease of LEASE seconds has ended.

`once_expected.toml` has the right outcome of each fault, `once_worker.py` the libraries. `--write` puts the
table into docs/once_scoreboard.md. The exit code is 1 if `@once` differs from what is right.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.once_worker import LIBRARIES
from tests.stores_servers import RedisServer

HERE = Path(__file__).parent
ROOT = HERE.parent
PAGE = ROOT / "docs" / "once_scoreboard.md"
PAUSE, LATE = 3.0, 2.0
"""Seconds until the next pass, and until a late payment lands."""


# -- the passes of each fault


@dataclass(frozen=True)
class Pass:
    """One process, or two at the same time: the model's calls in a turn, each (receiver, amount, note)."""

    calls: tuple[Any, ...] = (("bob", 50, "thanks"),)
    fault: str = ""
    mode: str = "calls"
    turn: str = "turn-1"
    processes: int = 1


@dataclass(frozen=True)
class Fault:
    passes: tuple[Pass, ...]
    meant: tuple[str, ...] = ("turn-1/bob/50",)
    blind: bool = False
    """Whether the receiver cannot be asked."""


BOB = ("bob", 50, "thanks")
AGAIN = Pass()
FAULTS: dict[str, Fault] = {
    "node-retry": Fault((Pass(mode="retry"),)),
    "resume": Fault((Pass(fault="end"), AGAIN)),
    "killed-before": Fault((Pass(fault="before"), AGAIN)),
    "killed-inside": Fault((Pass(fault="inside"), AGAIN)),
    "killed-after": Fault((Pass(fault="after"), AGAIN)),
    "killed-inside-blind": Fault((Pass(fault="inside"), AGAIN), blind=True),
    "two-workers": Fault((Pass(fault="slow", processes=2),)),
    "late-timeout": Fault((Pass(fault="late", mode="retry"), AGAIN)),
    "late-thread": Fault((Pass(fault="slow", mode="thread"), AGAIN)),
    "new-words": Fault((Pass(fault="end"), Pass((("bob", 50, "thank you"),)))),
    "another-amount": Fault(
        (Pass(fault="end"), Pass((BOB, ("bob", 60, "and this")))), ("turn-1/bob/50", "turn-1/bob/60")
    ),
    "store-emptied": Fault((Pass(mode="emptied"),), blind=True),
    "new-call-id": Fault((Pass(fault="end"), AGAIN)),
    "parallel": Fault((Pass((BOB, BOB), mode="parallel"),)),
    "model-repeats": Fault((Pass((BOB, BOB)),)),
    "next-turn": Fault((Pass(), Pass(turn="turn-2")), ("turn-1/bob/50", "turn-2/bob/50")),
}


# -- the receiver, and one cell


@dataclass
class Receiver:
    """Takes every payment that arrives."""

    paid: Counter[str] = field(default_factory=Counter[str])
    arrived: Counter[str] = field(default_factory=Counter[str])

    def answer(self, path: str, body: Any) -> Any:
        if body is None:
            reference = path.rpartition("reference=")[2].replace("%2F", "/")
            state = "done" if self.paid[reference] else "open" if self.arrived[reference] else "none"
            return {"state": state, "receipt": f"receipt of {reference}" if state == "done" else None}
        reference, fault = body["reference"], body["fault"]
        self.arrived[reference] += 1
        if fault in ("late", "slow"):
            time.sleep(LATE)
        self.paid[reference] += 1
        if fault == "inside":
            os.kill(body["pid"], signal.SIGKILL)
        return {"receipt": f"receipt of {reference}"}

    def serve(self) -> ThreadingHTTPServer:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                text = json.dumps(
                    receiver.answer(self.path, json.loads(self.rfile.read(length)) if length else None)
                )
                try:
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(text.encode())
                except OSError:
                    return  # the worker was killed, or does not wait any more

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server


def run_cell(library: str, name: str, python: str, redis: str) -> str:
    """The outcome of one library under one fault."""
    fault, receiver = FAULTS[name], Receiver()
    server = receiver.serve()
    outcomes: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, one_pass in enumerate(fault.passes):
            if number:
                time.sleep(PAUSE)
            given = {"library": library, "folder": folder, "turn": one_pass.turn, "blind": fault.blind}
            given |= {"calls": one_pass.calls, "fault": one_pass.fault, "mode": one_pass.mode, "redis": redis}
            given["receiver"] = f"http://127.0.0.1:{server.server_address[1]}"
            workers = [
                start_worker(python if LIBRARIES[library][0] else sys.executable, given, str(process))
                for process in range(one_pass.processes)
            ]
            outcomes = [line for worker in workers for line in read_outcomes(worker)]
    server.shutdown()
    server.server_close()
    return judge(fault, name, receiver.paid, outcomes)


def start_worker(python: str, given: dict[str, Any], executor: str) -> subprocess.Popen[str]:
    text = json.dumps({**given, "executor": executor})
    own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    own["PYTHONPATH"] = str(ROOT)
    command = [python, "-m", "benchmarks.once_worker", text]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=own, cwd=given["folder"], **pipes)


def read_outcomes(worker: subprocess.Popen[str]) -> list[dict[str, Any]]:
    try:
        printed, failure = worker.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.communicate()
        return [{"error": "waits for ever"}]
    if worker.returncode == -signal.SIGKILL:
        return [{"error": "killed"}]
    _, found, line = printed.rpartition("OUTCOMES ")
    if not found:
        raise RuntimeError(f"the worker of a library does not work:\n{failure[-2_000:]}")
    return json.loads(line.splitlines()[0])


def judge(fault: Fault, name: str, paid: Counter[str], outcomes: list[dict[str, Any]]) -> str:
    """What came of it, in the words of `once_expected.toml`."""
    if any(paid[reference] > 1 for reference in paid):
        return "twice"
    results = [outcome["result"] for outcome in outcomes if "result" in outcome]
    if len(results) < len(outcomes) and not (results and name in ("parallel", "two-workers")):
        return "stopped"
    if any(not paid[reference] for reference in fault.meant):
        return "never"
    return "told" if name == "model-repeats" and len({*results}) > 1 else "once"


# -- the table


def expected() -> dict[str, dict[str, str]]:
    return tomllib.loads((HERE / "once_expected.toml").read_text(encoding="utf-8"))


def versions(python: str) -> dict[str, str]:
    """The version of each library; those that are not installed are left out."""
    code = "import importlib.metadata as m; print({d.name: d.version for d in m.distributions()})"
    printed = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    known: dict[str, str] = ast.literal_eval(printed)
    return {name: known.get(of, "") for name, (of, _) in LIBRARIES.items() if not of or of in known}


def write(cells: dict[tuple[str, str], str], known: dict[str, str]) -> None:
    """Put the table into the page."""
    right = expected()
    names = ["@once", *(name for name in known if name not in ("@once", "nothing")), "nothing"]
    rows = [f"| fault | right | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    for fault, about in right.items():
        outcomes = [cells[name, fault] for name in names]
        marked = [text if text == about["right"] else f"**{text}**" for text in outcomes]
        rows.append(f"| {about['what']} | {about['right']} | {' | '.join(marked)} |")
    wrong = [sum(cells[name, fault] != right[fault]["right"] for fault in right) for name in names]
    rows.append(f"| differs from what is right | | {' | '.join(map(str, wrong))} |")
    used = ", ".join(f"{name} {version}" for name, version in known.items() if version)
    begin, end = "<!-- scoreboard -->", "<!-- /scoreboard -->"
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    table = "\n".join(rows)
    measured = f"Measured on {datetime.now(UTC):%Y-%m-%d} with {used}."
    text = f"{before}{begin}\n\n{measured}\n\n{table}\n\n{end}{rest.partition(end)[2]}"
    PAGE.write_text(text, encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.once")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with the other libraries")
    parser.add_argument("--only", nargs="*", default=[], help="these libraries")
    parser.add_argument("--faults", nargs="*", default=[], help="these faults")
    parser.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name}")
    parser.add_argument("--at-once", type=int, default=2, help="so many cells at the same time")
    given = parser.parse_args(arguments)
    known = {
        name: text for name, text in versions(given.python).items() if not given.only or name in given.only
    }
    right = expected()
    chosen = [name for name in right if not given.faults or name in given.faults]
    cells: dict[tuple[str, str], str] = {}
    redis = RedisServer()
    redis.start()
    with ThreadPoolExecutor(given.at_once) as pool:
        running = {
            (library, name): pool.submit(run_cell, library, name, given.python, redis.url())
            for name in chosen
            for library in known
        }
        for (library, name), outcome in running.items():
            cells[library, name] = outcome.result()
            mark = "" if cells[library, name] == right[name]["right"] else f"   not {right[name]['right']}"
            print(f"{name:20} {library:18} {cells[library, name]}{mark}", flush=True)
    redis.remove()
    if given.write:
        write(cells, known)
    return int(
        any(cells[library, name] != right[name]["right"] for library, name in cells if library == "@once")
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
