"""A call with a deadline, run on a separate thread while the caller's thread waits.

The threads are daemons: `concurrent.futures` joins its threads when the interpreter exits, so one stuck
call would hang the exit. They are reused, the last one used first, and end after some idle time.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, TypeVar, cast

from prefect_resilience.base.deadlines import overdue
from prefect_resilience.base.drive import SLICE_SECONDS
from prefect_resilience.base.process import in_forked_child, start_thread

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("prefect_resilience.timeout")

IDLE_SECONDS = 30.0
"""How long a thread waits for its next call before it ends."""


class Life:
    """Whether a caller still waits for a call, and for the call around it."""

    __slots__ = ("around", "is_over")

    def __init__(self) -> None:
        self.around: Life | None = _current.get()
        self.is_over: bool = False


_current: ContextVar[Life | None] = ContextVar("prefect_resilience_call", default=None)
"""The life of the call that runs in this thread. The call itself would form a cycle with its context."""


class Call:
    """One call on its way to a thread and back."""

    __slots__ = ("args", "context", "done", "error", "finished", "fn", "kwargs", "life", "value")

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.fn: Callable[..., Any] = fn
        self.args: Sequence[Any] = args
        self.kwargs: Mapping[str, Any] = kwargs
        self.life: Life = Life()
        self.context: Context = copy_context()
        self.context.run(_current.set, self.life)
        self.value: Any = None
        self.error: BaseException | None = None
        self.finished: bool = False
        self.done: threading.Lock = threading.Lock()
        self.done.acquire()


def _run(call: Call) -> None:
    try:
        call.value = call.context.run(call.fn, *call.args, **call.kwargs)
    except BaseException as error:  # noqa: BLE001 it is raised again in the thread that waits
        call.error = without_this_frame(error)
    call.finished = True
    del call  # an error's traceback holds this frame: with `call` in it, the two would form a cycle


def without_this_frame(error: BaseException) -> BaseException:
    """The error that was just caught; its traceback now begins one frame later, in the user's code."""
    return error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)


_STILL_RUNNING = (
    "%s passed its deadline of %g s and was abandoned: it is still running in its thread (such calls now: "
    '%d). To stop such a call, use Timeout(..., mode="process")'
)

_idle: list[SimpleQueue[Call]] = []
"""The inboxes of the threads that wait for a call."""
_overdue: set[Call] = set()
_numbers = itertools.count(1)


def call_with_deadline(
    fn: Callable[..., T], args: Sequence[Any], kwargs: Mapping[str, Any], seconds: float
) -> T:
    """The value of `fn(*args, **kwargs)`, if it returns within `seconds`.

    The call runs on another thread, in a copy of this thread's context variables; changes to them are not
    seen here. Its exception, also a `SystemExit`, is raised here as the same object. At the deadline
    `AttemptTimeout` is raised at once, even if the call is blocked, unless it is in C code that keeps the
    GIL. The abandoned call goes on until it ends by itself, and a log line reports it. It blocks no other
    call: a new call gets a new thread, so the number of abandoned calls has no bound of its own. If the
    waiting thread is interrupted, the call goes on in the same way, without the log line.

    Raises `AttemptTimeout`, `RuntimeError` if no thread can be started, and any exception of `fn`.
    """
    call = Call(fn, args, kwargs)
    _hand_over(call)
    try:
        in_time = _wait(call, seconds) or call.finished
    except BaseException:
        abandon(call)
        raise
    if not in_time:
        if abandon(call):
            logger.warning(_STILL_RUNNING, name_of(fn), seconds, len(_overdue))
        raise overdue(seconds, name_of(fn))
    if call.error is None:
        return call.value
    try:
        raise call.error
    finally:
        del call  # else the error's traceback would hold the error


def start_call(fn: Callable[..., Any], *args: Any) -> Call:
    """Run `fn(*args)` on a thread of the pool, in a copy of the context, without waiting for it.

    Its value or exception is dropped.
    """
    call = Call(fn, args, {})
    _hand_over(call)
    return call


def abandon(call: Call) -> bool:
    """Stop waiting for the call. Returns whether it still runs; then it is overdue until it has ended."""
    call.life.is_over = True
    _overdue.add(call)
    if call.finished:
        _overdue.discard(call)
    return not call.finished


def is_abandoned() -> bool:
    """Whether this code runs in a call, or inside one, for which its caller has stopped waiting."""
    life = _current.get()
    while life is not None and not life.is_over:
        life = life.around
    return life is not None


def overdue_calls() -> int:
    """The number of this process's abandoned calls that are still running in their threads."""
    return len(_overdue)


def overdue_in(made_there: Callable[[Context], bool]) -> list[Call]:
    """The overdue calls with a context for which `made_there` is true."""
    return [call for call in list(_overdue) if not call.finished and made_there(call.context)]


def name_of(fn: object) -> str:
    """The name of a function or a generator in quotes, for a message."""
    inner: Any = fn
    while isinstance(inner, partial):
        inner = cast("Any", inner.func)
    return repr((getattr(inner, "__name__", None) or type(inner).__name__).lstrip("_"))


def _hand_over(call: Call) -> None:
    """Give the call to the thread that was idle for the shortest time, or to a new one."""
    try:
        inbox = _idle.pop()
    except IndexError:
        inbox = SimpleQueue[Call]()
        start_thread(f"call-{next(_numbers)}", _serve, inbox)
    inbox.put(call)


def _serve(inbox: SimpleQueue[Call]) -> None:
    """The thread's loop: make calls until none has come for `IDLE_SECONDS`."""
    while True:
        try:
            call = inbox.get(timeout=IDLE_SECONDS)
        except Empty:
            with suppress(ValueError):
                _idle.remove(inbox)
                return
            call = inbox.get()  # a caller has just taken this inbox and will put a call into it
        _run(call)
        if _overdue:
            _overdue.discard(call)
        _idle.append(inbox)  # before the caller wakes: its next call then finds this thread
        call.done.release()
        del call  # an idle thread holds no results


def _wait(call: Call, seconds: float) -> bool:
    if call.done.acquire(timeout=min(max(seconds, 0.0), SLICE_SECONDS)):
        return True
    deadline = monotonic() + seconds - SLICE_SECONDS
    while (remaining := deadline - monotonic()) > 0:
        if call.done.acquire(timeout=min(remaining, SLICE_SECONDS)):
            return True
    return False


@in_forked_child
def _forget_threads() -> None:  # pyright: ignore[reportUnusedFunction]
    _idle.clear()
    _overdue.clear()
