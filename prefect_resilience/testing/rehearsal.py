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
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
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
            wrong = [f"{row.thing}: {row.verdict}, {row.line}, {row.kill}" for row in self.twice + self.lost]
            raise AssertionError("\n".join([f"{self.flow} is not proven:", *wrong, *self.unjudged]))


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
        receiver = ScriptedService if receiver is None else receiver
        # One receiver for all cases cannot tell two of them apart.
        width = 1 if isinstance(receiver, ScriptedService) else min(os.cpu_count() or 1, 4)
        pool = ThreadPoolExecutor(width)
        stack.callback(pool.shutdown, cancel_futures=True)  # at a Ctrl-C, after the lanes with their runs
        lanes = [stack.enter_context(_process("runs", folder / "lanes", hosts)) for _ in range(width)]
        api = api or stack.enter_context(prefect_api(folder))
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
        address = server.stdout.readline().strip()
        if not address:
            raise ConfigurationError(f"the Prefect API of the rehearsal did not start: see {folder}/api/log")
        yield address


@contextmanager
def _process(what: str, home: Path, hosts: Iterable[str] = ()) -> Generator[Any]:
    """A process of its own, in a session of its own: a Ctrl-C ends it when this context ends."""
    home.mkdir(parents=True, exist_ok=True)
    environment = {**_environment_of(home, os.environ), kill_points.HOSTS: ",".join(hosts)}
    with open(home / "log", "ab") as log:
        process = Popen(
            [sys.executable, "-m", "prefect_resilience.operations.rehearsed", what],
            stdin=PIPE,
            stdout=PIPE,
            stderr=log,
            env=environment,
            text=True,
            start_new_session=True,
        )
    with process:
        try:
            yield process
        finally:
            process.terminate()


FOREIGN = re.compile(
    r"PREFECT_(API|PROFILE|SERVER|CLOUD|LOCAL_STORAGE|RESULTS_LOCAL)|.*_proxy$", re.IGNORECASE
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


def _environment_of(home: Path, machine: Mapping[str, str]) -> dict[str, str]:
    own = {name: value for name, value in machine.items() if not FOREIGN.match(name)}
    return {**own, **OWN, "PREFECT_HOME": str(home)}


# -- all cases

GUARD = """import os
try:
    from prefect_resilience.operations.rehearsed import guard_child
    guard_child()
except BaseException as error:
    print("a rehearsal cannot guard this process:", repr(error), flush=True)
    os._exit(97)
"""
"""The `sitecustomize` of each Python that the program starts, as for a timeout in a process."""


@dataclass
class Campaign:
    """All cases of one flow: their folders, processes and receivers."""

    folder: Path
    api: str
    call: dict[str, Any]
    receiver: Any
    timeout: float
    lanes: list[Any]
    """Processes that have imported Prefect, and fork the runs of one case after another."""
    pool: ThreadPoolExecutor
    say: Callable[[str], None]
    libraries: list[str] = field(default_factory=list[str])
    """The modules of libraries that the first run imported; each lane imports them once."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        flow = self.call["flow"]
        self.name: str = flow if isinstance(flow, str) else str(getattr(flow, "name", flow))
        (self.folder / "guard").mkdir()
        (self.folder / "guard" / "sitecustomize.py").write_text(GUARD)
        certificate, end, _ = certifi.contents().partition("-----END CERTIFICATE-----")
        (self.folder / "certificate.pem").write_text(certificate + end)

    def rehearse(self, most: int, only: str | None) -> Rehearsal:
        """The first run, then a case for each point."""
        first = self._run_case(0, None)
        if first.state != "COMPLETED":
            why = "; ".join(dict.fromkeys([first.message, *first.rejected]))
            raise ConfigurationError(f"the first run, which is not disturbed, does not succeed: {why}")
        self.libraries = first.libraries
        points = first.points
        chosen = [kill_points.UNDISTURBED, *kill_points.choose(points, most)]
        if only is not None:
            chosen = [point for point in [kill_points.UNDISTURBED, *points] if str(point) == only]
        if not chosen:
            names = "; ".join(map(str, points))
            raise ConfigurationError(f"there is no point {only!r}; the points are: {names}")
        self.say(f"{self.name} has {len(points)} points; {len(chosen)} cases")
        cases = self._run_cases(first, chosen)
        judged = [case for case in cases if not case.trouble]
        return Rehearsal(
            flow=self.name,
            rows=kill_points.rows_of(first, judged),
            points=len(points),
            cases=sum(case.point in points for case in cases),
            kills=sum(case.kills for case in cases),
            unseen=[*self._unseen(first, points, cases)],
            unjudged=[case.trouble for case in cases if case.trouble],
        )

    def _run_cases(self, first: Case, chosen: Sequence[Point]) -> list[Case]:
        cases = [self.pool.submit(self._run_case, number, point) for number, point in enumerate(chosen, 1)]
        for number, ended in enumerate(as_completed(cases), 1):
            case = ended.result()
            verdicts = Counter(kill_points.judge(first, case).values())
            counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
            self.say(case.trouble or f"{number} of {len(chosen)}, {case.point}: {counts}")
        return [ended.result() for ended in cases]

    def _unseen(self, first: Case, points: Sequence[Point], cases: Sequence[Case]) -> Generator[str]:
        yield from dict.fromkeys(why for case in [first, *cases] for why in case.rejected)
        for thing, count in Counter(first.taken).items():
            if count > 1:
                yield f"{thing.label}: came {count} times in the first run, where nothing was killed"
        tried = [case for case in cases if case.point in points]
        if len(tried) < len(points):
            yield f"a sample: {len(tried)} of {len(points)} points were tried"
        for name in sorted({point.name for point in points}):
            if not name.startswith(("ledger ", "receiver ", "request ")):
                yield f"{name}: what it changes is not counted"
        missed = [str(case.point) for case in tried if case.point not in case.points]
        if missed:
            yield f"points that a later run did not reach, so that nothing was tried: {', '.join(missed)}"
        groups = {thing.group for case in cases for thing in case.things}
        for name in sorted(groups - {thing.group for thing in first.things}):
            yield f"{name}: came only in a later run, and is not judged"

    # -- one case

    def _run_case(self, number: int, point: Point | None) -> Case:
        folder = self.folder / f"{number:03}"
        (folder / "tmp").mkdir(parents=True)
        case = Case(point, folder / "book")
        with ExitStack() as stack:
            if point is None:
                case.ask = stack.enter_context(kill_points.stack_questions(folder))
            job = self._job(folder, *self._receive(stack, case, folder))
            lane = self.lanes.pop()  # there are as many as threads
            stack.callback(self.lanes.append, lane)
            self._run_passes(lane, job, case)
        return case

    def _receive(self, stack: ExitStack, case: Case, folder: Path) -> tuple[Any, dict[str, str]]:
        """Start the receivers of a case: what they are, and the environment of its runs."""
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
        own = {
            "PREFECT_API_URL": self.api,
            "PREFECT_RESILIENCE_STORE_URL": f"sqlite:///{folder}/ledger.db",
            "PYTHONPATH": f"{self.folder}/guard{os.pathsep}{machine.get('PYTHONPATH', '')}",
            "TMPDIR": str(folder / "tmp"),
        }
        return receiver, {**_environment_of(folder / "home", machine), **changed, **own}

    def _job(self, folder: Path, receiver: Any, environment: Mapping[str, str]) -> dict[str, Any]:
        address = str(getattr(receiver, "url", receiver))
        call = _fill(self.call, address)
        call["kwargs"] |= receiver if isinstance(receiver, dict) else {}
        try:
            (folder / "call").write_bytes(cast("Any", cloudpickle).dumps(call))
        except Exception as error:  # noqa: BLE001 - whatever pickling raises
            raise ConfigurationError(
                f"{self.name} cannot be sent to another process ({error}): pass the address of a receiver "
                "as an argument, and not the receiver"
            ) from None
        return {
            "folder": str(folder),
            "path": sys.path,
            "environment": environment,
            "libraries": self.libraries,
            "certificate": f"{self.folder}/certificate.pem",
            "timeout": self.timeout,
            "ports": [Url(place).port for place in (self.api, address) if place.startswith("http")],
        }

    def _run_passes(self, lane: Any, job: dict[str, Any], case: Case) -> None:
        """Run the flow, and run it again until it has ended."""
        case.book.touch()
        with open(case.book, encoding="utf-8") as book:
            for number in range(1, 2 if case.point is None else PASSES + 1):
                with case.lock:  # who receives something now waits for the process that it may kill
                    lane.stdin.write(json.dumps({**job, "point": case.point if number == 1 else None}) + "\n")
                    lane.stdin.flush()
                    case.pid = int(lane.stdout.readline())
                status = int(lane.stdout.readline())
                case.kills += status == -signal.SIGKILL
                late = "it took too long"
                case.message = late if status == kill_points.LATE else f"a run ended with exit code {status}"
                case.read(book)
                if case.mistake:
                    raise ConfigurationError(case.mistake)
                if case.state == "COMPLETED" or case.stopped or status == kill_points.LATE:
                    return


def _fill(value: Any, address: str) -> Any:
    """The arguments with the receiver's address."""
    if isinstance(value, str):
        return value.replace(ADDRESS, address)
    if type(value) is dict:
        return {name: _fill(item, address) for name, item in cast("dict[Any, Any]", value).items()}
    if type(value) in (list, tuple):
        return type(value)(_fill(item, address) for item in value)
    return value
