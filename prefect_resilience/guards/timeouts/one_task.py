"""An async generator whose steps are all made in one asyncio task, whoever asks for them.

What a generator holds over a `yield`, such as a cancel scope or a task group, must be left in the task that
it was entered in, and nothing of ours may be entered or left in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, Literal

import anyio

from prefect_resilience.guards.timeouts.threads import without_this_frame

Step = Callable[[], Awaitable[Any]]
Outcome = tuple[Literal["yielded", "ended", "raised", "cancelled"], Any]

PATIENCE = 5.0
"""Seconds that a generator which was cancelled may clean up before it is left alone."""


class OneTask:
    """The life of one async generator, in a task that begins now. Needs a running loop.

    `around` is entered before the first step, in that task, and left after the generator was closed.
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
        """What `make()`, such as the generator's `__anext__`, comes to; None when it is overdue.

        A step that is overdue is cancelled. If it comes to something nevertheless, within `PATIENCE` seconds,
        that is handed on.
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
            task: Any = self._task
            if hasattr(task, "uncancel"):  # from Python 3.11 on
                task.uncancel()
        self._busy = False
        return outcome.result()

    async def close(self, seconds: float | None = None) -> bool:
        """Close the generator; whether that was done within `seconds`. Raises what its cleaning up raises."""
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
        """Cancel the generator once, which leaves it time to clean up whatever becomes of the reader."""
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
                    asked = await self._asked.get()
                except asyncio.CancelledError as cancelled:
                    # Between two steps: by a scope that the generator holds, or by whoever ends the loop.
                    early = await _made(partial(self._source.athrow, cancelled))
                    if early[0] == "cancelled" or _asked_to_end():
                        return
                    continue
                if asked is None:
                    return
                make, outcome = asked
                result, early = early or await _made(make), None
                _answer(outcome, result)
                if result[0] != "yielded":
                    return
        finally:
            self._over = True
            while not self._asked.empty():
                if (asked := self._asked.get_nowait()) is not None:
                    _answer(asked[1], ("cancelled", asyncio.CancelledError()))
            try:
                await self._source.aclose()
            except BaseException as error:
                if not _is_closing(error):
                    raise


async def _made(make: Step) -> Outcome:
    try:
        return "yielded", await make()
    except StopAsyncIteration:
        return "ended", None
    except asyncio.CancelledError as error:
        return "cancelled", error
    except BaseException as error:  # noqa: BLE001 - it is raised where the step was asked for
        return "raised", without_this_frame(error)


def _is_closing(error: BaseException) -> bool:
    """Whether it is what closes a generator, as a task group raises it that was open at the `yield`."""
    inside: Sequence[BaseException] | None = getattr(error, "exceptions", None)
    return isinstance(error, GeneratorExit) if inside is None else all(map(_is_closing, inside))


def _asked_to_end() -> bool:
    """Whether this task was cancelled by somebody who has not taken it back, as cancel scopes do."""
    task: Any = asyncio.current_task()
    return hasattr(task, "cancelling") and task.cancelling() > 0  # from Python 3.11 on


def _answer(outcome: asyncio.Future[Outcome], result: Outcome) -> None:
    if not outcome.done():
        outcome.set_result(result)
