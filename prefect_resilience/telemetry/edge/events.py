"""Sends the events of this package; Prefect relates them to the flow run, task run and deployment in which
they happen. Also notes events and task runs of this process for the summaries of flow runs (see `notes`)."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid4

from prefect_resilience.base.edge.current_settings import run_contexts
from prefect_resilience.base.process import setting
from prefect_resilience.errors.classify.shapes import state_data
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.guards.circuits.listeners import StoreNotice, Transition
from prefect_resilience.telemetry import notes
from prefect_resilience.telemetry.metrics import circuit_changed, count
from prefect_resilience.telemetry.model import CALL_COUNTS, Happening, StateSeen
from prefect_resilience.telemetry.payloads import NAME, Whole, fit, fit_text

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, State, TaskRun
    from prefect.events import Event

    from prefect_resilience.guards.budgets.model import BudgetStatus
    from prefect_resilience.guards.limits.spend import Spending

PREFIX = "prefect-resilience"
LABELS = ("code", "category", "action")
CIRCUIT_EVENTS = {"open": "circuit.opened", "half_open": "circuit.half-opened", "closed": "circuit.closed"}
"""The event's name by the circuit's new state. Any other state was forced by hand."""
_OF_CHANGE = ("before", "after", "at", "reason", "generation", "retry_at", "last_error")


@dataclass
class AtATerminal:
    """Events of an operator's actions outside any run, until they are sent. `trouble`: why sending failed."""

    by: str
    events: list[Event] = field(default_factory=list["Event"])
    trouble: str | None = None


_at_a_terminal: ContextVar[AtATerminal | None] = ContextVar("prefect_resilience_at_a_terminal", default=None)


@contextmanager
def at_a_terminal(by: str) -> Generator[AtATerminal, None, None]:
    """At the end of this block, send also the events that happened in it outside any run, if an API is set.

    The events have `by`, the name of the operator. Without this block, events outside runs are not sent,
    because there may be no Prefect API.
    """
    terminal = AtATerminal(by)
    try:
        with setting(_at_a_terminal, terminal):
            yield terminal
    finally:
        _send(terminal)


def _send(terminal: AtATerminal) -> None:
    if not terminal.events:
        return
    from prefect.client.orchestration import get_client
    from prefect.settings import get_current_settings

    if get_current_settings().api.url is None:
        return
    try:
        with get_client(sync_client=True) as client:
            body = [event.model_dump(mode="json") for event in terminal.events]
            client.request("POST", "/events", json=body).raise_for_status()
    except Exception as error:  # noqa: BLE001 - the action itself has succeeded
        terminal.trouble = redact(" ".join(str(error).split()) or type(error).__name__)


def _event(
    happening: str, resource: str, name: str, payload: dict[str, Any], related: Mapping[str, object]
) -> dict[str, Any]:
    """The fields of an event. `related` has the id of each related run or deployment by its role."""
    return {
        "event": f"{PREFIX}.{happening}",
        "resource": {"prefect.resource.id": f"{PREFIX}.{resource}", "prefect.resource.name": name},
        "related": [
            {"prefect.resource.id": f"prefect.{role}.{run}", "prefect.resource.role": role}
            for role, run in related.items()
        ],
        "payload": payload,
    }


def send_event(
    happening: str,
    resource: str,
    name: str,
    payload: dict[str, Any],
    event_id: UUID | None = None,
    *,
    related: Mapping[str, object] | None = None,
) -> None:
    """Send the event as it is. Never raises: an event that cannot be sent must not fail the work."""
    from prefect.events import emit_event

    with suppress(Exception):
        emit_event(**_event(happening, resource, name, payload, related or {}), id=event_id or uuid4())


def emit(happening: str, kind: str, name: str, payload: dict[str, Any], whole: Whole = None) -> None:
    """Send `prefect-resilience.<happening>` about the resource `prefect-resilience.<kind>.<name>`.

    The payload contains no secrets and has a bounded size (see `payloads`). The code and category of an error
    and the action of a recovery are also labels of the resource, by which events are filtered and counted.
    The event is always counted in the metrics and passed to the handlers of `on`. Outside a run it is sent
    only from a terminal (see `at_a_terminal`), because there may be no Prefect API. Never raises.
    """
    count(happening, kind, name, payload, whole)
    terminal, in_run = _at_a_terminal.get(), run_contexts() != (None, None)
    if not in_run and terminal is None:
        return
    with suppress(Exception):  # an event that cannot be sent must not fail the work
        content, shown = fit(whole() if whole else payload), fit_text(name, NAME)
        resource = f"{kind}.{shown}"
        from prefect.events import Event, emit_event

        if in_run:
            labels = {f"{PREFIX}.{label}": str(content[label]) for label in LABELS if content.get(label)}
            named = {"prefect.resource.id": f"{PREFIX}.{resource}", "prefect.resource.name": shown}
            emit_event(
                id=note_happening(happening, shown, content),
                event=f"{PREFIX}.{happening}",
                resource={**named, **labels},
                payload=content,
            )
        else:
            assert terminal is not None
            # No labels: automations that alert a person filter by them, and mean events of runs.
            run = payload.get("flow_run_id")
            related = {"flow-run": run} if run else {}
            fields = _event(happening, resource, shown, {"by": terminal.by, **content}, related)
            terminal.events.append(Event(**fields))


def announce_recoverable(flow_run: FlowRun) -> None:
    """Tell the automation that recovers failed runs about a run that it may recover. Never raises.

    It needs its own event: tags that a run adds to itself appear in Prefect's events only minutes later.
    """
    if flow_run.deployment_id is not None and flow_run.parent_task_run_id is None:
        roles = {"flow-run": flow_run.id, "deployment": flow_run.deployment_id}
        send_event("batch.recoverable", f"batch.{flow_run.id}", flow_run.name, {}, related=roles)


def announce_transition(change: Transition) -> None:
    """Send the event of a change of a circuit that this process causes."""
    circuit_changed(change.name, change.before, change.after)
    payload = {name: getattr(change, name) for name in _OF_CHANGE}
    emit(CIRCUIT_EVENTS.get(change.after, "circuit.forced"), "circuit", change.name, payload)


def announce_burn(status: BudgetStatus) -> None:
    """Send the event of an error budget that begins to burn."""
    since = status.burning_since
    # People read this in an alert, so it is a date and not seconds since the epoch.
    shown = None if since is None else f"{datetime.fromtimestamp(since, UTC):%Y-%m-%dT%H:%M:%SZ}"
    payload = {**status.model_dump(mode="json"), "burning_since": shown}
    emit("budget.burned", "budget", status.name, payload)


def announce_cap(spending: Spending) -> None:
    """Send the event of a cap that is reached."""
    name = spending["name"] or f"{spending['per']} {spending['scope']}"
    reserved = sum(spending["reserved"].values())
    emit("cap.reached", "cap", name, {**spending, "name": name, "reserved": reserved})


def announce_store(notice: StoreNotice) -> None:
    """Send the event of a store that stops answering."""
    if not notice.available:
        emit("store.unavailable", "store", notice.url, {"reason": notice.reason})


MESSAGE = 300
_PAYLOAD = (
    *("task_run_id", "node_id", "code", "category", "message", "circuit", "to", "degraded", "external_id"),
    *("why", "before", "after", "reason", "name", "last_error", *CALL_COUNTS),
)
"""The fields of an event's payload that are noted."""
_watching = False


def watch_runs() -> None:
    """Note runs and events from now on. Called when a module that writes summaries is imported."""
    global _watching
    _watching = True


def state_seen(state: State[Any], most: int = MESSAGE) -> StateSeen:
    """A state with at most so many characters of its message."""
    return StateSeen(
        state.type.value,
        state.name or state.type.value.title(),
        state.timestamp.timestamp(),
        bounded(redact(state.message), most) if state.message else "",
    )


def note_state(task_run: TaskRun, state: State[Any]) -> None:
    """Note a new state of a task run of this process, and the value of a completed one."""
    current = current_pass(task_run)
    if current is None:
        return
    run_id, name, key = str(task_run.id), task_run.name or "task run", task_run.dynamic_key
    noted, run = notes.task_run_came_to(str(current[0]), run_id, name, state_seen(state), current[1], key)
    if noted.keeps_outputs and state.is_completed():
        noted.add_output(run.label, state_data(state))


def note_happening(name: str, subject: str, payload: dict[str, Any]) -> UUID:
    """Note an event for the current flow run. Returns the id under which the event must be sent."""
    event_id = uuid4()
    if _watching and (current := current_pass()) is not None:
        event = happening_of(str(event_id), time.time(), name, subject, payload)
        notes.note_event(str(current[0]), event, current[1])
    return event_id


def happening_of(event_id: str, at: float, name: str, subject: str, payload: Mapping[str, Any]) -> Happening:
    """An event with the part of its payload that a summary shows."""
    error: Any = payload.get("error")
    fields = {**cast("Mapping[str, Any]", error), **payload} if isinstance(error, Mapping) else payload
    noted = {key: _short(fields[key]) for key in _PAYLOAD if fields.get(key) is not None}
    return Happening(event_id, at, name, subject, noted)


def _short(value: Any) -> Any:
    return value if isinstance(value, bool | int | float) else bounded(str(value), MESSAGE)


def current_pass(of: TaskRun | None = None) -> tuple[UUID, int] | None:
    """The current flow run and its run count, or those of the task run `of`, which lacks them at first."""
    flow, task = run_contexts()
    # In a flow inside a task, the task's context is still set, and the flow is the inner one.
    if flow is not None and (run := flow.flow_run) is not None and (of is None or run.id == of.flow_run_id):
        return run.id, max(run.run_count, 1)
    if of is None and task is not None:
        of = task.task_run
    if of is None or of.flow_run_id is None:
        return None
    return of.flow_run_id, max(of.flow_run_run_count, 1)
