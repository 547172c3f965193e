"""Generators with a timeout for all chunks and one for the wait for each chunk."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Literal, TypeVar

from prefect_resilience.base.deadlines import CallDeadline, current_deadline
from prefect_resilience.base.drive import SLICE_SECONDS
from prefect_resilience.base.process import setting
from prefect_resilience.errors.exceptions import AttemptTimeout, DeadlineExceeded
from prefect_resilience.guards.timeouts.threads import (
    Call,
    abandon,
    logger,
    name_of,
    start_call,
    without_this_frame,
)

# An async generator with all its steps in one asyncio task, for any number of consumer tasks.
#
# A generator may hold a cancel scope or a task group over a `yield`. It must leave them in the task in which
# it entered them, and this package may not enter or leave any scope in between.

Step = Callable[[], Awaitable[Any]]
Outcome = tuple[Literal["yielded", "ended", "raised", "cancelled"], Any]

PATIENCE = 5.0
"""Seconds that a cancelled generator may take to clean up before it is abandoned."""


class OneTask:
    """Runs one async generator in a task that starts now. Needs a running loop.

    The task enters `around` before the first step, and leaves it after the generator was closed.
    """

    def __init__(
        self, source: AsyncGenerator[Any, Any], around: AbstractAsyncContextManager[Any] | None = None
    ) -> None:
        self._source = source
        self._around = around or nullcontext()
        self._asked: asyncio.Queue[tuple[Step, asyncio.Future[Outcome]] | None] = asyncio.Queue()
        self._busy = False
        self._over = False
        self._task = asyncio.get_running_loop().create_task(self._live())

    async def step(self, make: Step, seconds: float | None = None) -> Outcome | None:
        """The outcome of `make()`, such as the generator's `__anext__`; None if it is overdue.

        An overdue step is cancelled. If it still has an outcome within `PATIENCE` seconds, that is returned.
        """
        if self._over:
            return "cancelled", asyncio.CancelledError()
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait((make, outcome))
        self._busy = True
        if seconds is None:
            await outcome
        else:
            await asyncio.wait([outcome], timeout=seconds)
        if not outcome.done():
            self._task.cancel()
            await asyncio.wait([outcome], timeout=PATIENCE)
            if not outcome.done():
                return None
            self._busy = False
            if outcome.result()[0] == "cancelled":
                return None
            self._task.uncancel()
        self._busy = False
        return outcome.result()

    async def close(self, seconds: float | None = None) -> bool:
        """Close the generator. Returns whether it closed within `seconds`. Raises errors of its cleanup."""
        self._asked.put_nowait(None)
        if self._busy:
            await self._cancel()
        else:
            try:
                await asyncio.wait([self._task], timeout=seconds)
            except asyncio.CancelledError:
                await self._cancel()
                raise
        if not self._task.done():
            self._task.cancel()
            return False
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error
        return True

    async def _cancel(self) -> None:
        """Cancel the generator once, and give it time to clean up even if the reader is cancelled again."""
        import anyio

        self._task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self._task], timeout=PATIENCE)

    async def _live(self) -> None:
        async with self._around:
            await self._make_steps()

    async def _make_steps(self) -> None:
        early: Outcome | None = None
        try:
            while True:
                try:
                    request = await self._asked.get()
                except asyncio.CancelledError as cancelled:
                    # Cancelled between two steps: by a scope that the generator holds, or by the loop's end.
                    early = await _run_step(partial(self._source.athrow, cancelled))
                    if early[0] == "cancelled" or _is_ended_for_good():
                        return
                    continue
                if request is None:
                    return
                make, outcome = request
                result, early = early or await _run_step(make), None
                _answer(outcome, result)
                goes_on = result[0] == "yielded"
                # From Python 3.13 on an error's traceback leads to this frame, which must not hold the error
                del request, make, outcome, result
                if not goes_on:
                    return
        finally:
            self._over = True
            while not self._asked.empty():
                if (request := self._asked.get_nowait()) is not None:
                    _answer(request[1], ("cancelled", asyncio.CancelledError()))
            try:
                await self._source.aclose()
            except BaseException as error:
                if not _is_closing(error):
                    raise


async def _run_step(make: Step) -> Outcome:
    try:
        return "yielded", await make()
    except StopAsyncIteration:
        return "ended", None
    except asyncio.CancelledError as error:
        return "cancelled", error
    except BaseException as error:  # noqa: BLE001 - it is raised where the step was asked for
        return "raised", without_this_frame(error)


def _is_closing(error: BaseException) -> bool:
    """Whether it is GeneratorExit, or a group of them, as from a task group that was open at the `yield`."""
    inside: Sequence[BaseException] | None = getattr(error, "exceptions", None)
    return isinstance(error, GeneratorExit) if inside is None else all(map(_is_closing, inside))


def _is_ended_for_good() -> bool:
    """Whether this task was cancelled for good; cancel scopes withdraw their cancellations."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _answer(outcome: asyncio.Future[Outcome], result: Outcome) -> None:
    if not outcome.done():
        outcome.set_result(result)


Y = TypeVar("Y")
S = TypeVar("S")
R = TypeVar("R")

Order = tuple[Literal["send", "throw", "close"], Any]
Reply = tuple[Literal["yielded", "returned", "raised"], Any]


class _Allowance:
    """The remaining seconds: `total` counts only waiting, and `idle` starts again with each step."""

    __slots__ = ("ended", "idle", "left", "limit", "name", "total")

    def __init__(
        self, total: float | None, idle: float | None, name: str, limit: CallDeadline | None
    ) -> None:
        self.total = total
        self.idle = idle
        self.left = inf if total is None else total
        self.name = name
        self.limit = limit
        self.ended = False
        """Whether the generator has returned or raised."""

    def next_step(self) -> tuple[float, AttemptTimeout]:
        """Seconds that the next step may take, and the error to raise when it takes longer."""
        limit = self.limit
        if limit is not None and (most := limit.remaining()) <= min(self.left, self.idle or inf):
            return max(most, 0.0), DeadlineExceeded(limit.seconds, limit.set_at, self.name)
        if self.idle is not None and self.idle <= self.left:
            return self.idle, AttemptTimeout(self.idle, f"the wait for the next chunk of {self.name}")
        return self.left, AttemptTimeout(self.total or 0.0, f"the wait for all chunks of {self.name}")

    def spent(self, since: float) -> None:
        self.left = max(self.left - (monotonic() - since), 0.0)


def iterate_with_deadline(
    generator: Generator[Y, S, R],
    total: float | None = None,
    idle: float | None = None,
    limit: CallDeadline | None = None,
) -> Generator[Y, S, R]:
    """The same generator, with each step bound to `idle` seconds and all steps to `total` and the deadline.

    `total` counts the seconds spent waiting for the generator, not what the consumer does in between.
    All steps run on one thread of their own and in one copy of the context. `send`, `throw`, `close` and
    the returned value pass through. A generator that is blocked at its timeout cannot be closed from outside:
    it goes on in its thread, and is closed there as soon as it yields.

    Raises `AttemptTimeout`, and any exception of the generator.
    """
    allowance = _Allowance(total, idle, name_of(generator), limit)
    orders: SimpleQueue[Order] = SimpleQueue()
    replies: SimpleQueue[Reply] = SimpleQueue()
    order: Order = ("send", None)
    producer: Call | None = None
    try:
        with _around(limit):
            producer = start_call(_produce, generator, orders, replies)
        while True:
            kind, value = _ask(orders, replies, order, allowance)
            if kind == "returned":
                return value
            try:
                order = ("send", (yield value))
            except GeneratorExit:
                # Close it on its own thread, so that its `finally` has ended when `close()` returns.
                allowance.limit = None
                if not sys.is_finalizing():  # else that thread is gone
                    _ask(orders, replies, ("close", None), allowance)
                raise
            except BaseException as error:  # noqa: BLE001 the generator gets it
                order = ("throw", error)
    finally:
        order = ("close", None)  # do not keep an error: frame and traceback would form a cycle
        orders.put(order)  # ends the thread, and closes a generator that yields late
        if producer is not None and not allowance.ended:
            abandon(producer)


def _around(limit: CallDeadline | None) -> AbstractContextManager[None]:
    return nullcontext() if limit is None else setting(current_deadline, limit)


def _produce(
    generator: Generator[Any, Any, Any], orders: SimpleQueue[Order], replies: SimpleQueue[Reply]
) -> None:
    """The generator's side: carry out one order after the other until the generator has ended."""
    while True:
        kind, value = orders.get()
        try:
            if kind == "close":
                generator.close()
                return replies.put(("returned", None))
            replies.put(("yielded", (generator.throw if kind == "throw" else generator.send)(value)))
        except StopIteration as stop:
            return replies.put(("returned", stop.value))
        except BaseException as error:  # noqa: BLE001 it is raised again on the consumer's side
            return replies.put(("raised", without_this_frame(error)))
        finally:
            del value  # this thread keeps no reference while it waits


def _ask(
    orders: SimpleQueue[Order], replies: SimpleQueue[Reply], order: Order, allowance: _Allowance
) -> Reply:
    most, too_late = allowance.next_step()
    since = monotonic()
    if most > 0:
        orders.put(order)
    while (remaining := since + most - monotonic()) > 0:
        try:
            reply = replies.get(timeout=min(remaining, SLICE_SECONDS))
        except Empty:
            continue
        allowance.spent(since)
        allowance.ended = reply[0] != "yielded"
        if reply[0] != "raised":
            return reply
        try:
            raise reply[1]
        finally:
            del reply, order  # else the error's traceback would hold the error
    allowance.spent(since)
    if most > 0:
        logger.warning(
            "%s and was abandoned: the generator is still running in its thread and is closed when it yields",
            too_late,
        )
    raise too_late


async def aiterate_with_deadline(
    agen: AsyncGenerator[Y, S],
    total: float | None = None,
    idle: float | None = None,
    limit: CallDeadline | None = None,
    *,
    around: AbstractAsyncContextManager[Any] | None = None,
) -> AsyncGenerator[Y, S]:
    """The same async generator, each step bound to `idle` seconds, all to `total` and the deadline.

    `total` counts the seconds spent waiting for the generator, not what the consumer does in between.
    All steps run in one asyncio task of their own and in one copy of the context, so that the generator may
    hold cancel scopes and task groups over a `yield`. If its own scope is cancelled between two steps, the
    next step raises that. An overdue step is cancelled, and the generator is closed. `asend`, `athrow` and
    `aclose` pass through. `around` is entered and left in that task.

    Raises `AttemptTimeout`, and any exception of the generator.
    """
    allowance = _Allowance(total, idle, name_of(agen), limit)
    with _around(limit):
        life = OneTask(agen, around)
    make: Callable[[], Awaitable[Y]] = agen.__anext__
    try:
        while True:
            kind, value = await _astep(life, make, allowance)
            if kind == "ended":
                return
            if kind != "yielded":
                try:
                    raise value
                finally:
                    del value  # else the error's traceback would hold the error
            try:
                make = partial(agen.asend, (yield value))
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 the generator gets it
                make = partial(agen.athrow, error)
    finally:
        rest, _ = allowance.next_step()
        if not await life.close(None if rest == inf else max(rest, PATIENCE)):
            logger.warning("%s was cancelled while it cleaned up", allowance.name)


async def _astep(life: OneTask, make: Callable[[], Awaitable[Any]], allowance: _Allowance) -> Outcome:
    most, too_late = allowance.next_step()
    if most <= 0:
        raise too_late
    since = monotonic()
    try:
        outcome = await life.step(make, None if most == inf else most)
    finally:
        allowance.spent(since)
    if outcome is None:
        raise too_late
    return outcome
