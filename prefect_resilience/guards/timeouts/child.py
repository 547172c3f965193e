"""The child's side of `mode="process"`: a process that imports Prefect once and then serves many calls.

`children.py` starts it with `main()` and exchanges messages with it over one channel. The parent sends the
module search path with the modules to import, and then for each call: the call, and whether to go on after
the child has unpickled it and reported `begun`. The child sends `ready`, `begun`, any number of `told`, and
`result`, `error` or `unpicklable`.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

from prefect_resilience.base.outcomes import UnawaitedResult, is_awaitable, last, require_completed
from prefect_resilience.errors.classify.classify import CLASSIFIED, ErrorInfo, classify
from prefect_resilience.errors.classify.reach import NAMES, members_of, names_of
from prefect_resilience.errors.classify.shapes import put, read

# Values and exceptions on their way between a process and its child.
#
# Functions and classes of `__main__`, closures and lambdas are pickled by value. An exception keeps its type,
# its notes, its causes, and the attributes that can be pickled.

_CAUSES = 10
"""The most causes of an exception that are kept."""

dumps: Callable[[Any], bytes] = cast("Callable[[Any], bytes]", cloudpickle.dumps)  # pyright: ignore[reportUnknownMemberType]

_Packed = tuple[bytes, list[Any], Any, Any, bool]
"""The exception itself, its members if it is a group, its cause, its context, whether that is suppressed."""


def pack_error(error: BaseException) -> bytes:
    """The exception as bytes for `unpack_error`. Raises pickle's error if its class cannot be pickled."""
    packed = _pack(error, _CAUSES)
    now = time.time()
    before, after = classify(error, now=now), classify(_unpack(packed), now=now)
    # An attribute that cannot be pickled, such as a response, may have given the category or the wait.
    same = all(getattr(before, name) == getattr(after, name) for name in ("category", "code", "retry_after"))
    return dumps((packed, None if same else before))


def unpack_error(body: bytes) -> BaseException:
    """The exception that `pack_error` packed. Raises any error of unpickling."""
    packed, info = pickle.loads(body)
    error = _unpack(packed)
    return error if info is None else as_classified(error, info)


def as_classified(error: BaseException, info: ErrorInfo, names: Iterable[str] = ()) -> BaseException:
    """The same exception, classified as it was in the child; in policies it has these names, too."""
    put(error, CLASSIFIED, info)
    put(error, NAMES, tuple(names))
    return error


def _pack(error: BaseException, depth: int) -> _Packed:
    def pack_chained(other: BaseException | None) -> _Packed | None:
        if other is None or depth == 0:
            return None
        try:
            return _pack(other, depth - 1)
        except Exception:  # noqa: BLE001 the error itself matters more than its cause
            return None

    context = None if error.__cause__ else pack_chained(error.__context__)
    members: list[Any] = [_pack(member, max(depth - 1, 0)) for member in members_of(error)]
    body = _parts(error, list(members_of(error))) if members else _whole(error) or _parts(error)
    return body, members, pack_chained(error.__cause__), context, error.__suppress_context__


def _unpack(packed: _Packed) -> BaseException:
    body, members, cause, context, suppress = packed
    error = _rebuild(body, [_unpack(member) for member in members])
    error.__cause__ = None if cause is None else _unpack(cause)
    error.__context__ = None if context is None else _unpack(context)
    error.__suppress_context__ = suppress
    return error


def _whole(error: BaseException) -> bytes | None:
    """The exception as plain pickle writes it, if unpickling gives an equal one; else None."""
    try:
        body = dumps(error)
        back = pickle.loads(body)
    except Exception:  # noqa: BLE001 many exceptions cannot be rebuilt from their args
        return None
    return body if type(back) is type(error) and str(back) == str(error) else None


def _parts(error: BaseException, members: list[Any] | None = None) -> bytes:
    """Type, args and attributes, except values that cannot be pickled. Raises if the type cannot be."""
    attributes = {name: value for name, value in vars(error).items() if _travels(value)}
    args = tuple(value if _travels(value) else repr(value) for value in error.args)
    if members:
        args = (str(read(error, "message")),)
    body = dumps((type(error), args, attributes))
    _rebuild(body, members or [])
    return body


def _travels(value: Any) -> bool:
    try:
        pickle.loads(dumps(value))
    except Exception:  # noqa: BLE001 any error of a __reduce__
        return False
    return True


def _rebuild(body: bytes, members: list[Any]) -> BaseException:
    """An exception. If it came in parts, `__init__` is not called: the parts may not fit its arguments."""
    unpickled = pickle.loads(body)
    if isinstance(unpickled, BaseException):
        return unpickled
    error_type, args, attributes = unpickled
    error: BaseException
    if members:
        args = (*args, members)
        error = cast("Any", BaseExceptionGroup).__new__(error_type, *args)
    else:
        error = error_type.__new__(error_type, *args)
    error.args = args
    vars(error).update(attributes)
    return error


READY, BEGUN, TOLD, RESULT, ERROR, UNPICKLABLE = "ready", "begun", "told", "result", "error", "unpicklable"

EXIT_SECONDS = 3.0
"""How long a child may take to exit after the parent closed the pipe; it may have events to send."""

_PACKAGE = str(Path(__file__).parents[2])


_preparations: list[Callable[[], Any]] = []


def prepare_children_with(prepare: Callable[[], Any]) -> None:
    """Call `prepare` in each child before its first call, for work that is slow the first time."""
    _preparations.append(prepare)


def prepare() -> None:
    for preparation in _preparations:
        with suppress(Exception):  # the call that needs it will report the error
            preparation()


@dataclass(frozen=True)
class ProcessState:
    """The state of the parent that is set again before each call, in case the last call changed it."""

    path: list[str]
    argv: list[str]
    environment: dict[str, str]
    folder: str | None

    @classmethod
    def here(cls) -> ProcessState:
        folder = None
        with suppress(OSError):  # the working directory may have been deleted
            folder = os.getcwd()
        return cls([entry for entry in sys.path if type(entry) is str], sys.argv, dict(os.environ), folder)

    def enter(self) -> None:
        sys.path[:], sys.argv[:] = self.path, self.argv
        if os.environ != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)
        if self.folder is not None:
            with suppress(OSError):
                os.chdir(self.folder)


class Server:
    """A child process, from its first message to its last."""

    def __init__(self, channel: Connection) -> None:
        self.channel = channel
        self.sending: threading.Lock = threading.Lock()
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self.busy: bool = False
        self.hung_up: bool = False

    def serve(self) -> None:
        """Serve calls until the parent closes the pipe."""
        self.modules: set[str] = set(sys.modules)
        self.send(READY)
        threading.Thread(target=self.listen, daemon=True).start()
        while (message := self.inbox.get()) is not None:
            kind, body = self.answer(*message)
            self.send(kind, body)
            del kind, body, message  # an idle child keeps no data of its last call
        watchdog = threading.Timer(EXIT_SECONDS, os._exit, (1,))
        watchdog.daemon = True
        watchdog.start()

    def listen(self) -> None:
        """Read the parent's messages. When the parent dies, kill a running call with all it started."""
        with suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                self.inbox.put(self.channel.recv())
        self.hung_up = True
        if self.busy:
            _kill_this_group()
        self.inbox.put(None)

    def send(self, *message: Any) -> None:
        with suppress(OSError), self.sending:  # if the parent is gone, `listen` ends a running call
            self.channel.send(message)

    def answer(self, number: int, what: str, place: ProcessState, payload: bytes) -> tuple[str, Any]:
        """Make one call, and return the message about its outcome."""
        place.enter()
        try:
            fn, args, kwargs, wrap = pickle.loads(payload)
        except BaseException as error:  # noqa: BLE001 any error of an import
            brief = f"the call of {what} cannot be unpickled in its child process ({error!r})"
            return UNPICKLABLE, (brief, _trace(error), None, ())
        new = [name for name in list(sys.modules) if name not in self.modules]
        self.modules.update(new)
        self.send(BEGUN, new)
        if not self.inbox.get():
            # The parent gave up before the call: nothing was called, and this answer is not read.
            return RESULT, b""
        call = partial(_call, fn, args, kwargs)
        if wrap is not None:
            call = partial(wrap, call, partial(self.send, TOLD, number))
        self.busy = True
        if self.hung_up:
            _kill_this_group()
        try:
            value = copy_context().run(call)
        except BaseException as error:  # noqa: BLE001 it is raised again in the parent
            return _pack_failure(error, what)
        finally:
            self.busy = False
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError, AttributeError):
                    stream.flush()
        return _pack_result(value, what)


def _kill_this_group() -> None:
    os.killpg(0, signal.SIGKILL)


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    outcome = fn(*args, **kwargs)
    if is_awaitable(outcome):
        outcome = asyncio.run(last(outcome))
    try:
        return require_completed(outcome, fn)
    except UnawaitedResult as error:
        raise error.close() from None


def _pack_result(value: Any, what: str) -> tuple[str, Any]:
    try:
        return RESULT, dumps(value)
    except Exception as error:  # noqa: BLE001 any error of a __reduce__
        brief = f"the {type(value).__name__} that {what} returned cannot be pickled ({error})"
        return UNPICKLABLE, (brief, "", None, ())


def _pack_failure(error: BaseException, what: str) -> tuple[str, Any]:
    text = _trace(error)
    try:
        return ERROR, (pack_error(error), text)
    except Exception as reason:  # noqa: BLE001 any error of a __reduce__
        brief = f"the {type(error).__name__} that {what} raised cannot be pickled ({reason})"
        info = classify(error)
        return UNPICKLABLE, (brief, text, info, sorted(names_of(info, error)))


def _trace(error: BaseException) -> str:
    """The traceback as text, from the first frame outside this package."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


def main() -> None:
    """The child's program; its argument is the file descriptor of the channel."""
    channel = Connection(int(sys.argv[1]))
    # If a grandchild held the channel, the parent would not notice the death of this process.
    os.set_inheritable(channel.fileno(), False)
    os.register_at_fork(after_in_child=channel.close)
    with suppress(AttributeError):  # a daemon has no output
        sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore # lines must survive a kill
    sys.path[:], modules = channel.recv()
    for name in modules:
        with suppress(BaseException):  # the call that needs the module will report the error
            import_module(name)
    prepare()
    Server(channel).serve()
