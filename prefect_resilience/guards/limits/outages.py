"""What follows when Prefect's API does not answer about a limit.

An outage begins with the first question without an answer and ends with the first answer. Callers wait for a
while (`patience.for_server`); then the limit holds in this process alone, until the API answers again.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from random import random
from time import monotonic
from typing import TypeVar

from prefect_resilience.base.drive import Blocking, Sequence, slept
from prefect_resilience.guards.limits.pace import FOR_EVER, for_server

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("prefect_resilience.limits")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds, on average, between two questions of one caller."""

ASK_AGAIN_SECONDS = 5.0
"""While the limit holds in this process alone, one caller in so many seconds asks the API nevertheless."""

STALE_SECONDS = 300.0
"""After so long without a question it is not known any more whether the API is still away."""

MOST_NAMES = 10_000


class ApiAway(Exception):
    """The API cannot be asked; the limit holds in this process alone."""


class ApiBusy(Exception):
    """The API could not answer just now: no time, no connection, no answer in time."""


@dataclass(slots=True)
class Outage:
    """One limit's: `since` the first question without an answer, `last` the latest one."""

    since: float
    last: float
    alone_since: float | None = None
    ask_at: float = 0.0


def silent(name: str) -> float:
    """Seconds since the API does not answer."""
    outage = _outages.get(name)
    return 0.0 if outage is None else monotonic() - outage.since


def began(name: str, *, for_good: bool = False) -> None:
    """A question was not answered. `for_good`: it is no use to wait for an answer."""
    now = monotonic()
    with _lock:
        outage = _outages.get(name)
        if outage is None or now - outage.last > STALE_SECONDS:
            if len(_outages) >= MOST_NAMES:
                _outages.clear()
            outage = _outages[name] = Outage(now, now)
        outage.last = now
        if for_good:
            outage.since = -FOR_EVER


def ended(name: str) -> None:
    """A question was answered."""
    outage = _outages.pop(name, None) if _outages else None
    if outage is not None and outage.alone_since is not None:
        logger.info(
            "Prefect's API answers again: the limit %r is shared again, after %.0f s in this process alone",
            name,
            monotonic() - outage.alone_since,
        )


def go_alone(name: str, why: str) -> None:
    """From now on the limit holds in this process alone. Says so once."""
    now = monotonic()
    with _lock:
        outage = _outages.setdefault(name, Outage(now, now))
        outage.ask_at = now + ASK_AGAIN_SECONDS
        if outage.alone_since is not None:
            return
        outage.alone_since = now
    silence = now - outage.since
    logger.warning(
        "Prefect's API cannot be asked about the limit %r%s. Until it answers, the limit holds in this "
        "process alone, and the API is asked again every %g s: %s",
        name,
        "" if silence == FOR_EVER else f", for {silence:.0f} s now",
        ASK_AGAIN_SECONDS,
        why,
    )


def answered(name: str, question: Callable[[], T], came: float, max_wait: float | None) -> Sequence[T]:
    """What the question brings, as soon as the API answers. `came`: when the caller did.

    Raises ApiAway when the caller has waited long enough, and goes on without the API.
    """
    pause = FIRST_PAUSE
    while True:
        if _leave_alone(name, came, max_wait):
            raise ApiAway(name)
        try:
            return (yield Blocking(question))
        except ApiBusy as error:
            left = for_server(max_wait, monotonic() - came, silent(name))
            if left <= 0:
                go_alone(name, str(error))
                raise ApiAway(str(error)) from error
        yield from slept(min(left, pause * (0.5 + random())))
        pause = min(pause * 1.5, LONGEST_PAUSE)


def _leave_alone(name: str, came: float, max_wait: float | None) -> bool:
    """Whether the caller need not ask: the limit is this process's own, and somebody has asked lately."""
    if not _outages:
        return False
    now = monotonic()
    with _lock:
        outage = _outages.get(name)
        if outage is None or outage.alone_since is None:
            return False
        if for_server(max_wait, now - came, now - outage.since) > 0:
            return False
        if now < outage.ask_at:
            return True
        outage.ask_at = now + ASK_AGAIN_SECONDS
        return False


_outages: dict[str, Outage] = {}
# Re-entrant: the garbage collector may end a caller's coroutine, which gives its lease back, at any time.
_lock = threading.RLock()


def _forget() -> None:
    """A forked child asks for itself."""
    global _lock
    _lock = threading.RLock()
    _outages.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
