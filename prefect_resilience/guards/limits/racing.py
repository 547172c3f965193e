"""Several calls of one function beside each other: async ones in tasks, sync ones in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, NamedTuple

from prefect_resilience.base.drive import SLICE_SECONDS, Invoke, Steps
from prefect_resilience.guards.timeouts.overdue import belongs_to_none
from prefect_resilience.guards.timeouts.threads import Call, abandon, start_call


class RunnerOutcome(NamedTuple):
    """The end of a call: its number (from 1), and its value or its error."""

    number: int
    value: Any
    error: BaseException | None


class TaskRunners:
    """Async calls, each in a task."""

    def __init__(self, make: Callable[[], Awaitable[Any]], more: Callable[[], Awaitable[Any]]) -> None:
        self._make, self._more = make, more
        self._tasks: list[asyncio.Task[Any]] = []
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def started(self) -> int:
        return len(self._tasks)

    @property
    def running(self) -> int:
        return len(self._running)

    def start(self) -> None:
        task = asyncio.ensure_future(_await(self._more if self._tasks else self._make))
        self._tasks.append(task)
        self._running.add(task)

    def wait_for_ends(self, patience: float | None) -> Steps[list[RunnerOutcome]]:
        return (yield Invoke(self._wait_for_ends, (patience,)))

    async def _wait_for_ends(self, patience: float | None) -> list[RunnerOutcome]:
        done, self._running = await asyncio.wait(
            self._running, timeout=patience, return_when=asyncio.FIRST_COMPLETED
        )
        return [self._outcome(number, task) for number, task in enumerate(self._tasks, 1) if task in done]

    def _outcome(self, number: int, task: asyncio.Task[Any]) -> RunnerOutcome:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        return RunnerOutcome(number, None if error is not None else task.result(), error)

    async def end(self) -> None:
        """Cancel what is still running, and wait for its end."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


async def _await(make: Callable[[], Awaitable[Any]]) -> Any:
    return await make()


class ThreadRunners:
    """Sync calls, each in a thread."""

    def __init__(self, make: Callable[[], Any], more: Callable[[], Any]) -> None:
        self._make, self._more = make, more
        self._calls: list[Call] = []
        self._outcomes = SimpleQueue[RunnerOutcome]()
        self._ended: int = 0

    @property
    def started(self) -> int:
        return len(self._calls)

    @property
    def running(self) -> int:
        return len(self._calls) - self._ended

    def start(self) -> None:
        self._calls.append(start_call(self._run, self.started + 1))

    def _run(self, number: int) -> None:
        if number > 1:
            belongs_to_none()  # it has places of its own
        try:
            outcome = RunnerOutcome(number, (self._make if number == 1 else self._more)(), None)
        except BaseException as error:  # noqa: BLE001 it is raised again in the thread that waits
            self._outcomes.put(RunnerOutcome(number, None, error))
        else:
            self._outcomes.put(outcome)

    def wait_for_ends(self, patience: float | None) -> Steps[list[RunnerOutcome]]:
        yield from ()
        until = None if patience is None else monotonic() + patience
        while True:
            remaining = SLICE_SECONDS if until is None else min(until - monotonic(), SLICE_SECONDS)
            try:
                outcome = self._outcomes.get(timeout=max(remaining, 0.0))
            except Empty:
                if until is not None and monotonic() >= until:
                    return []
            else:
                self._ended += 1
                return [outcome]

    def end(self) -> list[Call]:
        """Abandon what is still running. Returns it: it is overdue until it ends."""
        return [call for call in self._calls if abandon(call)]


Runners = TaskRunners | ThreadRunners
"""Calls that run beside each other: the first is made by one function, the others by another.

`started` and `running` count them, `start` makes another one. `ended` gives those that have ended; nothing if
none did within `patience` seconds.
"""
