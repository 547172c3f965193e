"""Finds the threads and tasks of a call that still run when its attempt has ended.

They run in copies of the call's context, which has the call's ticket:

- a thread that was abandoned at its deadline (`threads.py` keeps a list of them);
- a thread that `asyncio.to_thread` or anyio started for a coroutine that was cancelled;
- a task that such a coroutine left on its event loop.

Work that was started without the context is not found: by `loop.run_in_executor`, a plain `Thread`, or in a
process.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import Context, ContextVar
from functools import partial
from types import BuiltinMethodType, FrameType
from typing import Any, TypeVar, cast

from prefect_resilience.base.outcomes import has_loop
from prefect_resilience.guards.timeouts.threads import overdue_calls, overdue_in, start_call

logger: logging.Logger = logging.getLogger("prefect_resilience.limits")

TASK_SECONDS = 60.0
"""How long a task that a cancelled coroutine left running counts as part of the call. The task may also be a
service that never ends, such as the reader of a connection."""

LONG_LOOK = 0.005
"""Seconds. A scan of thousands of tasks takes longer. Then the next scan waits 20 times as long, so that
scans take at most 5 % of the time; tasks left running in between are not found."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.25
"""Seconds between two checks of the threads and tasks that still run."""

OUTERMOST = 8
"""A worker's own frames are among this many frames at the bottom of a thread's stack."""

_tickets: ContextVar[tuple[object, ...]] = ContextVar("prefect_resilience_tickets", default=())

StillRuns = Callable[[], bool]
T = TypeVar("T")


def begins(ticket: T) -> T:
    """From now on, threads and tasks started in this context belong to the call with this ticket."""
    _tickets.set((*_tickets.get(), ticket))
    return ticket


def belongs_to_none() -> None:
    """From now on, this context belongs to no call: it has tickets of its own."""
    _tickets.set(())


def still_runs(ticket: object, error: BaseException | None, then: Callable[[], None]) -> bool:
    """Whether threads or tasks of the call still run after its attempt, which raised `error` or succeeded.

    If so, `then` is called once, on another thread, when all of them have ended. It must not block.
    """
    tickets = _tickets.get()
    innermost = bool(tickets) and tickets[-1] is ticket
    _tickets.set(tickets[:-1] if innermost else tuple(other for other in tickets if other is not ticket))
    running = _threads_left(ticket)
    if isinstance(error, asyncio.CancelledError | asyncio.TimeoutError | TimeoutError) and has_loop():
        # A scan of all threads and tasks takes a millisecond or more.
        running += [*_threads_in(ticket), *_tasks_in(ticket)]
    if not running:
        return False
    Context().run(start_call, _look_after, ticket, running, then)
    return True


# -- finding threads and tasks


def _threads_left(ticket: object) -> list[StillRuns]:
    if not overdue_calls():
        return []
    calls = overdue_in(partial(_belongs, ticket))
    return [lambda call=call: not call.finished for call in calls]


def _threads_in(ticket: object) -> list[StillRuns]:
    """The other threads in a context of the call, as far as the bottom frames of their stacks show it."""
    own, threads = threading.get_ident(), list[StillRuns]()
    for ident, frame in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
        contexts = (_context_in(value) for value in _locals_below(frame)) if ident != own else ()
        threads += [
            partial(_is_entered, context)
            for context in contexts
            if context is not None and _belongs(ticket, context) and _is_entered(context)
        ]
    return threads


def _locals_below(frame: FrameType) -> Iterator[Any]:
    stack = [frame]
    while (back := stack[-1].f_back) is not None:
        stack.append(back)
    for frame_below in stack[-OUTERMOST:]:
        if frame_below.f_locals is not frame_below.f_globals:
            yield from list(frame_below.f_locals.values())


def _context_in(value: Any, depth: int = 5) -> Context | None:
    """The context in a local variable of a worker: in the work item of an executor, in a partial of
    `context.run`, or the context itself."""
    if isinstance(value, Context):
        return value
    inner: list[Any] = []
    if isinstance(value, BuiltinMethodType):
        inner = [value.__self__]
    elif isinstance(value, partial):
        inner = [cast("partial[Any]", value).func]
    elif isinstance(value, tuple):
        inner = [*cast("tuple[Any, ...]", value)[:1]]
    elif type(value).__module__ == "concurrent.futures.thread":
        inner = [*getattr(value, "__dict__", {}).values()]
    contexts = (_context_in(item, depth - 1) for item in inner if depth)
    return next((context for context in contexts if context is not None), None)


def _is_entered(context: Context) -> bool:
    """Whether a thread is in the context. `int` is C code, so no other thread runs during the check."""
    try:
        context.run(int)
    except RuntimeError:
        return True
    return False


def _tasks_in(ticket: object) -> list[StillRuns]:
    global _next_look
    now, own = time.monotonic(), asyncio.current_task()
    if now < _next_look:
        return []
    tasks = [task for task in asyncio.all_tasks() if task is not own and _belongs(ticket, _context_of(task))]
    if (took := time.monotonic() - now) > LONG_LOOK:
        _next_look = now + 20 * took
    return [lambda task=task: not task.done() and time.monotonic() < now + TASK_SECONDS for task in tasks]


def _context_of(task: asyncio.Task[Any]) -> Context:
    if sys.version_info >= (3, 12):
        return task.get_context()
    return next((referent for referent in gc.get_referents(task) if isinstance(referent, Context)), Context())


def _belongs(ticket: object, context: Context) -> bool:
    return any(other is ticket for other in context.get(_tickets, ()))


# -- a thread for each overdue call: there are at most as many as the limit has places


def _look_after(ticket: object, running: list[StillRuns], then: Callable[[], None]) -> None:
    since = time.monotonic()
    while running:
        age = time.monotonic() - since
        time.sleep(min(max(age / 10, SHORTEST_PAUSE), LONGEST_PAUSE))
        if not any(runs() for runs in running):
            # The ended threads and tasks may have started other ones.
            running = [*_threads_left(ticket), *_threads_in(ticket)]
    try:
        then()
    except Exception:
        logger.exception("The place of a call that has ended could not be released")


_next_look = 0.0
"""The time from which the tasks of an event loop may be scanned again."""
