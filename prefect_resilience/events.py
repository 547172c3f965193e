"""Events of ours, which Prefect relates to the flow run, task run and deployment they happen in."""

from __future__ import annotations

from typing import Any

from prefect.context import FlowRunContext, TaskRunContext
from prefect.events import emit_event

from prefect_resilience.circuits.listeners import add_store_listener, add_transition_listener
from prefect_resilience.circuits.model import StoreNotice, Transition
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.redact import redact

PREFIX = "prefect-resilience"
CIRCUIT_EVENTS = {
    "open": "circuit.opened",
    "half_open": "circuit.half-opened",
    "closed": "circuit.closed",
}
"""The event's name by the state that a circuit came to; any other was set by hand."""


def emit(happening: str, kind: str, name: str, payload: dict[str, Any]) -> None:
    """Send `prefect-resilience.<happening>` about the resource `prefect-resilience.<kind>.<name>`.

    Outside a run nothing is sent: then there may be no Prefect API at all. Never raises.
    """
    if FlowRunContext.get() is None and TaskRunContext.get() is None:
        return
    try:
        emit_event(
            event=f"{PREFIX}.{happening}",
            resource={
                "prefect.resource.id": f"{PREFIX}.{kind}.{name}",
                "prefect.resource.name": name,
            },
            payload=payload,
        )
    except Exception:  # noqa: BLE001 - an event that cannot be sent is no reason to fail the work
        return


def error_payload(context: ErrorContext) -> dict[str, Any]:
    """What an event says of an error: everything but the stack trace and the attempts before."""
    return context.model_dump(
        mode="json", exclude={"stack_trace", "history", "partial_output"}, exclude_none=True
    )


def announce_circuits() -> None:
    """Send an event for each change of a circuit that a run of this process brings about."""
    add_transition_listener(_circuit_changed)
    add_store_listener(_store_lost)


def _circuit_changed(change: Transition) -> None:
    emit(
        CIRCUIT_EVENTS.get(change.after, "circuit.forced"),
        "circuit",
        change.name,
        {
            "before": change.before,
            "after": change.after,
            "reason": redact(change.reason),
            "generation": change.generation,
            "retry_at": change.retry_at,
            "last_error": None if change.last_error is None else redact(change.last_error),
        },
    )


def _store_lost(notice: StoreNotice) -> None:
    if not notice.available:
        emit("store.unavailable", "store", redact(notice.url), {"reason": redact(notice.reason)})
