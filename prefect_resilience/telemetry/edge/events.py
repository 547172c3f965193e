"""Events of ours, which Prefect relates to the flow run, task run and deployment they happen in; and notes of
them, and of the task runs of this process, for the summaries of flow runs (see `notes`)."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid4

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State, TaskRun
from prefect.context import FlowRunContext, TaskRunContext
from prefect.events import Event, RelatedResource, Resource, emit_event
from prefect.settings import get_current_settings

from prefect_resilience.errors.classify.shapes import state_data
from prefect_resilience.errors.context import AttemptRecord, ErrorContext
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.guards.budgets.model import add_burn_listener
from prefect_resilience.guards.circuits.listeners import (
    StoreNotice,
    Transition,
    add_store_listener,
    add_transition_listener,
)
from prefect_resilience.telemetry import notes
from prefect_resilience.telemetry.metrics import circuit_changed, observe, refused_by
from prefect_resilience.telemetry.model import Happening, StateSeen
from prefect_resilience.telemetry.payloads import NAME, fitted, fitted_text, tell

if TYPE_CHECKING:
    from prefect_resilience.guards.budgets.model import BudgetStatus
    from prefect_resilience.guards.fallbacks import Fallback
    from prefect_resilience.guards.retries.policy import Verdict

PREFIX = "prefect-resilience"
LABELS = ("code", "category", "action")
SENT_AT_ONCE = 100
CIRCUIT_EVENTS = {
    "open": "circuit.opened",
    "half_open": "circuit.half-opened",
    "closed": "circuit.closed",
}
"""The event's name by the state that a circuit came to; any other was set by hand."""


@dataclass
class AtATerminal:
    """Events of what somebody does outside any run, until they are sent; `trouble`: why they could not be."""

    by: str
    events: list[Event] = field(default_factory=list[Event])
    trouble: str | None = None


_at_a_terminal: ContextVar[AtATerminal | None] = ContextVar("prefect_resilience_at_a_terminal", default=None)


@contextmanager
def at_a_terminal(by: str) -> Generator[AtATerminal, None, None]:
    """Send events of what is done in this block outside any run, too, at its end, if an API is configured.

    They say `by` whom it was done. Elsewhere nothing is sent outside runs: there may be no Prefect API.
    """
    told = AtATerminal(by)
    token = _at_a_terminal.set(told)
    try:
        yield told
    finally:
        _at_a_terminal.reset(token)
        _send(told)


def _send(told: AtATerminal) -> None:
    if not told.events or get_current_settings().api.url is None:
        return
    try:
        with get_client(sync_client=True) as client:
            for start in range(0, len(told.events), SENT_AT_ONCE):
                some = told.events[start : start + SENT_AT_ONCE]
                body = [event.model_dump(mode="json") for event in some]
                client.request("POST", "/events", json=body).raise_for_status()
    except Exception as error:  # noqa: BLE001 - what was done is done, whatever the API says
        told.trouble = redact(" ".join(str(error).split()) or type(error).__name__)


def _note_for_api(told: AtATerminal, happening: str, kind: str, name: str, payload: dict[str, Any]) -> None:
    run = payload.get("flow_run_id")
    related = {"prefect.resource.id": f"prefect.flow-run.{run}", "prefect.resource.role": "flow-run"}
    resource = {"prefect.resource.id": f"{PREFIX}.{kind}.{name}", "prefect.resource.name": name}
    told.events.append(
        Event(
            event=f"{PREFIX}.{happening}",
            # Without the labels of what a run does: automations that alert a person are for those.
            resource=Resource(resource),
            related=[RelatedResource(related)] if run else [],
            payload={"by": told.by, **payload},
        )
    )


def emit(happening: str, kind: str, name: str, payload: dict[str, Any]) -> None:
    """Send `prefect-resilience.<happening>` about the resource `prefect-resilience.<kind>.<name>`.

    What is sent has no secret in it and is never too large (see `payloads`); an error's code and category,
    and what a recovery did, are labels of the resource as well, by which events are filtered and counted. It
    is measured, and told to the handlers of `on`, in any case; outside a run nothing is sent but from a
    terminal (see `at_a_terminal`): there may be no Prefect API at all. Never raises.
    """
    observe(happening, payload)
    tell(happening, kind, name, payload)
    told_by_hand = _at_a_terminal.get()
    if not in_run():
        if told_by_hand is not None:
            _note_for_api(told_by_hand, happening, kind, fitted_text(name, NAME), fitted(payload))
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


def attempt_failed(context: ErrorContext, task: str) -> None:
    """Tell of one attempt of a task that failed, or that a circuit or a limit refused.

    On a resource of the error's category and code, one that was refused on that of the task: Prefect counts
    events by resource, for its reports as for automations on "more than so many of these in so many seconds".
    """
    about = {
        *("node_id", "action_id", "task_run_id", "flow_run_id"),
        *("category", "code", "kind", "attempt", "circuit"),
    }
    payload = context.model_dump(mode="json", include=about, exclude_none=True)
    by = refused_by({"category": context.category.value, "exception_type": context.exception_type})
    if by is None:
        emit("attempt.failed", "error", f"{context.category.value}.{context.code}", payload)
    else:
        emit("attempt.refused", "task", task, {**payload, "by": by})


def retry_scheduled(task: str, context: ErrorContext, verdict: Verdict) -> None:
    attempt_failed(context, task)
    _of_failure("retry.scheduled", task, context, delay=verdict.delay, why=verdict.why)


def fallback_used(task: str, context: ErrorContext, fallback: Fallback) -> None:
    attempt_failed(context, task)
    told = {"to": fallback.name, "degraded": fallback.degraded, "attempts": context.attempt}
    _of_failure("fallback.used", task, context, **told, **_times(context))
    if fallback.degraded:
        _of_failure("run.degraded", task, context, to=fallback.name)


def run_recovered(
    task: str, identity: Mapping[str, Any], history: Sequence[AttemptRecord], seconds: float
) -> None:
    """`history`: the attempts that failed; `seconds`: from the first one's beginning to the success."""
    last = history[-1].error
    payload = {
        "attempts": len(history) + 1,
        "after": seconds,
        "waited": _waited(history),
        "error": last.model_dump(mode="json") if last else None,
    }
    emit("run.recovered", "task", task, {**identity, **payload})


def run_failed(task: str, context: ErrorContext, verdict: Verdict) -> None:
    attempt_failed(context, task)
    told = {"why": verdict.why, "exhausted": context.retryable}
    _of_failure("run.failed", task, context, **told, **_times(context))


def _of_failure(happening: str, task: str, context: ErrorContext, **more: Any) -> None:
    emit(happening, "task", task, {**error_payload(context), **more})


def _times(context: ErrorContext) -> dict[str, float]:
    """`after`: seconds since the first attempt began; `waited`: those of them that were delays."""
    history = context.history
    began = history[0].started_at if history else context.timestamp
    return {
        "after": max((context.timestamp - began).total_seconds(), 0.0),
        "waited": _waited(history),
    }


def _waited(history: Sequence[AttemptRecord]) -> float:
    return sum(one.delay or 0.0 for one in history)


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


def _budget_burned(status: BudgetStatus) -> None:
    since = status.burning_since
    # People read it, in an alert; seconds since the epoch tell them nothing.
    shown = None if since is None else f"{datetime.fromtimestamp(since, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    payload = {**status.model_dump(mode="json"), "burning_since": shown}
    emit("budget.burned", "budget", status.name, payload)


def _store_lost(notice: StoreNotice) -> None:
    if not notice.available:
        emit("store.unavailable", "store", redact(notice.url), {"reason": redact(notice.reason)})


MESSAGE = 300
_PAYLOAD = (
    *("task_run_id", "node_id", "code", "category", "message", "circuit", "to", "degraded", "external_id"),
    *("why", "before", "after", "reason", "name"),
)
"""What is noted of an event's payload."""
_watching = False


def watch_runs() -> None:
    """Note runs and events from now on. Called when something that makes summaries is imported."""
    global _watching
    _watching = True


def state_seen(state: State[Any]) -> StateSeen:
    return StateSeen(
        state.type.value,
        state.name or state.type.value.title(),
        state.timestamp.timestamp(),
        bounded(redact(state.message), MESSAGE) if state.message else "",
    )


def note_state(task_run: TaskRun, state: State[Any]) -> None:
    """Note a state that a task run of this process has come to, and the value of a completed one."""
    if task_run.flow_run_id is None:
        return
    flow_run_id, name = str(task_run.flow_run_id), task_run.name or "task run"
    count = _count_of(task_run)
    noted = notes.task_run_came_to(flow_run_id, str(task_run.id), name, state_seen(state), count)
    if noted.keeps_outputs and state.is_completed():
        noted.gave(name, state_data(state))


def note_happening(name: str, subject: str, payload: dict[str, Any]) -> UUID:
    """Note an event of ours for the flow run that goes on here; the id under which it is to be sent."""
    event_id = uuid4()
    current = _current_pass() if _watching else None
    if current is not None:
        flow_run_id, count = current
        notes.happened(flow_run_id, happening_of(str(event_id), time.time(), name, subject, payload), count)
    return event_id


def happening_of(event_id: str, at: float, name: str, subject: str, payload: Mapping[str, Any]) -> Happening:
    """An event with as much of its payload as a summary tells."""
    error: Any = payload.get("error")
    given = {**cast("Mapping[str, Any]", error), **payload} if isinstance(error, Mapping) else payload
    told = {key: _short(given[key]) for key in _PAYLOAD if given.get(key) is not None}
    return Happening(event_id, at, name, subject, told)


def _short(value: Any) -> Any:
    return value if isinstance(value, bool | int | float) else bounded(str(value), MESSAGE)


def _count_of(task_run: TaskRun) -> int:
    """How often the flow run of a task run had begun; a task run that waits does not know it."""
    flow = FlowRunContext.get()
    if flow is not None and flow.flow_run is not None and flow.flow_run.id == task_run.flow_run_id:
        return max(flow.flow_run.run_count, 1)
    return max(task_run.flow_run_run_count, 1)


def _current_pass() -> tuple[str, int] | None:
    """The flow run that goes on here, and how often it has begun."""
    task, flow = TaskRunContext.get(), FlowRunContext.get()
    # A flow inside a task is the inner one, although the task's context is still there.
    if flow is not None and flow.flow_run is not None:
        return str(flow.flow_run.id), max(flow.flow_run.run_count, 1)
    if task is not None and task.task_run.flow_run_id is not None:
        return str(task.task_run.flow_run_id), _count_of(task.task_run)
    return None
