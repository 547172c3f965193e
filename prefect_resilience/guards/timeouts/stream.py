"""Generators with a deadline for the whole and for the wait before each chunk."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Literal, TypeVar

from prefect_resilience.errors.exceptions import AttemptTimeout
from prefect_resilience.guards.timeouts.one_task import PATIENCE, OneTask, Outcome
from prefect_resilience.guards.timeouts.threads import (
    SLICE_SECONDS,
    Call,
    abandon,
    logger,
    start_call,
    without_this_frame,
)

Y = TypeVar("Y")
S = TypeVar("S")
R = TypeVar("R")

Order = tuple[Literal["send", "throw", "close"], Any]
Reply = tuple[Literal["yielded", "returned", "raised"], Any]


class _Allowance:
    """What is left of `total`, which counts only waiting, and of `idle`, which begins anew each time."""

    __slots__ = ("ended", "idle", "left", "name", "total")

    def __init__(self, total: float | None, idle: float | None, name: str) -> None:
        self.total = total
        self.idle = idle
        self.left = inf if total is None else total
        self.name = name
        self.ended = False
        """Whether the generator has returned or raised."""

    def next_step(self) -> tuple[float, AttemptTimeout]:
        """Seconds that the next step may take, and the error to raise when it takes longer."""
        if self.idle is not None and self.idle <= self.left:
            return self.idle, AttemptTimeout(self.idle, f"the wait for the next chunk of {self.name}")
        return self.left, AttemptTimeout(self.total or 0.0, f"the wait for all chunks of {self.name}")

    def spent(self, since: float) -> None:
        self.left = max(self.left - (monotonic() - since), 0.0)


def iterate_with_deadline(
    generator: Generator[Y, S, R], total: float | None, idle: float | None, *, what: str | None = None
) -> Generator[Y, S, R]:
    """The same generator, each step of which is held to `idle` seconds, and all of them to `total`.

    `total` counts the seconds spent waiting for the generator, not what the consumer does in between.
    All steps run on one thread of their own and in one copy of the context. `send`, `throw`, `close` and
    the returned value pass through. A generator that is blocked when its time is over cannot be closed
    from outside: it goes on in its thread, and is closed there as soon as it yields.

    Raises `AttemptTimeout`, and whatever the generator raises.
    """
    allowance = _Allowance(total, idle, what or _name(generator))
    orders: SimpleQueue[Order] = SimpleQueue()
    replies: SimpleQueue[Reply] = SimpleQueue()
    order: Order = ("send", None)
    producer: Call | None = None
    try:
        producer = start_call(_produce, generator, orders, replies)
        while True:
            kind, value = _ask(orders, replies, order, allowance)
            if kind == "returned":
                return value
            try:
                order = ("send", (yield value))
            except GeneratorExit:
                # On its own thread, so that its `finally` is over when `close()` returns.
                if not sys.is_finalizing():  # else that thread is gone
                    _ask(orders, replies, ("close", None), allowance)
                raise
            except BaseException as error:  # noqa: BLE001 the generator decides what becomes of it
                order = ("throw", error)
    finally:
        order = ("close", None)  # and no error, which would hold itself through this frame
        orders.put(order)  # ends the thread, and a generator that comes back late
        if producer is not None and not allowance.ended:
            abandon(producer)


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
            del value  # this thread holds nothing while it waits


def _ask(
    orders: SimpleQueue[Order], replies: SimpleQueue[Reply], order: Order, allowance: _Allowance
) -> Reply:
    limit, too_late = allowance.next_step()
    since = monotonic()
    if limit > 0:
        orders.put(order)
    while (left := since + limit - monotonic()) > 0:
        try:
            reply = replies.get(timeout=min(left, SLICE_SECONDS))
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
    if limit > 0:
        logger.warning("%s, and is still running in its thread, where it is closed when it yields", too_late)
    raise too_late


async def aiterate_with_deadline(
    agen: AsyncGenerator[Y, S],
    total: float | None = None,
    idle: float | None = None,
    *,
    what: str | None = None,
    around: AbstractAsyncContextManager[Any] | None = None,
) -> AsyncGenerator[Y, S]:
    """The same async generator, each step of which is held to `idle` seconds, and all of them to `total`.

    `total` counts the seconds spent waiting for the generator, not what the consumer does in between.
    All steps run in one asyncio task of their own and in one copy of the context, so that the generator may
    hold cancel scopes and task groups over a `yield`. A scope of its own that ends while the consumer is at
    work is heard of at the next step. A step that is overdue is cancelled, and the generator is closed.
    `asend`, `athrow` and `aclose` pass through. `around` is entered and left in that task.

    Raises `AttemptTimeout`, and whatever the generator raises.
    """
    allowance = _Allowance(total, idle, what or _name(agen))
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
            except BaseException as error:  # noqa: BLE001 the generator decides what becomes of it
                make = partial(agen.athrow, error)
    finally:
        limit, _ = allowance.next_step()
        if not await life.close(None if limit == inf else max(limit, PATIENCE)):
            logger.warning("%s was cancelled while it cleaned up", allowance.name)


async def _astep(life: OneTask, make: Callable[[], Awaitable[Any]], allowance: _Allowance) -> Outcome:
    limit, too_late = allowance.next_step()
    since = monotonic()
    try:
        outcome = await life.step(make, None if limit == inf else limit)
    finally:
        allowance.spent(since)
    if outcome is None:
        raise too_late
    return outcome


def _name(generator: Any) -> str:
    return repr(getattr(generator, "__name__", None) or type(generator).__name__)
