"""Kills a flow at every point where a side effect can be made twice or lost, and counts what was received.

    rehearse(flow, 7, service.url, receiver=service).assert_once()

The first run is not disturbed and finds the points. Each point is a case: a run in a process of its own is
killed there, and run again until it ends. All cases use one Prefect API; each has its own Prefect home,
ledger and, if `receiver` makes them, its own receivers.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, cast
from unittest.mock import patch

import certifi
import cloudpickle  # pyright: ignore[reportMissingTypeStubs]
from pydantic import BaseModel
from pydantic_core import Url

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.testing import kill_points
from prefect_resilience.testing.kill_points import Case, Point, RehearsedThing
from prefect_resilience.testing.services import ScriptedService

PASSES = 4
"""How often a flow is run in one case: a run that failed is run again, as the automation does it."""
ADDRESS = "{receiver}"
"""This text in the arguments of the flow becomes the address of the receiver."""


class Rehearsal(BaseModel):
    """The result. `points`: how many the first run has; `cases`: how many of them were tried; `kills`: how
    many processes were killed.

    unseen: what the rehearsal cannot judge. unjudged: cases without a verdict.
    """

    flow: str
    rows: list[RehearsedThing]
    points: int
    cases: int
    kills: int
    unseen: list[str] = []
    unjudged: list[str] = []

    @property
    def twice(self) -> list[RehearsedThing]:
        """Things that a receiver got too often."""
        return [row for row in self.rows if row.verdict == "twice"]

    @property
    def lost(self) -> list[RehearsedThing]:
        """Things that no receiver got, although the flow ended without an error."""
        return [row for row in self.rows if row.verdict == "never"]

    @property
    def stopped(self) -> list[RehearsedThing]:
        """Things for which the flow stopped, so that a person decides."""
        return [row for row in self.rows if row.verdict == "stopped"]

    @property
    def is_proven(self) -> bool:
        """Whether nothing was sent twice or lost, and every case could be judged."""
        return not (self.twice or self.lost or self.unjudged)

    def assert_once(self) -> None:
        """Raise AssertionError if anything was sent twice or lost, or a case could not be judged."""
        if not self.is_proven:
            wrong = [f"{self.flow} is not proven:", *map(str, self.twice + self.lost), *self.unjudged]
            raise AssertionError("\n".join(wrong))


def rehearse(
    flow: Any,
    *args: Any,
    receiver: Any = None,
    kills: int = 50,
    timeout: float = 60.0,
    allow_hosts: Iterable[str] = (),
    only: str | None = None,
    keep: Path | str | None = None,
    parameters: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda sentence: None,
    api: str | None = None,
) -> Rehearsal:
    """Run the flow, kill it at every point where it can break a promise, and count what was received.

        with ScriptedService() as bank:
            rehearse(bill, 7, bank.url, receiver=bank).assert_once()

    flow: a flow that can be sent to other processes, or a text: "FILE.py:FLOW" or "MODULE:FLOW".
    args, parameters: its arguments. The text "{receiver}" in them becomes the receiver's address.
    receiver: a `ScriptedService`, or a function that makes the receivers of one case (see the how-to). By
        default each case has a new `ScriptedService`.
    kills: the most points to try; a sample if there are more.
    timeout: seconds that one run may take.
    allow_hosts: hosts that may be reached. All except the loopback are rejected before anything leaves.
    only: the name of one point, as in a result.
    keep: a folder for the logs and ledgers of all cases.
    say: gets a sentence about the progress after each case.
    api: the address of a Prefect API on loopback; by default one is started.

    Raises ConfigurationError if the flow cannot be rehearsed: its first run fails, it connects to another
    host, or it needs a driver that cannot be watched.
    """
    with ExitStack() as stack:
        folder = Path(keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="rehearsal-"))).resolve()
        if folder.exists() and any(folder.iterdir()):
            raise ConfigurationError(f"the folder {keep} for the cases is not empty: name a new one")
        call = {"flow": flow, "args": args, "kwargs": dict(parameters or {})}
        hosts = [address for host in allow_hosts for address in _addresses_of(host)]
        # One receiver for all cases cannot tell two of them apart.
        width = 1 if isinstance(receiver, ScriptedService) else min(os.cpu_count() or 1, 4)
        pool = ThreadPoolExecutor(width)
        stack.callback(pool.shutdown, cancel_futures=True)  # at a Ctrl-C, after the lanes with their runs
        lanes = [stack.enter_context(_process("runs", folder / "lanes", hosts)) for _ in range(width)]
        api = api or stack.enter_context(prefect_api(folder))
        receiver = receiver or ScriptedService
        return Campaign(folder, api, call, receiver, timeout, lanes, pool, say).rehearse(kills, only)


def _addresses_of(host: str) -> list[str]:
    """A host with its addresses: a connection shows only these."""
    try:
        return [host, *(str(address[4][0]) for address in socket.getaddrinfo(host, None))]
    except OSError:
        return [host]


# -- the processes


@contextmanager
def prefect_api(folder: Path) -> Generator[str, None, None]:
    """A Prefect API on loopback, with an empty database; its address. It is started once for all cases."""
    with _process("api", folder / "api") as server:
        yield read_answer(server)


def read_answer(process: Any) -> Any:
    """The next line that a process of the rehearsal prints."""
    line = process.stdout.readline()
    if not line:
        raise ConfigurationError("a process of the rehearsal has ended: see the logs in the folder of --keep")
    return json.loads(line)


@contextmanager
def _process(what: str, home: Path, hosts: Iterable[str] = ()) -> Generator[Any]:
    """A process of its own, in a session of its own. It ends with this context or with this process."""
    home.mkdir(parents=True, exist_ok=True)
    machine = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
    if not hosts:  # no host needs TLS, and each client would read a hundred certificates
        certificate, end, _ = certifi.contents().partition("-----END CERTIFICATE-----")
        (home / "certificate.pem").write_text(certificate + end)
        machine.setdefault("SSL_CERT_FILE", f"{home}/certificate.pem")
    own = {"PREFECT_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    with open(home / "log", "ab") as log:
        process = Popen(
            [sys.executable, "-P", "-m", "prefect_resilience.operations.rehearsed", what],
            stdin=PIPE,
            stdout=PIPE,
            stderr=log,
            env={**machine, **OWN, **own, kill_points.HOSTS: ",".join(hosts)},
            text=True,
            start_new_session=True,
            cwd=home if what == "api" else None,  # there is no prefect.toml or .env that names a database
        )
    with process:
        try:
            yield process
        finally:
            process.terminate()


FOREIGN = re.compile(
    r"PREFECT_(API|PROFILE|SERVER|CLOUD|MESSAGING|LOCAL_STORAGE|RESULTS_LOCAL)|.*_proxy$", re.IGNORECASE
)
"""Variables of this machine's Prefect and of its proxies."""
OWN = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",  # a block registers its type when it is saved
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",  # or it imports all collections for this
    "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "false",  # or each client asks for a token before its first change
    "PREFECT_API_TLS_INSECURE_SKIP_VERIFY": "true",  # the API has no TLS, and reading certificates takes time
}


# -- all cases

GUARD = """try:
    from prefect_resilience.operations.rehearsed import guard_child
    guard_child()
except BaseException as error:  # of other errors Python prints a line, and goes on
    raise SystemExit(f"a rehearsal cannot guard this process: {error!r}")
"""
"""The `sitecustomize` of each Python that the program starts, as for a timeout in a process."""


@dataclass
class Campaign:
    """All cases of one flow: their folders, processes and receivers.

    lanes: processes that have imported Prefect, and fork the runs of one case after another.
    libraries: the modules of libraries that the first run imported; each lane imports them once.
    """

    folder: Path
    api: str
    call: dict[str, Any]
    receiver: Any
    timeout: float
    lanes: list[Any]
    pool: ThreadPoolExecutor
    say: Callable[[str], None]
    libraries: list[str] = field(default_factory=list[str])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.name: str = str(getattr(self.call["flow"], "name", self.call["flow"]))
        (self.folder / "guard").mkdir()
        (self.folder / "guard" / "sitecustomize.py").write_text(GUARD)

    def rehearse(self, most: int, only: str | None) -> Rehearsal:
        """The first run, then a case for each point."""
        first = self._run_case(0, kill_points.UNDISTURBED)
        if first.state != "COMPLETED":
            why = "; ".join(dict.fromkeys([first.message, *first.rejected]))
            raise ConfigurationError(f"the first run, which is not disturbed, does not succeed: {why}")
        self.libraries = first.libraries
        points = first.points
        offered = kill_points.choose(points, most) if only is None else points
        chosen = [point for point in [kill_points.UNDISTURBED, *offered] if only in (None, str(point))]
        if not chosen:
            names = "; ".join(map(str, points))
            raise ConfigurationError(f"there is no point {only!r}; the points are: {names}")
        self.say(f"{self.name} has {len(points)} points; {len(chosen)} cases")
        cases = [*self._run_cases(first, chosen)]
        tried = [case for case in cases if case.point in points]
        return Rehearsal(
            flow=self.name,
            rows=[*kill_points.rows_of(first, [case for case in cases if not case.trouble])],
            points=len(points),
            cases=len(tried),
            kills=sum(case.kills for case in cases),
            unseen=[*self._unseen(first, tried, cases)],
            unjudged=[case.trouble for case in cases if case.trouble],
        )

    def _run_cases(self, first: Case, chosen: Sequence[Point]) -> Iterator[Case]:
        cases = self.pool.map(self._run_case, range(1, len(chosen) + 1), chosen)
        for number, case in enumerate(cases, 1):
            verdicts = Counter(kill_points.judge(first, case).values())
            counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
            self.say(case.trouble or f"{number} of {len(chosen)}, {case.point}: {counts or 'nothing'}")
            yield case

    def _unseen(self, first: Case, tried: Sequence[Case], cases: Sequence[Case]) -> Iterator[str]:
        yield from dict.fromkeys(why for case in [first, *cases] for why in case.rejected)
        for thing, count in Counter(first.taken).items():
            if count > 1:
                yield f"{thing.label}: came {count} times in the first run, where nothing was killed"
        if len(tried) < len(first.points):
            yield f"a sample: {len(tried)} of {len(first.points)} points were tried"
        for name in sorted({point.name for point in first.points}):
            if not name.startswith(("ledger ", "receiver ", "request ")):
                yield f"{name}: what it changes is not counted"
        missed = [str(case.point) for case in tried if case.point not in case.points]
        if missed:
            yield f"points that a later run did not reach, so that nothing was tried: {', '.join(missed)}"
        groups = {thing.group for case in cases for thing in case.things}
        for name in sorted(groups - {thing.group for thing in first.things}):
            yield f"{name}: came only in a later run, and is not judged"

    # -- one case

    def _run_case(self, number: int, point: Point) -> Case:
        folder = self.folder / f"{number:03}"
        (folder / "tmp").mkdir(parents=True)
        case = Case(point, folder / "book")
        with ExitStack() as stack:
            if number == 0:
                case.ask = stack.enter_context(kill_points.stack_questions(folder))
            job = self._job(folder, *self._receive(stack, case))
            lane = self.lanes.pop()  # there are as many as threads
            stack.callback(self.lanes.append, lane)
            self._run_passes(lane, job, case, PASSES if number else 1)
        return case

    def _receive(self, stack: ExitStack, case: Case) -> tuple[Any, dict[str, str]]:
        """Start the receivers of a case: what they are, and the variables that they set."""
        with self._lock, patch.dict(os.environ):
            machine = {**os.environ}
            try:
                receiver = stack.enter_context(kill_points.receiver_of(self.receiver, case.took))
            except Exception as error:
                raise ConfigurationError(f"the receivers do not start: {error!r}") from error
            changed = dict(os.environ.items() - machine.items())
        if isinstance(receiver, ScriptedService):
            receiver.clear()
            receiver.watch(case.answer)
            stack.callback(receiver.watch, None)
        return receiver, changed

    def _job(self, folder: Path, receiver: Any, changed: Mapping[str, str]) -> dict[str, Any]:
        address = str(getattr(receiver, "url", receiver))
        own: dict[str, Any] = {"address": address, "own": receiver if isinstance(receiver, dict) else {}}
        try:
            call = cast("Any", cloudpickle).dumps({**self.call, **own})
        except Exception as error:  # noqa: BLE001 - whatever pickling raises
            raise ConfigurationError(
                f"{self.name} cannot be sent to another process ({error}): pass the address of a receiver "
                "as an argument, and not the receiver"
            ) from None
        (folder / "call").write_bytes(call)
        environment = {
            "PREFECT_HOME": str(folder / "home"),
            "PREFECT_API_URL": self.api,
            "PREFECT_RESILIENCE_STORE_URL": f"sqlite:///{folder}/ledger.db",
            "PYTHONPATH": os.pathsep.join([f"{self.folder}/guard", *sys.path]),
            "TMPDIR": str(folder / "tmp"),
        }
        return {
            "folder": str(folder),
            "environment": {**changed, **environment},
            "libraries": self.libraries,
            "timeout": self.timeout,
            "ports": [Url(place).port for place in (self.api, address) if place.startswith("http")],
        }

    def _run_passes(self, lane: Any, job: dict[str, Any], case: Case, passes: int) -> None:
        """Run the flow, and run it again until it has ended."""
        with open(case.book, "a+", encoding="utf-8") as book:
            for point in [case.point, *[kill_points.UNDISTURBED] * (passes - 1)]:
                with case.lock:  # who receives something now waits for the process that it may kill
                    lane.stdin.write(json.dumps({**job, "point": point}) + "\n")
                    lane.stdin.flush()
                    case.pid = read_answer(lane)
                status = read_answer(lane)
                case.kills += status == -signal.SIGKILL
                ended = f"a run ended with exit code {status}"
                case.message = "it took too long" if status is None else ended
                case.read(book)
                if status is None or not case.trouble:
                    return
