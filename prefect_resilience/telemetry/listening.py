"""Functions of this process that are called when something happens to a guarded call."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from prefect_resilience.base.policy import nearest
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.telemetry.payloads import fitted

logger: logging.Logger = logging.getLogger("prefect_resilience")

EVERYTHING = "*"
EVENTS = (
    *("attempt.failed", "attempt.refused", "retry.scheduled", "fallback.used"),
    *("run.degraded", "run.recovered", "run.failed", "run.decomposed"),
    *("circuit.opened", "circuit.half-opened", "circuit.closed", "circuit.forced"),
    *("effect.replayed", "effect.in-doubt", "effect.settled"),
    *("effect.compensated", "effect.compensation-failed"),
    *("batch.recovered", "batch.rolled-back", "batch.reopened"),
    *("dead-letter.created", "dead-letter.failed-again", "dead-letter.replayed"),
    *("dead-letter.settled", "dead-letter.skipped"),
    *("plan.branched", "budget.burned", "store.unavailable"),
)


@dataclass(frozen=True, slots=True)
class ResilienceEvent:
    """Something that happened: `event` is one of the names in the operations page, such as "retry.scheduled".

    `kind` and `name` say what it happened to: ("task", "ask"), ("circuit", "llm:primary"). `payload` is that
    of the Prefect event, without secrets and of bounded size; `at` is in UTC.

    Example:
        >>> opened = ResilienceEvent("circuit.opened", "circuit", "llm", {"reason": "5 failures in a row"})
        >>> opened.kind, opened.payload["reason"]
        ('circuit', '5 failures in a row')
    """

    event: str
    kind: str
    name: str
    payload: dict[str, Any]
    at: datetime = field(default_factory=lambda: datetime.now(timezone.utc))


Handler = Callable[[ResilienceEvent], object]

# Replaced, never changed, so that reading it needs no lock.
_handlers: tuple[tuple[str, Handler], ...] = ()


def on(event: str, handler: Handler) -> Callable[[], None]:
    """Call `handler(event)` whenever this happens in this process; returns a function that ends it.

    `event` is an event's name ("retry.scheduled"), the first half of one ("circuit") or "*" for all. The
    handler is called in the thread where it happened, inside and outside of runs, and should be quick. An
    exception of the handler is logged, and does not affect the call. Raises ConfigurationError for an unknown
    event, and for a coroutine function, which nobody would await.

        stop = on("circuit", lambda event: print(event.event, event.name))
    """
    global _handlers
    nouns = {name.partition(".")[0] for name in EVENTS}
    if event not in (EVERYTHING, *EVENTS) and event not in nouns:
        raise ConfigurationError(f"on: there is no event {event!r}{nearest(event, [*EVENTS, *nouns])}")
    if inspect.iscoroutinefunction(handler):
        raise ConfigurationError(f"on({event!r}, ...) needs a plain function: nobody awaits a coroutine")
    entry = (event, handler)
    _handlers = (*_handlers, entry)

    def stop() -> None:
        global _handlers
        _handlers = tuple(known for known in _handlers if known is not entry)

    return stop


def tell(happening: str, kind: str, name: str, payload: dict[str, Any]) -> None:
    """Call the handlers of an event. Never raises."""
    concerned = [handler for event, handler in _handlers if _means(event, happening)]
    if not concerned:
        return
    try:
        told = ResilienceEvent(happening, kind, redact(name), fitted(payload))
    except Exception:  # noqa: BLE001 - what cannot be told is no reason to fail the work
        return
    for handler in concerned:
        try:
            handler(told)
        except Exception as error:  # noqa: BLE001 - the handler's trouble is not the call's
            logger.error("A handler of %s failed: %s", happening, redact(repr(error)))


def _means(event: str, happening: str) -> bool:
    return event in (EVERYTHING, happening) or happening.startswith(f"{event}.")
