"""The rate limits of this process: their state by key, and the order of those who wait."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from time import monotonic

from prefect_resilience.guards.limits.gcra import FRESH, Pace, after_call, wait_for

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
