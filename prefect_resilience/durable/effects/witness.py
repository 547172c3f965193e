"""The witness of a call: its requests with their answers, and whatever else can have left the process.

The httpx event hook `send_idempotency_key` and our transports pass every request to it. httpcore's `trace`
extension reports the requests on the wire, where transport retries and redirects are separate requests.
Python's audit events report other connections, processes and changed files. `channels.py` has what makes no
audit event.
"""

from __future__ import annotations

import inspect
import logging
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPEN_STATUSES = frozenset({408, 409, 499})
"""4xx that prove nothing: a timeout half-way, a conflict with an earlier request, a closed connection."""

_CONNECTS = ("connect_tcp", "connect_unix_socket")
_SENDS = names(
    """
    http.client.send smtplib.send ftplib.sendcmd imaplib.send poplib.putline sqlite3.connect syslog.syslog
    socket.connect socket.sendto socket.sendmsg subprocess.Popen os.system os.posix_spawn
    os.fork os.forkpty os.exec os.startfile os.kill os.killpg
    """
)
_NATIVE = names("ctypes.dlopen ctypes.dlsym ctypes.dlsym/handle ctypes.call_function mmap.__new__")
_PATHS: dict[str, tuple[tuple[int, int | None], ...]] = {
    **dict.fromkeys(names("open os.truncate os.setxattr os.removexattr"), ((0, None),)),
    "os.mkdir": ((0, 2),),
    "os.rename": ((1, 3), (0, 2)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
}
"""Events of changed files: the positions of each path and of the file descriptor of its directory."""
_CREATES = names("open os.mkdir os.rename os.link os.symlink")
_REMOVES = names("os.remove os.rmdir")
WATCHED = _SENDS | _NATIVE | _PATHS.keys()
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_READ_MAPPINGS = (1, 3)
"""`mmap.ACCESS_READ` and `ACCESS_COPY`: nothing is written to the file."""
MOST_OTHERS, MOST_FILES = 5, 1_000


def is_refusal(status: int) -> bool:
    """Whether an answer with this status proves that the request took no effect."""
    return 400 <= status < 500 and status not in OPEN_STATUSES


@dataclass(slots=True)
class SeenRequest:
    """One request. `statuses`: the status of each sending; None: no answer so far."""

    method: str
    url: str
    tried: bool = False
    """Whether a connection was requested; always False for a client with its own transport."""
    statuses: list[int | None] = field(default_factory=list[int | None])

    @property
    def not_taken(self) -> bool:
        """Whether it was never sent, or rejected each time."""
        return self.tried and all(status is not None and is_refusal(status) for status in self.statuses)


@dataclass(eq=False)
class Witness:
    """The requests of one call, and other traffic during it. Safe across threads and tasks."""

    requests: list[SeenRequest] = field(default_factory=list["SeenRequest"])
    others: list[str] = field(default_factory=list[str])
    """Traffic of other clients and processes."""
    native: list[str] = field(default_factory=list[str])
    """What may have left without an audit event: drivers in C, connections that were open before."""
    _files: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """The changed paths, each with its first and its latest event."""
    _connecting: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def all_rejected(self) -> bool:
        """Whether there were requests, and each one was rejected or never sent."""
        return bool(self.requests) and all(request.not_taken for request in self.requests)

    def shows_nothing_taken(self) -> bool:
        """Whether all requests were rejected, and nothing else can have left."""
        return self.all_rejected() and not self.others and not self.beside()

    def saw_something(self) -> bool:
        """Whether anything was seen to leave."""
        return bool(self.requests or self.others or self.beside())

    def beside(self) -> list[str]:
        """What a promise of one request allows beside it: changed files and native code."""
        return [*self.native, *self._files_changed()][:MOST_OTHERS]

    def seen(self) -> tuple[list[SeenRequest], list[str], list[str]]:
        """The record, for another process."""
        return self.requests, self.others, self.beside()

    def add(self, requests: list[SeenRequest], others: list[str], beside: list[str]) -> None:
        """Add the record of the same call's witness in another process."""
        self.requests += requests
        self.others += others
        self.native += beside

    def saw_other(self, what: str) -> None:
        """Record traffic of another client."""
        own = what == "socket.connect" and self._connecting > 0
        if not own and len(self.others) < MOST_OTHERS:
            self.others.append(what)

    def saw_native(self, what: str | None) -> None:
        """Record code or a connection that Python does not watch."""
        if what is not None and len(self.native) < MOST_OTHERS:
            self.native.append(what)

    def saw_change(self, path: str, event: str) -> None:
        """Record a change in the file system."""
        if path in self._files or len(self._files) < MOST_FILES:
            self._files[path] = (self._files.get(path, (event,))[0], event)
        else:
            self.saw_native(f"more than {MOST_FILES} changed files")

    def _files_changed(self) -> Iterator[str]:
        """The changes that count: not those of a temporary file that the call removed itself."""
        import tempfile

        passing = os.path.join(tempfile.gettempdir(), "")
        for path, (first, latest) in [*self._files.items()]:
            is_gone = first in _CREATES and latest in _REMOVES and not os.path.lexists(path)
            if not (is_gone and path.startswith(passing)):
                yield f"{first} {path!r}"

    def told(self, seen: SeenRequest, name: str, info: dict[str, Any]) -> None:
        """One event of httpcore's trace."""
        step, _, stage = name.rpartition(".")
        step = step.rpartition(".")[2]
        if step in _CONNECTS:
            seen.tried = True
            with self._lock:
                self._connecting += 1 if stage == "started" else -1
        elif step == "send_request_headers" and stage == "started" and not _is_tunnel(info):
            seen.tried = True
            seen.statuses.append(None)
        elif step == "receive_response_headers" and stage == "complete" and seen.statuses:
            seen.statuses[-1] = _status_in(info.get("return_value"))


def _is_tunnel(info: dict[str, Any]) -> bool:
    """Whether it is a CONNECT to a proxy, which carries no request."""
    return getattr(info.get("request"), "method", None) == b"CONNECT"


def _status_in(answer: object) -> int | None:
    """The status in `(version, status, ...)` of HTTP/1.1, or in `(status, headers)` of HTTP/2."""
    if not isinstance(answer, tuple):
        return None
    parts = cast("tuple[Any, ...]", answer)
    return next((part for part in parts[:2] if isinstance(part, int) and not isinstance(part, bool)), None)


class _Trace:
    """httpcore's trace callback; the user's own callback is still called."""

    def __init__(
        self, witness: Witness, seen: SeenRequest, wrapped: Callable[..., Any] | None, of: int = 0
    ) -> None:
        self.witness = witness
        self.seen = seen
        self.wrapped = wrapped
        self.of = of
        """The `id` of its request: a redirect copies the extensions of the request before it."""

    def __call__(self, name: str, info: dict[str, Any]) -> Any:
        self.witness.told(self.seen, name, info)
        return None if self.wrapped is None else self.wrapped(name, info)


class _AsyncTrace(_Trace):
    async def __call__(self, name: str, info: dict[str, Any]) -> None:
        self.witness.told(self.seen, name, info)
        if self.wrapped is not None:
            await self.wrapped(name, info)


def attend(witness: Witness, request: Any) -> Callable[[], None]:
    """Let the witness see an httpx request of a `Client`. Call the returned function for an `AsyncClient`."""
    before = request.extensions.get("trace")
    if isinstance(before, _Trace) and before.witness is witness and before.of == id(request):
        record = before.seen  # by the event hook and then by the transport
    else:
        record = SeenRequest(str(request.method), str(request.url))
        witness.requests.append(record)
    while isinstance(before, _Trace):  # a redirect copies the extensions of its request
        before = before.wrapped
    request.extensions["trace"] = _Trace(witness, record, before, id(request))

    def become_async() -> None:
        request.extensions["trace"] = _AsyncTrace(witness, record, before, id(request))

    return become_async


def attest_unsent(witness: Witness, request: Any) -> None:
    """Record that a guard rejected an httpx request before it was sent."""
    attend(witness, request)
    trace = cast("_Trace", request.extensions["trace"])
    trace.seen.tried = True


# Python's audit events. They are raised for all that the process does, so most of them must cost little.


@cache
def watch_other_traffic(current: ContextVar[Any]) -> None:
    """Report other traffic to the witness of the current call, `current.get().witness`.

    Python cannot remove an audit hook, so it is added once per process, with the first call of an effect.
    """

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in WATCHED and (now := current.get(None)) is not None:
            try:
                report_event(now.witness, event, args)
            except Exception:  # noqa: BLE001 - it would be raised in the user's call
                now.witness.saw_native(event)

    sys.addaudithook(hook)


def report_event(witness: Witness, event: str, args: tuple[Any, ...]) -> None:
    """Report one of the audit events WATCHED to a witness, unless it comes from a log or a store."""
    if event in _SENDS:
        if not _is_local(event, args) and not _is_incidental():
            witness.saw_other(event)
    elif event in _NATIVE:
        is_private = event == "mmap.__new__" and (args[0] == -1 or args[2] in _READ_MAPPINGS)
        if not is_private and not _is_incidental(while_importing=True):
            witness.saw_native(event)
    else:
        changed = [*_paths_changed_by(event, args)]
        if changed and not _is_incidental(while_importing=True):
            for path, name in changed:
                witness.saw_change(path, name)


def _is_local(event: str, args: tuple[Any, ...]) -> bool:
    """Whether nothing leaves: Python's `platform` module reads the processor, as in an SDK's first request,
    or the code asks whether a process exists."""
    reads = event == "subprocess.Popen" and list(args[1]) == ["uname", "-p"]
    return reads or (event in ("os.kill", "os.killpg") and args[1] == 0)


def _paths_changed_by(event: str, args: tuple[Any, ...]) -> Iterator[tuple[str, str]]:
    """The paths that an event changes, each with its event. None if it only reads, or finds its work done."""
    if event == "open" and not args[2] & _WRITING:
        return
    for nth, (at, folder_at) in enumerate(_PATHS[event]):
        if isinstance(args[at], int):
            # The event that opened a file has its path. A pipe leads to another process.
            if event == "open" and args[at] > 2 and not stat.S_ISREG(os.fstat(args[at]).st_mode):
                yield f"/dev/fd/{args[at]}", event
            continue
        path = _absolute(args[at], -1 if folder_at is None else args[folder_at])
        # tempfile opens a directory and passes an opener, which opens the file
        is_idle = os.path.isdir(path) if event == "open" else _is_idle(event, path)
        if not is_idle and path != os.devnull and "__pycache__" not in path and not _is_prefect_s(path):
            yield path, "os.remove" if nth else event


def _is_idle(event: str, path: str) -> bool:
    """Whether the change is not made: a folder that exists already, or a file that does not exist."""
    return event not in _CREATES - {"os.mkdir"} and os.path.lexists(path) == (event == "os.mkdir")


def _absolute(path: Any, folder: int) -> str:
    above = "" if folder < 0 else os.readlink(f"/proc/self/fd/{folder}")
    return os.path.abspath(os.path.join(above, os.fsdecode(path)))


def _is_prefect_s(path: str) -> bool:
    home = os.path.expanduser(os.environ.get("PREFECT_HOME") or "~/.prefect")
    return os.path.join(path, "").startswith(os.path.join(os.path.abspath(home), ""))


_LOGS = logging.Logger.handle.__code__
_OURS = ("prefect_resilience.stores.", "prefect_resilience.guards.timeouts.children")


def _is_incidental(*, while_importing: bool = False) -> bool:
    """Whether the event comes from a log handler or from a store of this package; with `while_importing`,
    also from the import of a module. The functions on the stack tell it; no variable of theirs is read."""
    frame = inspect.currentframe()
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if frame.f_code is _LOGS or module.startswith(_OURS):
            return True
        if while_importing and module == "importlib._bootstrap" and frame.f_code.co_name == "_find_and_load":
            return True
        ours = module.startswith("prefect_resilience.") and module != __name__
        if ours or module == "asyncio.events":
            return False  # below is the code that called the function, or the event loop
        frame = frame.f_back
    return False
