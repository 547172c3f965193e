"""Who is told when a circuit changes its state, or when its store is lost and found."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect_resilience.guards.circuits.model import CircuitState

logger: logging.Logger = logging.getLogger("prefect_resilience.circuits")


@dataclass(frozen=True, slots=True)
class Transition:
    """A circuit went from one state to another; told by the one process of the fleet that brought it about.

    `at` and `retry_at` are seconds since the epoch by the store's clock.
    """

    name: str
    before: CircuitState
    after: CircuitState
    at: float
    reason: str
    generation: int
    retry_at: float | None = None
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class StoreNotice:
    """The store under `url` (redacted) stopped answering, or answers again. Told once each time."""

    url: str
    available: bool
    reason: str


TransitionListener = Callable[[Transition], object]
StoreListener = Callable[[StoreNotice], object]

# Replaced, never changed, so that reading them needs no lock.
_transition_listeners: tuple[TransitionListener, ...] = ()
_store_listeners: tuple[StoreListener, ...] = ()


def add_transition_listener(listener: TransitionListener) -> TransitionListener:
    """Call `listener(transition)` after every change that this process brings about; returns it.

    It is called in the thread of whoever made the call, outside any lock; what it raises is logged.
    """
    global _transition_listeners
    if listener not in _transition_listeners:
        _transition_listeners = (*_transition_listeners, listener)
    return listener


def remove_transition_listener(listener: TransitionListener) -> None:
    """Call it no more; nothing happens when it was not registered."""
    global _transition_listeners
    _transition_listeners = tuple(known for known in _transition_listeners if known != listener)


def add_store_listener(listener: StoreListener) -> StoreListener:
    """Call `listener(notice)` once when a circuit store stops answering and once when it answers again."""
    global _store_listeners
    if listener not in _store_listeners:
        _store_listeners = (*_store_listeners, listener)
    return listener


def remove_store_listener(listener: StoreListener) -> None:
    """Call it no more; nothing happens when it was not registered."""
    global _store_listeners
    _store_listeners = tuple(known for known in _store_listeners if known != listener)


def tell(news: Iterable[Transition | StoreNotice]) -> None:
    """Log each piece of news and hand it to the listeners. Never raises."""
    for item in news:
        if isinstance(item, Transition):
            _log_transition(item)
            for hear in _transition_listeners:
                _safely(hear, item)
        else:
            _log_notice(item)
            for listen in _store_listeners:
                _safely(listen, item)


def _safely(listener: Callable[..., object], item: object) -> None:
    try:
        listener(item)
    except Exception:
        logger.exception("a listener failed on %s", item)


def _log_transition(item: Transition) -> None:
    worse = item.after in {"open", "forced_open"}
    error = f"; last error: {item.last_error}" if worse and item.last_error else ""
    logger.log(
        logging.WARNING if worse else logging.INFO,
        "circuit %r: %s -> %s: %s%s",
        item.name,
        item.before,
        item.after,
        item.reason,
        error,
    )


def _log_notice(item: StoreNotice) -> None:
    if item.available:
        logger.info("the circuit store %s answers again", item.url)
    else:
        logger.warning(
            "the circuit store %s cannot be reached (%s); circuits go on with what this process knows",
            item.url,
            item.reason,
        )
