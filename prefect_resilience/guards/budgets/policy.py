"""ErrorBudget: the share of runs that may fail in a window. Counts runs and merges the counts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import cache
from time import monotonic
from typing import Any, ClassVar, cast
from urllib.parse import quote

from pydantic import Field

from prefect_resilience.base.durations import Seconds
from prefect_resilience.base.naming import digest
from prefect_resilience.base.policy import Policy
from prefect_resilience.base.process import at_exit, in_forked_child
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.budgets import model
from prefect_resilience.guards.budgets.model import BudgetDocument, BudgetStatus
from prefect_resilience.guards.circuits import registry
from prefect_resilience.guards.circuits.listeners import burn_listeners
from prefect_resilience.stores.base import Store, change

SHORTEST = 60.0
LONGEST = 90 * 86_400.0


class ErrorBudget(Policy):
    """The share of runs that must succeed in a window, counted for the whole fleet.

    objective: that share. With 0.99, 1 % of the runs may fail, which is the budget.
    window: its length, up to now: "7d" (also "1w", "12h"), a timedelta, or seconds; a minute to 90 days.
    name: the name under which runs are counted; by default the name of the task or flow.
    degraded_counts: whether a run that a fallback answered with `degraded=True` counts as failed.
    minimum_runs: the number of runs that a span needs before it can raise an alarm.

        @resilient_task(error_budget=ErrorBudget(objective=0.99, window="7d"))

    A run counts once, when its task (with retries and fallbacks) or flow has ended. A run from Prefect's
    cache, a cancelled run and a run whose process was killed in a task are not counted. Runs are counted in
    this process and merged into the store every few seconds, at once after a failure. When the budget begins
    to burn too fast (see `budgets.model`), the event `prefect-resilience.budget.burned` is sent, once.
    """

    by_position: ClassVar[tuple[str, ...]] = ("objective",)

    objective: float = Field(default=0.99, gt=0, lt=1)
    window: Seconds = Field(default=7 * 86_400.0, ge=SHORTEST, le=LONGEST)
    name: str | None = Field(default=None, min_length=1, max_length=200)
    degraded_counts: bool = True
    minimum_runs: int = Field(default=10, ge=1)

    @classmethod
    def of(cls, value: Any) -> ErrorBudget | None:
        """The budget of the option `error_budget=`, which is a budget, its JSON, an objective, or None."""
        if value is None or isinstance(value, ErrorBudget):
            return value
        if isinstance(value, dict):
            return cls(**cast("dict[str, Any]", value))
        if isinstance(value, float):
            return cls(objective=value)
        raise ConfigurationError(
            f"error_budget={value!r} is not an error budget: write ErrorBudget(objective=0.99)"
        )

    def status(self, name: str | None = None, store: Store | str | None = None) -> BudgetStatus:
        """The budget's status for the fleet, including the counts of this process.

        `name` is the name of the task or flow, if the budget has none. Raises StoreUnavailable.
        """
        called = self._name_or(name)
        flush(called)

        def read(opened: Store) -> BudgetStatus:
            stored = opened.load(place_of(called))
            return model.status_of(called, _document(self, stored and stored.value), opened.now())

        return registry.link_to(store).exchange(read)

    def count(self, good: bool, name: str | None = None) -> None:
        """Count a run that ended. Never raises because of the store."""
        due = count(self, self._name_or(name), good)
        if due is not None:
            due()

    def _name_or(self, name: str | None) -> str:
        called = self.name or name
        if not called:
            raise ConfigurationError(
                'this ErrorBudget has no name: write ErrorBudget(name="..."), or pass the name of the task'
            )
        return called


logger: logging.Logger = logging.getLogger("prefect_resilience.budgets")

# The counts of this process that are not in the store yet.
#
# Counting a run costs a lock and an addition. Every SYNC_INTERVAL seconds, and at once after a failure, the
# counts are merged by compare-and-swap. The process whose merge makes a budget burn sends the alarm. If the
# store does not answer, the counts wait for the next merge.

PREFIX = "budgets/"
SYNC_INTERVAL = 5.0
LONGEST_NAME = 600
KEPT_FOR = 7 * 86_400.0
"""Seconds after its window for which the store keeps a budget without new runs."""


_counters: dict[str, Counter] = {}
in_forked_child(_counters.clear)  # the parent merges the earlier counts


def place_of(name: str) -> str:
    """The key of a budget in the store."""
    quoted = quote(redact(name), safe="", errors="surrogatepass")
    return PREFIX + (quoted if len(quoted) <= LONGEST_NAME else f"{quoted[:LONGEST_NAME]}~{digest(name)}")


def count(budget: ErrorBudget, name: str, good: bool) -> Callable[[], None] | None:
    """Count a run. Returns the function to call now to merge it (it may block), or None if that can wait."""
    counter = _counters.get(name)
    if counter is None:
        _merge_at_exit()
        counter = _counters.setdefault(name, Counter(name, budget))
    return counter.count(budget, good)


def flush(name: str | None = None) -> None:
    """Merge the counts of one budget or of all. Never raises."""
    for counter in list(_counters.values()):
        if name is None or counter.name == name:
            counter.sync(wait=True)


def forget_budgets() -> None:
    """Forget the counts of this process that are not merged; for tests and notebooks."""
    _counters.clear()


class Counter:
    """The runs of one budget that this process has counted."""

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
        """Merge the counts into the store, if there are any and it answers; report the start of a burn.

        Without `wait`, it does nothing while another thread merges.
        """
        if not self._at_it.acquire(blocking=wait):
            self._due = 0.0  # the other thread may have missed this run: merge at the next one
            return
        try:
            self._due = monotonic() + SYNC_INTERVAL
            with self._lock:
                good, bad, self._good, self._bad = self._good, self._bad, 0, 0
                budget = self._budget
            burned = None if good + bad == 0 else self._merge(budget, good, bad, judge)
        finally:
            self._at_it.release()
        if burned is not None:
            _tell(burned)

    def _merge(self, budget: ErrorBudget, good: int, bad: int, judge: bool) -> BudgetStatus | None:
        """The status if this merge made the budget burn, else None."""
        try:
            link = registry.link_to(None)
            if not link.is_ready:
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
    """Add runs to a budget's document; the status if it begins to burn. Raises StoreUnavailable."""
    begins, now = False, 0.0

    def add(value: Any) -> BudgetDocument:
        nonlocal begins, now
        now = store.now()
        before = _document(budget, value)
        after = model.count_runs(before, good, bad, now)
        after = model.judge(after, now) if judge else after
        begins = before["burning_since"] is None and after["burning_since"] is not None
        return {**after, "name": redact(name)}

    after = change(store, place_of(name), add, lasts=budget.window + KEPT_FOR)
    return model.status_of(name, after, now) if begins else None


def _document(budget: ErrorBudget, value: Any) -> BudgetDocument:
    """The document in a value from the store, under this policy."""
    return model.fitting(model.read(value), budget.objective, budget.window, budget.minimum_runs)


@cache
def _merge_at_exit() -> None:
    at_exit(_leave)


def _leave() -> None:
    """Merge without a check for a burn: no listener would hear of it, and the next merge finds the burn."""
    for counter in list(_counters.values()):
        counter.sync(judge=False, wait=True)


def _tell(status: BudgetStatus) -> None:
    logger.warning("error budget %r: %s", redact(status.name), redact(status.why or ""))
    burn_listeners.tell(status)


def get_budgets(store: registry.StoreReference = None) -> list[BudgetStatus]:
    """Every error budget in the store, by name. Raises StoreUnavailable when the store does not answer."""
    flush()
    documents, now = registry.read_documents(PREFIX, store)
    budgets = map(model.read, documents.values())
    return [model.status_of(budget["name"], budget, now) for budget in budgets if budget is not None]
