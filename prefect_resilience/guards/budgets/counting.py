"""The runs that this process has counted, on their way into the store.

A run costs a lock and an addition. Every SYNC_INTERVAL seconds, and at once after a failure, what was counted
is merged by compare-and-swap; the one process whose merge makes a budget burn tells of it. A store that does
not answer breaks nothing: its link gives it a rest, and what was counted waits.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from time import monotonic
from urllib.parse import quote

from prefect_resilience.base.naming import digest
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.budgets import arithmetic, listeners
from prefect_resilience.guards.budgets.model import BudgetStatus
from prefect_resilience.guards.budgets.policy import ErrorBudget
from prefect_resilience.guards.circuits import registry
from prefect_resilience.stores import Store

logger: logging.Logger = logging.getLogger("prefect_resilience.budgets")

PREFIX = "budgets/"
SYNC_INTERVAL = 5.0
TRIES = 12
LONGEST_PAUSE = 0.1
LONGEST_NAME = 600
KEPT_FOR = 7 * 86_400.0
"""Seconds for which a budget is kept beyond its window, when nothing is counted in it any more."""

_counters: dict[str, Counter] = {}
_lock = threading.Lock()
_leaving = False


def place_of(name: str) -> str:
    """Where a budget stands in the store."""
    quoted = quote(redact(name), safe="", errors="surrogatepass")
    return PREFIX + (quoted if len(quoted) <= LONGEST_NAME else f"{quoted[:LONGEST_NAME]}~{digest(name)}")


def count(budget: ErrorBudget, name: str, good: bool) -> Callable[[], None] | None:
    """Count a run; what is to be called now to merge it, which may block, or None when there is time."""
    counter = _counters.get(name)
    if counter is None:
        counter = _counter(name, budget)
    return counter.count(budget, good)


def flush(name: str | None = None) -> None:
    """Merge what was counted, of one budget or all. Never raises."""
    for counter in list(_counters.values()):
        if name is None or counter.name == name:
            counter.sync(wait=True)


def forget_budgets() -> None:
    """Forget what this process has counted and not merged; for tests and notebooks."""
    _counters.clear()


class Counter:
    """What this process has counted of one budget."""

    def __init__(self, name: str, budget: ErrorBudget) -> None:
        self.name = name
        self._budget = budget
        self._good = self._bad = 0
        self._due = 0.0
        self._lock = threading.Lock()
        self._at_it = threading.Lock()

    def count(self, budget: ErrorBudget, good: bool) -> Callable[[], None] | None:
        with self._lock:
            self._budget = budget
            if good:
                self._good += 1
            else:
                self._bad += 1
        return self.sync if not good or monotonic() >= self._due else None

    def sync(self, judge: bool = True, wait: bool = False) -> None:
        """Merge the counts into the store, if there are any and it answers; tell when the budget burns.

        Without `wait`, nothing is done while another thread is at it.
        """
        if not self._at_it.acquire(blocking=wait):
            self._due = 0.0  # whoever is at it may have begun before this run ended: the next one merges it
            return
        try:
            self._due = monotonic() + SYNC_INTERVAL
            with self._lock:
                good, bad, self._good, self._bad = self._good, self._bad, 0, 0
                budget = self._budget
            burned = None if good + bad == 0 else self._merged(budget, good, bad, judge)
        finally:
            self._at_it.release()
        if burned is not None:
            _tell(burned)

    def _merged(self, budget: ErrorBudget, good: int, bad: int, judge: bool) -> BudgetStatus | None:
        """The status, if it was this merge that made the budget burn."""
        try:
            link = registry.link_to(None)
            if link.condition != "ready":
                raise StoreUnavailable("it rests")
            return link.exchange(lambda store: merge(store, self.name, budget, good, bad, judge))
        except (StoreUnavailable, ConfigurationError):
            with self._lock:
                self._good += good
                self._bad += bad
            return None


def merge(
    store: Store, name: str, budget: ErrorBudget, good: int, bad: int, judge: bool = True
) -> BudgetStatus | None:
    """Add runs to a budget's document; the status, if it burns from now on. Raises StoreUnavailable."""
    place = place_of(name)
    for attempt in range(TRIES):
        found = store.load(place)
        now = store.now()
        known = arithmetic.read(found.value) if found else None
        before = arithmetic.fitting(known, budget.objective, budget.window, budget.minimum_runs)
        after = arithmetic.counted(before, good, bad, now)
        after = {**(arithmetic.judged(after, now) if judge else after), "name": redact(name)}
        if store.swap(place, found.version if found else 0, after, now + budget.window + KEPT_FOR):
            begins = before["burning_since"] is None and after["burning_since"] is not None
            return arithmetic.status_of(name, after, now) if begins else None
        time.sleep(random.uniform(0, min(LONGEST_PAUSE, 0.002 * 2**attempt)))
    raise StoreUnavailable(f"the budget {name!r} keeps being changed by others")


def _counter(name: str, budget: ErrorBudget) -> Counter:
    global _leaving
    with _lock:
        if not _leaving:
            _leaving = True
            atexit.register(_leave)
        return _counters.setdefault(name, Counter(name, budget))


def _leave() -> None:
    """At the end of the process: nobody would hear of a burn, so it is left to the next merge to tell."""
    for counter in list(_counters.values()):
        counter.sync(judge=False, wait=True)


def _tell(status: BudgetStatus) -> None:
    logger.warning("error budget %r: %s", status.name, status.why)
    for hear in listeners.listeners:
        try:
            hear(status)
        except Exception:
            logger.exception("a listener failed on %s", status)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    # What was counted before is the parent's to merge.
    _counters.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
