"""The rate limits of this process: their state by key, and the order of those who wait."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

# How long a call has to wait for its turn: the generic cell rate algorithm, as pure functions.
#
# The algorithm is that of ATM's traffic contract (ITU-T I.371, "virtual scheduling"). Its whole state is
# one number, the theoretical arrival time: when the next call would come if all were evenly spaced. A call
# may come before it by as much as the burst allows. Nothing here reads a clock: `now` is in seconds of any
# clock that only goes forward.

FRESH = float("-inf")
"""The state before the first call."""


class Pace(NamedTuple):
    """One call in `interval` seconds, and as many as `burst` at once after a time without calls.

    In any `t` seconds there are at most `burst - 1 + ceil(t / interval)` calls: with a burst of 1, never more
    than the rate.
    """

    interval: float
    burst: int = 1


def wait_for(pace: Pace, state: float, now: float, ahead: int = 0) -> float:
    """Seconds until one more call may be made after `ahead` others, each of them made as soon as it may."""
    next_at = max(state, now) + ahead * pace.interval
    return max(0.0, next_at - (pace.burst - 1) * pace.interval - now)


def after_call(pace: Pace, state: float, now: float) -> float:
    """The state after a call at `now`, which must not have had to wait."""
    return max(state, now) + pace.interval


MOST_KEYS = 1024
"""Beyond so many, those that would not make anybody wait are forgotten."""


@dataclass(slots=True)
class Rate:
    """The state of one rate limit. `coming` callers are in line for a call, or about to make it."""

    state: float = FRESH
    coming: int = 0


def arrive(key: str, pace: Pace) -> float:
    """Join those who are coming; the seconds until it will be one's turn if all of them make their calls."""
    with _lock:
        rate = _rate_of(key)
        wait = wait_for(pace, rate.state, monotonic(), rate.coming)
        rate.coming += 1
        return wait


def turn_away(key: str) -> None:
    """Somebody who was coming makes no call."""
    with _lock:
        _rate_of(key).coming -= 1


def wait_of(key: str, pace: Pace) -> float:
    """Seconds until whoever is first in line may call."""
    with _lock:
        return wait_for(pace, _rate_of(key).state, monotonic())


def start(key: str, pace: Pace) -> None:
    """Somebody who was coming makes a call now."""
    with _lock:
        rate = _rate_of(key)
        rate.state = after_call(pace, rate.state, monotonic())
        rate.coming -= 1


def start_if_free(key: str, pace: Pace) -> bool:
    """Make a call now if nobody is in line and nobody would have to wait."""
    with _lock:
        rate = _rate_of(key)
        now = monotonic()
        if rate.coming or wait_for(pace, rate.state, now) > 0:
            return False
        rate.state = after_call(pace, rate.state, now)
        return True


def _rate_of(key: str) -> Rate:
    rate = _rates.get(key)
    if rate is None:
        if len(_rates) >= MOST_KEYS:
            _forget_idle()
        rate = _rates[key] = Rate()
    return rate


def _forget_idle() -> None:
    """What is as if it were fresh needs no memory."""
    now = monotonic()
    for key in [key for key, rate in _rates.items() if not rate.coming and rate.state <= now]:
        del _rates[key]


_rates: dict[str, Rate] = {}
# Re-entrant: the garbage collector may end a waiting caller's coroutine at any allocation.
_lock = threading.RLock()


def _forget() -> None:
    """A forked child is a process of its own."""
    global _lock
    _lock = threading.RLock()
    _rates.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


# How long a caller of a limit waits: for a place, and for a server that cannot answer just now.
#
# Pure functions, in seconds. `max_wait` is what the limit's author wrote; None waits for ever, with two
# bounds.

FOR_EVER = float("inf")

OVERDUE_SECONDS = 60.0
"""The wait without a `max_wait` while every place is held by an overdue call, which may never end."""

SERVER_SECONDS = 60.0
"""The wait without a `max_wait` for a server that does not answer."""

LEAST_SERVER_SECONDS = 2.0
"""The shortest wait for a server: a busy one refuses a question, and answers the next."""


def for_place(max_wait: float | None, waited: float, stuck: float | None) -> float:
    """How much longer to wait for a place; 0 or less is not at all.

    waited: since the caller came. stuck: since every place is held by an overdue call; None: not so.

    Example:
        >>> for_place(5, 2, None), for_place(None, 100, None), for_place(None, 100, 10)
        (3, inf, 50.0)
    """
    if max_wait is not None:
        return max_wait - waited
    return FOR_EVER if stuck is None else OVERDUE_SECONDS - min(waited, stuck)


def for_server(max_wait: float | None, waited: float, silent: float) -> float:
    """How much longer to wait for the server before the limit holds in this process alone.

    waited: since the caller came. silent: since the server did not answer; infinite when waiting is no use.

    Example:
        >>> for_server(5, 1, 1), for_server(0, 0, 0.5), for_server(None, 500, 10)
        (4, 1.5, 50.0)
    """
    if max_wait is None:
        return SERVER_SECONDS - silent
    least = LEAST_SERVER_SECONDS - silent
    return max(least, min(max_wait - silent, max_wait - waited))
