"""Events of ours, which Prefect relates to the flow run, task run and deployment they happen in."""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext, TaskRunContext
from prefect.events import emit_event

from prefect_resilience.budgets.counting import add_burn_listener
from prefect_resilience.budgets.model import BudgetStatus
from prefect_resilience.circuits.listeners import add_store_listener, add_transition_listener
from prefect_resilience.circuits.model import StoreNotice, Transition
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.redact import redact
from prefect_resilience.metrics import circuit_changed, observe
from prefect_resilience.payloads import NAME, fitted, fitted_text
from prefect_resilience.summaries.watch import note_happening

PREFIX = "prefect-resilience"
LABELS = ("code", "category", "action")
CIRCUIT_EVENTS = {
    "open": "circuit.opened",
    "half_open": "circuit.half-opened",
    "closed": "circuit.closed",
}
"""The event's name by the state that a circuit came to; any other was set by hand."""


def emit(happening: str, kind: str, name: str, payload: dict[str, Any]) -> None:
    """Send `prefect-resilience.<happening>` about the resource `prefect-resilience.<kind>.<name>`.

    What is sent has no secret in it and is never too large (see `payloads`); an error's code and category,
    and what a recovery did, are labels of the resource as well, by which events are filtered and counted. It
    is measured in any case; outside a run nothing is sent: then there may be no Prefect API at all. Never
    raises.
    """
    observe(happening, payload)
    if not in_run():
        return
    try:
        told = fitted(payload)
        shown = fitted_text(name, NAME)
        labels = {f"{PREFIX}.{label}": str(told[label]) for label in LABELS if told.get(label)}
        event_id = note_happening(happening, shown, told)
        emit_event(
            id=event_id,
            event=f"{PREFIX}.{happening}",
            resource={
                "prefect.resource.id": f"{PREFIX}.{kind}.{shown}",
                "prefect.resource.name": shown,
                **labels,
            },
            payload=told,
        )
    except Exception:  # noqa: BLE001 - an event that cannot be sent is no reason to fail the work
        return


def in_run() -> bool:
    """Whether a flow or task run goes on here."""
    return FlowRunContext.get() is not None or TaskRunContext.get() is not None


def attempt_failed(context: ErrorContext) -> None:
    """Tell of one failed attempt, on a resource of its category and code: Prefect counts events by resource,
    for its reports as for automations on "more than so many of these in so many seconds"."""
    about = {"node_id", "task_run_id", "flow_run_id", "category", "code", "kind", "attempt", "circuit"}
    payload = context.model_dump(mode="json", include=about, exclude_none=True)
    emit("attempt.failed", "error", f"{context.category.value}.{context.code}", payload)


def error_payload(context: ErrorContext) -> dict[str, Any]:
    """What an event says of an error: everything but the stack trace and the attempts before."""
    return context.model_dump(
        mode="json", exclude={"stack_trace", "history", "partial_output"}, exclude_none=True
    )


def announce_recoverable(flow_run: FlowRun) -> None:
    """Let the automation that recovers failed runs know of one that may be recovered by itself. Never raises.

    By an event of its own: the tags that a run gives itself are not in Prefect's events for some minutes.
    """
    if flow_run.deployment_id is None or flow_run.parent_task_run_id is not None:
        return
    roles = {"flow-run": flow_run.id, "deployment": flow_run.deployment_id}
    try:
        emit_event(
            event=f"{PREFIX}.batch.recoverable",
            resource={
                "prefect.resource.id": f"{PREFIX}.batch.{flow_run.id}",
                "prefect.resource.name": flow_run.name,
            },
            related=[
                {"prefect.resource.id": f"prefect.{role}.{one}", "prefect.resource.role": role}
                for role, one in roles.items()
            ],
        )
    except Exception:  # noqa: BLE001 - an event that cannot be sent is no reason to fail the work
        return


def announce_circuits() -> None:
    """Send an event for each change of a circuit or an error budget that a run here brings about."""
    add_transition_listener(_circuit_changed)
    add_store_listener(_store_lost)
    add_burn_listener(_budget_burned)


def _circuit_changed(change: Transition) -> None:
    circuit_changed(change.name, change.before, change.after)
    emit(
        CIRCUIT_EVENTS.get(change.after, "circuit.forced"),
        "circuit",
        change.name,
        {
            "before": change.before,
            "after": change.after,
            "at": change.at,
            "reason": redact(change.reason),
            "generation": change.generation,
            "retry_at": change.retry_at,
            "last_error": None if change.last_error is None else redact(change.last_error),
        },
    )
    if in_run():
        # Only now: most processes never see a circuit change.
        from prefect_resilience.summaries.circuits_table import keeper

        keeper.changed()


def _budget_burned(status: BudgetStatus) -> None:
    emit("budget.burned", "budget", status.name, status.model_dump(mode="json"))


def _store_lost(notice: StoreNotice) -> None:
    if not notice.available:
        emit("store.unavailable", "store", redact(notice.url), {"reason": redact(notice.reason)})
