"""The processes of a rehearsal: `python -m prefect_resilience.operations.rehearsed`.

It imports Prefect once and forks a child for each job that it reads from stdin. A child runs the user's flow,
or runs the flow run of an earlier child again, as an operator or the automation would. An audit hook guards
it and knows the points:

    rejected    connections to anything but loopback, name lookups, other programs, drivers in C
    points      writes of the ledger, other traffic and changed files, each before it happens

What happened is written to the job's book, line by line, so that it outlives a SIGKILL.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, cast
from uuid import UUID

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]
from prefect import Flow, get_client
from prefect.context import refresh_global_settings_context
from prefect.flow_engine import run_flow
from prefect.states import AwaitingRetry, Crashed, get_state_exception
from prefect.utilities.callables import get_call_parameters
from prefect.utilities.collections import visit_collection

import prefect_resilience
from prefect_resilience.base.text import one_line
from prefect_resilience.durable.effects.channels import DRIVERS
from prefect_resilience.durable.effects.ledger import LEDGER_WRITE, PREFIX, open_ledger
from prefect_resilience.durable.effects.witness import WATCHED, Witness, names, report_event
from prefect_resilience.errors.exceptions import ConfigurationError, InDoubt, NotRecorded
from prefect_resilience.operations.users_code import load_module
from prefect_resilience.stores.base import scan_all
from prefect_resilience.testing.kill_points import HOSTS, Point, stable, write_line
from prefect_resilience.testing.rehearsal import ADDRESS

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "::ffff:127.0.0.1"})
PROGRAMS = frozenset({"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen"})
"""Events of other programs."""
LOOK_UPS = names("socket.getaddrinfo socket.gethostbyname socket.gethostbyaddr socket.getnameinfo")
OURS = os.path.dirname(prefect_resilience.__file__)
WAITING = ("threading.py", "queue.py", "_base.py", "selectors.py")
"""Files of threads that wait for other threads, and not for a receiver."""


# -- the guard: nothing leaves but to loopback


@dataclass
class AuditGuard:
    """Rejects what would leave this machine, but to these hosts. `tell` gets each rejection."""

    hosts: frozenset[str]
    tell: Callable[[str], None] = lambda why: None

    def check(self, event: str, args: tuple[Any, ...]) -> None:
        """Raise an error if the event may not happen."""
        rejected = ""
        if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            place: Any = args[1] or ("localhost", 0)  # or the path of a Unix socket
            host: Any = os.fsdecode(place) if isinstance(place, str | bytes) else place[0]
            if host not in self.hosts and not str(host).startswith(os.environ.get("TMPDIR") or "/nowhere"):
                rejected = f"a connection to {place}"
        elif event in LOOK_UPS:
            host = os.fsdecode((args[0][0] if event == "socket.getnameinfo" else args[0]) or "")
            if host not in {*self.hosts, "", socket.gethostname()}:
                rejected = f"a look-up of the host {host}"
        elif event == "import":
            if not DRIVERS.isdisjoint((args[0], args[0].partition(".")[0])):
                rejected = f"the module {args[0]}, whose C code makes network calls that cannot be watched,"
        # Python's `platform` asks `uname` and `file` for the processor.
        elif event in PROGRAMS and not (event == "subprocess.Popen" and args[1][0] in ("uname", "file")):
            rejected = f"another program, which cannot be watched ({args[0]}),"
        if rejected:
            self.tell(rejected)
            kind = ImportError if event == "import" else ConnectionRefusedError
            raise kind(f"{rejected} was rejected by the rehearsal")


def guard_child() -> AuditGuard:
    """Guard this process and its forks. `sitecustomize` calls it in each Python that is started."""
    guard = AuditGuard(LOOPBACK.union(os.environ[HOSTS].split(",")))
    sys.addaudithook(guard.check)
    return guard


# -- the points, and what happened at them


@dataclass(eq=False, kw_only=True)
class Seams(Witness):
    """Counts the points of this process, and kills it at one of them.

    ports: those of the API, and of a receiver that counts its requests.
    """

    book: Path
    point: Point
    ports: Iterable[int]
    counts: dict[tuple[str, str], Iterator[int]] = field(default_factory=dict[tuple[str, str], Iterator[int]])

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        if event == LEDGER_WRITE:
            when, document = args
            self.pass_point(when, f"ledger {document['state']} {stable(document['key'])}")
        elif event in WATCHED and args[:1] != (str(self.book),):
            is_known = event == "socket.connect" and args[1][1] in self.ports
            if not is_known:
                report_event(self, event, args)

    def saw_other(self, what: str) -> None:
        self.pass_point("before", what)

    def saw_native(self, what: str | None) -> None:
        """Mappings and `ctypes` do not count: nothing shows that they change anything."""

    def saw_change(self, path: str, event: str) -> None:
        self.pass_point("before", stable(f"{event} {os.path.basename(path)}"))

    def pass_point(self, how: str, name: str) -> None:
        """Count a point, and die at the one of this run."""
        point = Point(how, name, next(self.counts.setdefault((how, name), count(1))))
        write_line(self.book, passed=[point])
        if point == self.point:
            os.killpg(0, signal.SIGKILL)


# -- where the code is, when a receiver gets something from it


def answer_questions(folder: Path) -> None:
    """Tell the rehearsal, whenever it asks, which lines of the user's code wait for a receiver."""
    questions, answers = (os.open(folder / name, os.O_RDWR) for name in ("questions", "answers"))
    while os.read(questions, 1):
        os.write(answers, json.dumps([*_waiting_places()]).encode() + b"\n")


def _waiting_places() -> Iterator[tuple[str, str, str]]:
    """The stack's id, the task, and the line of each stack that waits in a client."""
    for ident, frame in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
        yield from _place_of(f"thread {ident}", [caller for caller, _ in traceback.walk_stack(frame)][::-1])
    for thing in gc.get_objects():
        if issubclass(type(thing), asyncio.Task) and not thing.done():
            yield from _place_of(f"task {id(thing)}", [*_frames_of(thing.get_coro())])


AWAITED = {"cr_frame": "cr_await", "gi_frame": "gi_yieldfrom", "ag_frame": "ag_await"}


def _frames_of(step: Any) -> Iterator[FrameType]:
    """The frames of a coroutine that is suspended, and of those that it awaits."""
    while kind := next((name for name in AWAITED if getattr(step, name, None) is not None), None):
        yield getattr(step, kind)
        step = getattr(step, AWAITED[kind])


def _place_of(ident: str, stack: list[FrameType]) -> Iterator[tuple[str, str, str]]:
    own = [frame for frame in stack if _is_users(frame.f_code.co_filename)]
    if not own or own[-1] is stack[-1]:
        return
    innermost = stack[-1].f_code.co_filename
    if innermost.startswith(OURS) or innermost.endswith(WAITING):
        return  # it waits for another thread, as a guard for its call
    in_task = [n for n, frame in enumerate(stack) if "prefect/task_engine" in frame.f_code.co_filename]
    inside = [frame for frame in stack[max(in_task, default=0) :] if frame in own] or own
    yield ident, inside[0].f_code.co_name, _line_of(own[-1], own[-1].f_lineno)


def _is_users(file: str) -> bool:
    outside = (OURS, sys.base_prefix, sys.prefix, "<")
    return "site-packages" not in file and not file.startswith(outside)


def _line_of(frame: FrameType, line: int) -> str:
    return f"{os.path.relpath(frame.f_code.co_filename)}:{line}"


def _users_line() -> str:
    stack = traceback.walk_stack(None)
    return next((_line_of(frame, line) for frame, line in stack if _is_users(frame.f_code.co_filename)), "")


# -- a run


def run_job(job: dict[str, Any], guard: AuditGuard) -> None:
    """Run the flow of a job in this process, up to its point."""
    folder = Path(job["folder"])
    book, is_first = folder / "book", (folder / "questions").exists()
    seams = Seams(book=book, point=Point(*job["point"]), ports=job["ports"])
    guard.tell = lambda why: write_line(book, rejected=[f"{why} was rejected ({_users_line()})"])
    flow, parameters = _load_call(folder / "call")
    if is_first:
        threading.Thread(target=answer_questions, args=(folder,), daemon=True).start()
    _run(flow, parameters, folder, seams)
    if is_first:
        files = {name: getattr(module, "__file__", None) for name, module in [*sys.modules.items()]}
        write_line(book, libraries=[name for name, file in files.items() if file and not _is_users(file)])


def _load_call(path: Path) -> tuple[Any, dict[str, Any]]:
    call = cast("Any", cloudpickle).loads(path.read_bytes())
    flow = call["flow"]
    if isinstance(flow, str):
        name, _, attribute = flow.rpartition(":")
        flow = getattr(load_module(name, flow), attribute, None)
    if not isinstance(flow, Flow):
        raise ConfigurationError(f"{call['flow']} is not a flow: write FILE.py:FLOW or MODULE:FLOW")

    def fill(value: Any) -> Any:
        return value.replace(ADDRESS, call["address"]) if isinstance(value, str) else value

    args, kwargs = visit_collection((call["args"], call["kwargs"]), fill, return_data=True)
    return cast("Any", flow), get_call_parameters(flow.fn, args, {**kwargs, **call["own"]})


def _run(flow: Any, parameters: dict[str, Any], folder: Path, seams: Seams) -> None:
    id_file = folder / "flow_run"
    with get_client(sync_client=True) as client:
        if id_file.exists():
            run_id = UUID(id_file.read_text())
            # As the worker reports it, and as a recovery or the Retry button starts it again.
            client.set_flow_run_state(run_id, Crashed(message="its process was killed"), force=True)
            client.set_flow_run_state(run_id, AwaitingRetry(), force=True)
        else:
            run_id = client.create_flow_run(flow, parameters=flow.serialize_parameters(parameters)).id
            id_file.write_text(str(run_id))
        flow_run = client.read_flow_run(run_id)
    sys.addaudithook(seams.hook)  # what follows is the flow's
    ended: Any = run_flow(flow, flow_run=flow_run, parameters=parameters, return_type="state")
    state: Any = asyncio.run(ended) if flow.isasync else ended
    error: Any = cast("Any", get_state_exception)(state) if state.is_failed() else None
    effects = dict(_effects())
    in_doubt = error is not None and "unknown" in [state for _, state, _ in effects.values()]
    stopped = in_doubt or isinstance(error, InDoubt | NotRecorded)
    message = str(state.message or "")
    write_line(seams.book, state=state.type.value, message=message, stopped=stopped, effects=effects)


def _effects() -> Iterator[tuple[str, tuple[str, str, str]]]:
    """The key of each effect in the ledger of this case, with its kind, state and task."""
    for _, document in scan_all(open_ledger().store, PREFIX):
        effect, recipe = document.value, document.value.get("recipe") or {"task": ""}
        yield effect["key"], (effect["kind"], effect["state"], recipe["task"].rpartition(".")[2])


def _enter(job: dict[str, Any]) -> None:
    """Give this process the job's surroundings, and its output the job's log."""
    os.setpgid(0, 0)  # as its parent does: whoever is first
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(job["environment"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    log = os.open(Path(job["folder"]) / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    refresh_global_settings_context()


def serve_runs() -> None:
    """Fork a child for each line of stdin; print its pid, and how it ended."""
    guard = guard_child()
    for line in sys.stdin:
        job = json.loads(line)
        for name in job["libraries"]:
            with suppress(Exception, SystemExit):  # the program imports it again, and sees why
                importlib.import_module(name)
        gc.freeze()  # or each collection of a child visits all that its parent imported
        pid = os.fork()
        if pid == 0:
            try:
                _enter(job)
                run_job(job, guard)
            except BaseException as error:  # noqa: BLE001 - it must not go on as the parent does
                traceback.print_exc()
                write_line(Path(job["folder"]) / "book", message=one_line(error))
            finally:
                sys.stdout.flush()
                os._exit(0)
        os.setpgid(pid, pid)
        print(json.dumps(end_run(pid, job["timeout"], sys.stdin)), flush=True)


def end_run(pid: int, seconds: float, source: Any) -> int | None:
    """Print the pid of a run, wait for its end, and end the processes that it started; its exit code.

    It is killed if it takes too long, or if `source`, where the jobs come from, is closed; then it has none.
    """
    end = time.monotonic() + seconds
    try:
        print(pid, flush=True)
        while time.monotonic() < end and not select.select([source], [], [], 0.01)[0]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def serve_api() -> None:
    """Serve a Prefect API until stdin is closed; print its address once it answers."""
    import uvicorn  # slow to load, and of no use to a run
    from prefect.server.api.server import create_app

    server = uvicorn.Server(uvicorn.Config(create_app(ephemeral=True, final=True), log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        while thread.is_alive() and not server.started:
            time.sleep(0.05)
        if server.started:
            print(json.dumps(f"http://127.0.0.1:{listener.getsockname()[1]}/api"), flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    {"api": serve_api, "runs": serve_runs}[sys.argv[1]]()
