"""How long a call has to wait for its turn: the generic cell rate algorithm, as pure functions.

The algorithm is that of ATM's traffic contract (ITU-T I.371, "virtual scheduling"). Its whole state is one
number, the theoretical arrival time: when the next call would come if all were evenly spaced. A call may
come before it by as much as the burst allows. Nothing here reads a clock: `now` is in seconds of any clock
that only goes forward.
"""

from __future__ import annotations

from typing import NamedTuple

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
