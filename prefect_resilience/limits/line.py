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
from contextlib import suppress

from prefect_resilience.drive import Sequence
from prefect_resilience.limits.waiting import SLICE_SECONDS, Wait, waited_for


class Line:
    """`taken` places of `limit`, and who waits for the next one."""

    __slots__ = ("key", "limit", "taken", "waiting")

    def __init__(self, key: str) -> None:
        self.key: str = key
        self.limit: int = 1
        self.taken: int = 0
        self.waiting: dict[Place, None] = {}


class Place:
    """A place in a line: waited for, then held, then left."""

    __slots__ = ("_called", "_left", "_line", "_signal", "held")

    def __init__(self, line: Line) -> None:
        self._line = line
        self._called: Callable[[], None] | None = None
        self._signal = threading.Lock()
        self._signal.acquire()
        self._left = False
        self.held: bool = False

    def leave(self) -> None:
        """Give the place to the next one, or stop waiting for it; a second time does nothing."""
        with _lock:
            if self._left:
                return
            self._left = True
            if self.held:
                self._line.taken -= 1
            else:
                self._line.waiting.pop(self, None)
            woken = _serve(self._line)
        _wake(woken)

    def gave_up(self) -> bool:
        """Stop waiting; False when the place had just been given, and so is held."""
        with _lock:
            if self.held:
                return False
            self.leave()
            return True

    def block(self, seconds: float | None) -> None:
        """Wait in this thread until the place is held, for so many seconds at most."""
        until = float("inf") if seconds is None else time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._signal.acquire(timeout=min(left, SLICE_SECONDS)):
                return

    async def awaited(self, seconds: float | None) -> None:
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
        with suppress(RuntimeError):
            self._signal.release()
        if self._called is not None:
            self._called()


def stood_in_line(key: str, limit: int, seconds: float | None) -> Sequence[Place | None]:
    """A place that is held, or None when none became free within `seconds` (None: wait for ever).

    Of two callers with different limits the later one's counts: a policy that was edited holds at once.
    """
    with _lock:
        line = _lines.setdefault(key, Line(key))
        line.limit = limit
        place = Place(line)
        line.waiting[place] = None
        woken = _serve(line)
    _wake(woken)
    if place.held:
        return place
    try:
        if seconds is None or seconds > 0:
            yield from waited_for(Wait(lambda: place.block(seconds), lambda: place.awaited(seconds)))
        return None if place.gave_up() else place
    except BaseException:
        place.leave()
        raise


def _serve(line: Line) -> list[Place]:
    """Give free places to those who have waited longest. Called with the lock held."""
    woken: list[Place] = []
    while line.waiting and line.taken < line.limit:
        line.taken += 1
        place = next(iter(line.waiting))
        del line.waiting[place]
        place.held = True
        woken.append(place)
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
