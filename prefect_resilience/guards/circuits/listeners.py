"""Listeners for changes of a circuit's state, for the availability of its store, and for burning budgets."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from prefect_resilience.guards.budgets.model import BudgetStatus
    from prefect_resilience.guards.circuits.model import CircuitState
    from prefect_resilience.guards.limits.spend import Spending

logger: logging.Logger = logging.getLogger("prefect_resilience.circuits")


class Transition(NamedTuple):
    """The circuit `name` changed its state. Only the process that caused the change reports it.

    `at` and `retry_at` are seconds since the epoch by the store's clock.
    """

    before: CircuitState
    after: CircuitState
    at: float
    reason: str
    generation: int
    retry_at: float | None = None
    last_error: str | None = None
    name: str = ""


class StoreNotice(NamedTuple):
    """The store under `url` (redacted) stopped answering, or answers again. Reported once each time."""

    url: str
    available: bool
    reason: str


L = TypeVar("L", bound="Callable[..., object]")


class Listeners(Generic[L]):
    """Functions that are called with each transition or notice."""

    def __init__(self) -> None:
        # The tuple is replaced, never changed, so that reading it needs no lock.
        self._known: tuple[L, ...] = ()

    def add(self, listener: L) -> L:
        if listener not in self._known:
            self._known = (*self._known, listener)
        return listener

    def remove(self, listener: L) -> None:
        self._known = tuple(other for other in self._known if other != listener)

    def tell(self, item: object) -> None:
        """Call each listener; an exception of one is logged."""
        for listener in self._known:
            try:
                listener(item)
            except Exception:
                logger.exception("a listener failed on %s", item)


transition_listeners: Listeners[Callable[[Transition], object]] = Listeners()
"""Called after every change that this process causes: in the thread of the guarded call, outside any lock."""

store_listeners: Listeners[Callable[[StoreNotice], object]] = Listeners()
"""Called once when a store of circuits stops answering, and once when it answers again."""

burn_listeners: Listeners[Callable[[BudgetStatus], object]] = Listeners()
"""Called when an error budget begins to burn, in the process whose merge made it burn."""

cap_listeners: Listeners[Callable[[Spending], object]] = Listeners()
"""Called once for each `SpendCap` that is reached, in the process whose call did not fit."""


def tell(news: deque[Transition | StoreNotice]) -> None:
    """Take each transition and notice, log it, and pass it to the listeners. Never raises."""
    with suppress(IndexError):  # another thread takes items, too
        while news:
            item = news.popleft()
            logger.log(*_line_of(item))
            (transition_listeners if isinstance(item, Transition) else store_listeners).tell(item)


def _line_of(item: Transition | StoreNotice) -> tuple[Any, ...]:
    """The level of a log line, its format, and the values in it."""
    if isinstance(item, Transition):
        is_worse = item.after in {"open", "forced_open"}
        error = f"; last error: {item.last_error}" if is_worse and item.last_error else ""
        values = (item.name, item.before, item.after, item.reason, error)
        return logging.WARNING if is_worse else logging.INFO, "circuit %r: %s -> %s: %s%s", *values
    if item.available:
        return logging.INFO, "the circuit store %s is available again", item.url
    line = "the circuit store %s is unavailable (%s); circuits continue with the state in this process"
    return logging.WARNING, line, item.url, item.reason
