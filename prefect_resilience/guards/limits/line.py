"""Lines of callers who wait for a place in this process, served in order of arrival.

A line is known by its key and exists only while somebody is in it. Threads and tasks of any event loop stand
in the same line; each is woken in its own way.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from functools import partial

from prefect_resilience.base.drive import SLICE_SECONDS, Sequence, Wait, waited_for
from prefect_resilience.guards.limits.pace import for_place

LOOK_SECONDS = 5.0
"""How often a caller who waits without a `max_wait` looks whether overdue calls hold the places."""


class Line:
    """`taken` places of `limit`, `overdue` of them by overdue calls, and who waits for the next one."""

    __slots__ = ("key", "limit", "overdue", "stuck_since", "taken", "waiting")

    def __init__(self, key: str) -> None:
        self.key: str = key
        self.limit: int = 1
        self.taken: int = 0
        self.overdue: int = 0
        self.stuck_since: float | None = None
        self.waiting: dict[Place, None] = {}

    def note_stuck(self) -> None:
        stuck = self.overdue >= self.limit
        self.stuck_since = (self.stuck_since or time.monotonic()) if stuck else None

    def stuck(self) -> float | None:
        """Seconds since every place is held by an overdue call; None when that is not so."""
        since = self.stuck_since
        return None if since is None else time.monotonic() - since


class Place:
    """A place in a line: waited for, then held, then left."""

    __slots__ = ("_called", "_left", "_line", "_overdue", "_signal", "held")

    def __init__(self, line: Line) -> None:
        self._line = line
        self._called: Callable[[], None] | None = None
        self._signal: threading.Lock | None = None
        self._left = False
        self._overdue = False
        self.held: bool = False

    def leave(self) -> None:
        """Give the place to the next one, or stop waiting for it; a second time does nothing."""
        with _lock:
            if self._left:
                return
            self._left = True
            if self.held:
                self._line.taken -= 1
                self._line.overdue -= self._overdue
            else:
                self._line.waiting.pop(self, None)
            woken = _serve(self._line)
        _wake(woken)

    def overdue(self) -> None:
        """The attempt is over and its call still runs: the place stays taken."""
        with _lock:
            if not self._left and not self._overdue:
                self._overdue = True
                self._line.overdue += 1
                self._line.note_stuck()

    def gave_up(self) -> bool:
        """Stop waiting; False when the place had just been given, and so is held."""
        with _lock:
            if self.held:
                return False
            self.leave()
            return True

    def block(self, seconds: float) -> None:
        """Wait in this thread until the place is held, for so many seconds at most."""
        with _lock:
            if self.held:
                return
            signal = self._signal = threading.Lock()
            signal.acquire()
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if signal.acquire(timeout=min(left, SLICE_SECONDS)):
                return

    async def awaited(self, seconds: float) -> None:
        """The same, on an event loop."""
        loop = asyncio.get_running_loop()
        called: asyncio.Future[None] = loop.create_future()

        def settle() -> None:
            if not called.done():
                called.set_result(None)

        with _lock:
            if self.held:
                return
            self._called = lambda: loop.call_soon_threadsafe(settle) and None
        await asyncio.wait((called,), timeout=seconds)

    def wake(self) -> None:
        """Tell the waiting one that the place is held. Raises RuntimeError when its event loop is closed."""
        if self._signal is not None:
            self._signal.release()
        if self._called is not None:
            self._called()


def stood_in_line(key: str, limit: int, max_wait: float | None) -> Sequence[Place | None]:
    """A place that is held, or None when none became free in time (see `patience.for_place`).

    Of two callers with different limits the later one's counts: a policy that was edited holds at once.
    """
    with _lock:
        line = _lines.get(key)
        if line is None:
            line = _lines[key] = Line(key)
        line.limit = limit
        place = Place(line)
        if line.taken < limit and not line.waiting:
            line.taken += 1
            place.held = True
            line.note_stuck()
            return place
        line.waiting[place] = None
        woken = _serve(line)
    began = time.monotonic()
    try:
        _wake(woken)
        while not place.held:
            left = for_place(max_wait, time.monotonic() - began, line.stuck())
            if left <= 0:
                return None if place.gave_up() else place
            turn = left if max_wait is not None else min(left, LOOK_SECONDS)
            yield from waited_for(Wait(partial(place.block, turn), partial(place.awaited, turn)))
        return place
    except BaseException:
        place.leave()
        raise


def overdue_places(key: str) -> int:
    """How many places of the line are held by overdue calls."""
    with _lock:
        line = _lines.get(key)
        return 0 if line is None else line.overdue


def _serve(line: Line) -> list[Place]:
    """Give free places to those who have waited longest. Called with the lock held."""
    woken: list[Place] = []
    while line.waiting and line.taken < line.limit:
        line.taken += 1
        place = next(iter(line.waiting))
        del line.waiting[place]
        place.held = True
        woken.append(place)
    line.note_stuck()
    if not line.waiting and not line.taken and _lines.get(line.key) is line:
        del _lines[line.key]
    return woken


def _wake(places: list[Place]) -> None:
    for place in places:
        try:
            place.wake()
        except RuntimeError:  # its event loop was closed while it waited
            place.leave()


_lines: dict[str, Line] = {}
# Re-entrant: the garbage collector may end a caller's coroutine, which leaves its place, at any allocation.
_lock = threading.RLock()


def _forget() -> None:
    """A forked child has none of its parent's callers, and cannot know who held the lock."""
    global _lock
    _lock = threading.RLock()
    _lines.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
