"""Waiting in this process: the pace of a rate limit, how long a caller waits, and lines for a place.

Lines are served in order of arrival. A line has a key and exists only while it has callers. Threads and tasks
of any event loop wait in the same line.
"""

from __future__ import annotations

import threading
import time
from time import monotonic
from typing import NamedTuple

from prefect_resilience.base.drive import Signal, Steps
from prefect_resilience.base.process import per_process

# How long a call has to wait: the generic cell rate algorithm, as pure functions.
#
# The algorithm is from ATM's traffic contract (ITU-T I.371, "virtual scheduling"). Its whole state is one
# number, the theoretical arrival time: the time of the next call if all calls were evenly spaced. A burst
# lets calls come earlier than that. Nothing here reads a clock: `now` is in seconds of any monotonic clock.

FRESH = float("-inf")
"""The state before the first call."""


class Pace(NamedTuple):
    """One call in `interval` seconds, and up to `burst` calls at once after a time without calls.

    In any `t` seconds there are at most `burst - 1 + ceil(t / interval)` calls: with a burst of 1, never more
    than the rate.
    """

    interval: float
    burst: int = 1


def wait_for(pace: Pace, state: float, now: float, ahead: int = 0) -> float:
    """Seconds until a call is allowed after `ahead` other calls, each made as soon as it is allowed."""
    next_at = max(state, now) + ahead * pace.interval
    return max(0.0, next_at - (pace.burst - 1) * pace.interval - now)


def after_call(pace: Pace, state: float, now: float) -> float:
    """The state after a call at `now`; the call must be allowed then."""
    return max(state, now) + pace.interval


MOST_KEYS = 1024
"""Beyond this many keys, the ones that would delay no call are dropped."""


def wait_of(key: str, pace: Pace, ahead: int = 0) -> float:
    """Seconds until a caller may call, with `ahead` other callers before it."""
    with _lines.lock:
        return wait_for(pace, _lines.rates.get(key, FRESH), monotonic(), ahead)


def in_line(key: str) -> int:
    """The number of callers that hold a place or wait for one."""
    with _lines.lock:
        line = _lines.by_key.get(key)
        return 0 if line is None else line.taken + len(line.waiting)


def start(key: str, pace: Pace) -> None:
    """The first in line makes a call now."""
    with _lines.lock:
        now, rates = monotonic(), _lines.rates
        if key not in rates and len(rates) >= MOST_KEYS:
            for other in [other for other, state in rates.items() if state <= now]:
                del rates[other]
        rates[key] = after_call(pace, rates.get(key, FRESH), now)


def start_if_free(key: str, pace: Pace) -> bool:
    """Make a call now if the line is empty and the pace allows it. Returns whether it was made."""
    with _lines.lock:
        if key in _lines.by_key or wait_of(key, pace) > 0:
            return False
        start(key, pace)
        return True


# How long a caller of a limit waits: for a place, and for a server that cannot answer just now.
#
# Pure functions, in seconds. `max_wait` is the limit's option; None waits without a limit, except for the two
# bounds below.

FOR_EVER = float("inf")

OVERDUE_SECONDS = 60.0
"""The wait without a `max_wait` while every place is held by an overdue call, which may never end."""

SERVER_SECONDS = 60.0
"""The wait without a `max_wait` for a server that does not answer."""

LEAST_SERVER_SECONDS = 2.0
"""The shortest wait for a server: a busy server may reject one request and answer the next."""


def for_place(max_wait: float | None, waited: float, stuck: float | None) -> float:
    """Seconds to continue waiting for a place; 0 or less: do not wait.

    waited: since the caller came. stuck: since every place is held by an overdue call; None otherwise.

    Example:
        >>> for_place(5, 2, None), for_place(None, 100, None), for_place(None, 100, 10)
        (3, inf, 50.0)
    """
    if max_wait is not None:
        return max_wait - waited
    return FOR_EVER if stuck is None else OVERDUE_SECONDS - min(waited, stuck)


def for_server(max_wait: float | None, waited: float, silent: float) -> float:
    """Seconds to continue waiting for the server before the limit holds in this process alone.

    waited: since the caller came. silent: since its first request.

    Example:
        >>> for_server(5, 1, 1), for_server(0, 0, 0.5), for_server(None, 500, 10)
        (4, 1.5, 50.0)
    """
    if max_wait is None:
        return SERVER_SECONDS - silent
    return max(LEAST_SERVER_SECONDS - silent, max_wait - waited)


LOOK_SECONDS = 5.0
"""How often a caller without a `max_wait` checks whether overdue calls hold all places."""


class WaitingLine:
    """The taken places of a limit, the ones held by overdue calls, and the callers that wait."""

    __slots__ = ("key", "limit", "overdue", "stuck_since", "taken", "waiting")

    def __init__(self, key: str) -> None:
        self.key: str = key
        self.limit: int = 1
        self.taken: int = 0
        self.overdue: int = 0
        self.stuck_since: float | None = None
        self.waiting: dict[HeldPlace, None] = {}

    def note_stuck(self) -> None:
        stuck = self.overdue >= self.limit
        self.stuck_since = (self.stuck_since or time.monotonic()) if stuck else None

    def stuck(self) -> float | None:
        """Seconds since every place is held by an overdue call; None otherwise."""
        since = self.stuck_since
        return None if since is None else time.monotonic() - since


class HeldPlace:
    """A place in a line: waited for, then held, then released."""

    __slots__ = ("_left", "_line", "_overdue", "held", "signal")

    def __init__(self, line: WaitingLine) -> None:
        self._line = line
        self.signal: Signal | None = None
        """Wakes a caller that waits, when the place is held."""
        self._left = False
        self._overdue = False
        self.held: bool = False

    def leave(self) -> None:
        """Give the place to the next caller, or stop waiting for it; a second call does nothing."""
        with _lines.lock:
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

    def in_use(self) -> int:
        """How many places of the line are taken."""
        return self._line.taken

    def allow(self, limit: int) -> None:
        """Change the line's number of places. A smaller number takes no place away."""
        if limit == self._line.limit:
            return
        with _lines.lock:
            self._line.limit = limit
            woken = _serve(self._line)
        _wake(woken)

    def overdue(self) -> None:
        """Keep the place taken: the attempt has ended, but its call still runs."""
        with _lines.lock:
            if not self._left and not self._overdue:
                self._overdue = True
                self._line.overdue += 1
                self._line.note_stuck()

    def gave_up(self) -> bool:
        """Stop waiting; False if the place was granted just before, and so is held."""
        with _lines.lock:
            if self.held:
                return False
            self.leave()
            return True


class _Lines:
    """The lines and the rates of this process, by their keys."""

    def __init__(self) -> None:
        self.by_key: dict[str, WaitingLine] = {}
        self.rates: dict[str, float] = {}
        # Re-entrant: the garbage collector may end a coroutine, which leaves its place, at any time.
        self.lock = threading.RLock()


_lines = per_process(_Lines)


def stand_in_line(key: str, limit: int, max_wait: float | None) -> Steps[HeldPlace | None]:
    """A held place, or None if no place became free in time (see `for_place`).

    If two callers give different limits, the later one counts, so an edited policy applies at once.
    """
    place: HeldPlace | None = None
    try:
        with _lines.lock:
            line = _lines.by_key.get(key)
            if line is None:
                line = _lines.by_key[key] = WaitingLine(key)
            line.limit = limit
            place = HeldPlace(line)
            line.waiting[place] = None
            woken = _serve(line)
            signal = place.signal = None if place.held else Signal()
        began = time.monotonic()
        _wake(woken)
        while signal is not None and not place.held:
            remaining = for_place(max_wait, time.monotonic() - began, line.stuck())
            if remaining <= 0:
                return None if place.gave_up() else place
            turn = remaining if max_wait is not None else min(remaining, LOOK_SECONDS)
            yield from signal.wait(turn)
        return place
    except BaseException:
        if place is not None:
            place.leave()
        raise


def overdue_places(key: str) -> int:
    """How many places of the line are held by overdue calls."""
    with _lines.lock:
        line = _lines.by_key.get(key)
        return 0 if line is None else line.overdue


def _serve(line: WaitingLine) -> list[HeldPlace]:
    """Give free places to the callers that have waited longest. Called with the lock held."""
    woken: list[HeldPlace] = []
    while line.waiting and line.taken < line.limit:
        place = next(iter(line.waiting))
        del line.waiting[place]
        line.taken += 1
        place.held = True
        woken.append(place)
    line.note_stuck()
    if not line.waiting and not line.taken and _lines.by_key.get(line.key) is line:
        del _lines.by_key[line.key]
    return woken


def _wake(places: list[HeldPlace]) -> None:
    for place in places:
        try:
            if place.signal is not None:
                place.signal.wake()
        except RuntimeError:  # its event loop was closed while it waited
            place.leave()
