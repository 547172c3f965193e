"""Parks flow runs and wakes them: the document in the store, and the state in the Prefect API.

Runs that wait for a circuit form a line. The first goes on at the end of the opening, and its call is the
probe. If that closes the circuit, the others follow. If it opens it again, they stay parked. If it does
neither, because the run was cancelled, say, the next run of the line probes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.states import Scheduled

from prefect_resilience.base.deadlines import CallDeadline
from prefect_resilience.base.text import utc_text
from prefect_resilience.durable.batches.decisions import ApiUnavailable
from prefect_resilience.durable.batches.edge.flow_runs import LETS_GO, hold_on, set_state
from prefect_resilience.durable.batches.edge.marks import asking
from prefect_resilience.durable.batches.parked import LEAD, PARKED, PREFIX, ParkedRun, key_of, message_of
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits.breaker import get_circuits
from prefect_resilience.stores.base import Store, change, scan_all
from prefect_resilience.telemetry.edge.events import emit

APART, TURN = 2.0, 30.0
"""After a circuit closed, the fewest and the most seconds between the starts of two runs that waited for it.
While it is not closed, TURN lies between two probes."""
TRY_AGAIN = 10.0
"""Seconds between two attempts to park while the Prefect API is unavailable."""
TAKEN = 15.0
"""Seconds before the time of a run from which on a worker may have taken it."""
KEPT_SECONDS = 7 * 86_400.0
LATE = 120.0
"""How many seconds late a parked run must be before it counts as stranded."""

_asking_api = partial(asking, ApiUnavailable, "the Prefect API is unavailable", (ObjectNotFound,), own=True)


def read_parked(flow_run_id: str, store: Store | str | None = None) -> ParkedRun | None:
    """What the store keeps of a run. Raises StoreUnavailable."""
    stored = open_ledger(store).store.load(key_of(flow_run_id))
    return None if stored is None else ParkedRun.model_validate(stored.value)


def list_parked(store: Store | str | None = None) -> list[ParkedRun]:
    """Every parked run, the one that goes on first first. Raises StoreUnavailable."""
    documents = scan_all(open_ledger(store).store, PREFIX, only_open=True)
    runs = [ParkedRun.model_validate(document.value) for _, document in documents]
    return sorted((run for run in runs if run.is_open), key=lambda run: run.until)


def take_turn(run: ParkedRun) -> ParkedRun:
    """The run, with its turn in the line of a circuit that is open until `run.until`.

    Runs that would go on before the end of this opening go to the end of the line. Raises StoreUnavailable
    and ApiUnavailable.
    """
    line = [parked for parked in list_parked() if parked.circuit == run.circuit] if run.circuit else []
    last = max([run.until, *(parked.until for parked in line)])
    for parked in line:
        if parked.until < run.until - APART:
            moved = wake(parked, last + TURN, "Its circuit opened again")
            last = last if isinstance(moved, str) else moved.until
    soonest = max(run.until, time.time() + LEAD)
    is_probed = any(run.until - APART <= parked.until < soonest + APART for parked in line)
    return run.model_copy(update={"until": last + TURN}) if is_probed else run


def follow(store: Store | str | None = None) -> int:
    """Let the runs go on that wait for a circuit that is closed, and return their number.

    They follow each other as they came, and APART at least, so that the usual load of the service is not
    passed. Raises StoreUnavailable and ApiUnavailable.
    """
    waiting = sorted((run for run in list_parked(store) if run.circuit), key=lambda run: run.since)
    circuits = get_circuits() if waiting else []
    closed = {circuit.name for circuit in circuits if circuit.state in ("closed", "disabled")}
    number, latest = 0, dict[str | None, ParkedRun]()
    for run in (run for run in waiting if run.circuit in closed):
        before = latest.get(run.circuit)
        gap = APART if before is None else min(max(run.since - before.since, APART), TURN)
        at = min((time.time() if before is None else before.until) + gap, run.until)
        if at < run.until:
            number += isinstance(wake(run, at, "Its circuit closed", store), ParkedRun)
        latest[run.circuit] = run.model_copy(update={"until": at})
    return number


def wake(run: ParkedRun, at: float, why: str, store: Store | str | None = None) -> ParkedRun | str:
    """Change when a parked run goes on, by time, by its circuit or by a person; or why that is not possible.

    Never before the time for which a service asked. Claimed in the store. Raises StoreUnavailable and
    ApiUnavailable.
    """
    until = max(at, run.at + LEAD, run.not_before or 0.0)
    moved = run.model_copy(update={"until": until})
    before, after = run.model_dump(mode="json"), moved.model_dump(mode="json")
    with _asking_api() as client:
        state = _state_of(client, run)
        if state is None or not is_parked(state):
            return f"it is {'gone' if state is None else state.name}, not {PARKED}"
        if run.until < time.time() + TAKEN or until == run.until:
            return f"it goes on at {utc_text(run.until)}"
        document, key = open_ledger(store).store, key_of(run.flow_run_id)
        if change(document, key, lambda stored: after if stored == before else None, is_open=bool) is None:
            return "another process wakes it"
        answer = _schedule(client, moved, f"{why}. {message_of(moved)}")
        return answer if isinstance(answer, str) else moved


def keep(run: ParkedRun, store: Store | str | None = None) -> None:
    """Write what the store keeps of a run. Raises StoreUnavailable."""
    lasts = None if run.is_open else KEPT_SECONDS
    value = run.model_dump(mode="json")
    change(open_ledger(store).store, key_of(run.flow_run_id), lambda _: value, lasts, lambda _: run.is_open)


def store_time() -> float:
    """The time of the store, which all processes share. Raises StoreUnavailable."""
    return open_ledger().store.now()


def begin_pass(run: ParkedRun) -> None:
    """A parked run runs again. Raises StoreUnavailable and ApiUnavailable."""
    keep(run.model_copy(update={"is_open": False}))
    emit("run.woken", "run", run.name, {**_payload_of(run), "waited": max(time.time() - run.at, 0.0)})
    follow()  # if the process whose call closed the circuit was killed


def park_when_possible(run: ParkedRun, latest: float, limit: CallDeadline | None, log: Any) -> Any:
    """The state of a running flow run that is now Parked, until `latest` at most; None if the API rejected
    that, as for a cancelled run. `limit`: the deadline of the run. While the API is unavailable, waits here.
    """
    with suppress(StoreUnavailable, ApiUnavailable):
        run = take_turn(run)
    until = min(run.until, latest)
    if limit is not None:
        with suppress(StoreUnavailable):
            run = run.model_copy(update={"deadline": store_time() + limit.remaining()})
    while True:
        run = run.model_copy(update={"until": max(until, time.time() + LEAD)})
        _keep_if_possible(run, log)
        try:
            state = park(run)
        except ApiUnavailable as failure:
            log.warning("Waiting in the process, because the run could not be parked: %s", failure)
            time.sleep(TRY_AGAIN)
            continue
        if isinstance(state, str):
            log.warning("Not parked: %s", state)
            _keep_if_possible(run.model_copy(update={"is_open": False}), log)
            return None
        log.info("%s", message_of(run))
        return state


def _keep_if_possible(run: ParkedRun, log: Any) -> None:
    try:
        keep(run)
    except StoreUnavailable as failure:
        log.warning("That this run parks could not be stored: %s", failure)


def park(run: ParkedRun) -> State[Any] | str:
    """Set the state of a running flow run to Parked; or why the API rejected it. Raises ApiUnavailable.

    The run keeps its retries: the next start is counted by Prefect, so it may start once more.
    """
    run_id = UUID(run.flow_run_id)
    with _asking_api() as client:
        flow_run = client.read_flow_run(run_id)
        if flow_run.state is None or not flow_run.state.is_running():
            return f"it is {flow_run.state and flow_run.state.name}"
        policy = flow_run.empirical_policy.model_dump(mode="json")
        retries = policy["retries"]
        policy |= {"retries": None if retries is None else retries + 1, "retry_type": "reschedule"}
        # The id of the process would keep a cancelled run in Cancelling; the client leaves out a None.
        body = {"empirical_policy": policy, "infrastructure_pid": None}
        client.request("PATCH", "/flow_runs/{id}", path_params={"id": run_id}, json=body).raise_for_status()
        state = _schedule(client, run, message_of(run))
    if not isinstance(state, str):
        emit("run.parked", "run", run.name, _payload_of(run))
    return state


def _schedule(client: SyncPrefectClient, run: ParkedRun, message: str) -> State[Any] | str:
    moment = datetime.fromtimestamp(run.until, UTC)
    state = Scheduled(name=PARKED, scheduled_time=moment, message=redact(message))
    return set_state(client, UUID(run.flow_run_id), state)


def _payload_of(run: ParkedRun) -> dict[str, Any]:
    names = ("flow_run_id", "flow", "why", "until", "parks", "circuit")
    return run.model_dump(mode="json", include={*names})


def _state_of(client: SyncPrefectClient, run: ParkedRun) -> State[Any] | None:
    with suppress(ObjectNotFound):
        return client.read_flow_run(UUID(run.flow_run_id)).state
    return None


def is_parked(state: State[Any]) -> bool:
    """Whether this is the state of a parked flow run."""
    return state.is_scheduled() and state.name == PARKED


def _trouble_of(client: SyncPrefectClient, run: ParkedRun, state: State[Any]) -> str | None:
    late = time.time() - run.until
    if is_parked(state) and late > LATE:
        return f"it is Parked, and should have gone on at {utc_text(run.until)}"
    if state.is_pending() and late > LATE:  # it was taken, and has not begun
        hold = hold_on(client, UUID(run.flow_run_id), state.timestamp.timestamp())
        if hold != "held" and (hold != "unknown" or late > LETS_GO):
            return f"it is {state.name}, and its worker or process is gone"
    is_killed = state.is_crashed() and state.timestamp.timestamp() < run.until
    return "its process was killed while it parked" if is_killed else None


def mend_parked(
    *, dry_run: bool = False, store: Store | str | None = None
) -> Iterator[tuple[ParkedRun, str]]:
    """Find parked runs that nothing will wake, and schedule them; each with what was wrong.

    If a process was killed while it parked its run, a worker reports it as Crashed. If a worker was killed
    while it started a run, that stays Pending. Runs whose circuit has closed follow. Raises StoreUnavailable
    and ApiUnavailable.
    """
    if not dry_run:
        follow(store)
    for run in list_parked(store):
        with _asking_api() as client:
            state = _state_of(client, run)
            trouble = None if state is None else _trouble_of(client, run, state)
            if trouble is None:
                if state is None or state.is_final():
                    keep(run.model_copy(update={"is_open": False}), store)
                continue
            yield run, trouble
            if not dry_run:
                later = run.model_copy(update={"until": max(run.until, time.time())})
                _schedule(client, later, f"Found: {trouble}. {message_of(run)}")
                keep(later, store)
                emit("run.stranded", "run", run.name, {**_payload_of(run), "trouble": trouble})
