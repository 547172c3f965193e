"""The replay that the page has started: one at a time, with its progress in the page."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from prefect_resilience.durable.letters.report import LetterOutcome
from prefect_resilience.errors.exceptions import ConfigurationError, ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.dashboard.board import Row
from prefect_resilience.operations.dashboard.edge.orders import Desk, ReplayOrder, Said
from prefect_resilience.operations.dashboard.edge.reading import Hub


class ReplayStopped(ResilienceError):
    """Somebody stopped a replay between two letters; those that were not replayed wait on."""


class Replays:
    """Starts replays in a thread and shows in the hub how far they are, as `replay` in the summary."""

    def __init__(self, desk: Desk, hub: Hub) -> None:
        self._desk = desk
        self._hub = hub
        self._task: asyncio.Task[None] | None = None
        self._stopping = threading.Event()

    async def start(self, order: ReplayOrder) -> Said:
        """Start a replay, and say so; raises ConfigurationError while another one goes on."""
        if self._task is not None and not self._task.done():
            raise ConfigurationError("A replay goes on already: wait for its end, or stop it")
        self._stopping.clear()
        self._show(order, done=0, total=None)
        self._task = asyncio.create_task(self._run(order))
        return {"said": "The replay has begun"}

    async def stop(self) -> Said:
        """End the replay that goes on after the letter that it is at."""
        if self._task is None or self._task.done():
            raise ConfigurationError("No replay goes on")
        self._stopping.set()
        return {"said": "The replay ends after this letter"}

    def end(self) -> None:
        """The dashboard ends, and a replay after the letter that it is at."""
        self._stopping.set()

    async def _run(self, order: ReplayOrder) -> None:
        loop = asyncio.get_running_loop()

        def told(done: int, total: int, outcome: LetterOutcome) -> None:
            loop.call_soon_threadsafe(lambda: self._show(order, done=done, total=total))
            if self._stopping.is_set():
                raise ReplayStopped(f"Stopped after {done} of {total} letters")

        said: dict[str, Any]
        try:
            said = await asyncio.to_thread(self._desk.replay, order, told)
        except Exception as error:  # noqa: BLE001 - whoever pressed the button is told, whatever it is
            said = {"said": redact(str(error) or type(error).__name__)[:1_000], "well": False}
        self._show(order, said=said["said"], well=said["well"], ended=True)
        self._hub.refresh()

    def _show(self, order: ReplayOrder, **how: Any) -> None:
        row: Row = {"letter": order.letter, "task": order.task, "ended": False, **how}
        self._hub.show("replay", row)
