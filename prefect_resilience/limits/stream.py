"""Generators with a deadline for the whole and for the wait before each chunk."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Literal, TypeVar

import anyio

from prefect_resilience.errors.exceptions import AttemptTimeout
from prefect_resilience.limits.threads import SLICE_SECONDS, logger, start_call, without_this_frame

Y = TypeVar("Y")
S = TypeVar("S")
R = TypeVar("R")

CLOSE_SECONDS = 5.0
"""How long an async generator may clean up after its time is over."""

Order = tuple[Literal["send", "throw", "close"], Any]
Reply = tuple[Literal["yielded", "returned", "raised"], Any]


class _Allowance:
    """What is left of `total`, which counts only waiting, and of `idle`, which begins anew each time."""

    __slots__ = ("idle", "left", "name", "total")

    def __init__(self, total: float | None, idle: float | None, name: str) -> None:
        self.total = total
        self.idle = idle
        self.left = float("inf") if total is None else total
        self.name = name

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
    try:
        start_call(_produce, generator, orders, replies)
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
    agen: AsyncGenerator[Y, S], total: float | None, idle: float | None, *, what: str | None = None
) -> AsyncGenerator[Y, S]:
    """The same async generator, each step of which is held to `idle` seconds, and all of them to `total`.

    `total` counts the seconds spent waiting for the generator, not what the consumer does in between.
    A step that is overdue is cancelled, and the generator is closed. `asend`, `athrow` and `aclose` pass
    through.

    Raises `AttemptTimeout`, and whatever the generator raises.
    """
    allowance = _Allowance(total, idle, what or _name(agen))
    step: Callable[[], Awaitable[Y]] = agen.__anext__
    try:
        while True:
            try:
                chunk = await _astep(step, allowance)
            except StopAsyncIteration:
                return
            try:
                step = partial(agen.asend, (yield chunk))
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 the generator decides what becomes of it
                step = partial(agen.athrow, error)
    finally:
        await _aclose(agen, allowance)


async def _astep(step: Callable[[], Awaitable[Y]], allowance: _Allowance) -> Y:
    limit, too_late = allowance.next_step()
    since = monotonic()
    try:
        with anyio.move_on_after(limit):
            return await step()
    finally:
        allowance.spent(since)
    raise too_late


async def _aclose(agen: AsyncGenerator[Any, Any], allowance: _Allowance) -> None:
    """Close the generator, whose cleaning up may take one more step's time, and `CLOSE_SECONDS` at least."""
    limit, _ = allowance.next_step()
    with anyio.move_on_after(max(limit, CLOSE_SECONDS)) as scope:
        await agen.aclose()
    if scope.cancelled_caught:
        logger.warning("%s was cancelled while it cleaned up", allowance.name)


def _name(generator: Any) -> str:
    return repr(getattr(generator, "__name__", None) or type(generator).__name__)
