"""A flow run parks while it waits for a service, and goes on later: in one process, against a real API."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import OrchestrationResult, SetStateStatus, StateRejectDetails
from prefect.exceptions import Pause
from prefect.flow_engine import run_flow
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Pending, Running
from prefect.task_runners import ProcessPoolTaskRunner

from prefect_resilience import (
    CircuitBreaker,
    CircuitOpenError,
    ConfigurationError,
    DeadlineExceeded,
    Effect,
    Fallback,
    Retry,
    error_context,
    resilient_flow,
    resilient_task,
)
from prefect_resilience.base.deadlines import current_deadline
from prefect_resilience.durable.batches.decisions import ApiUnavailable
from prefect_resilience.durable.batches.edge import parking as parked_runs
from prefect_resilience.durable.batches.edge.parking import (
    TURN,
    begin_pass,
    follow,
    keep,
    list_parked,
    mend_parked,
    park,
    read_parked,
    take_turn,
    wake,
)
from prefect_resilience.durable.batches.parked import ParkedRun
from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.errors.context import ErrorContext, attach_context
from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.guards.retries.policy import Verdict
from prefect_resilience.operations import crash_silent_runs
from prefect_resilience.tasks.edge import artifacts, long_waits
from prefect_resilience.tasks.edge.long_waits import (
    Opening,
    Parking,
    RunParks,
    opening_of,
    tasks_that_run_again,
)
from tests.prefect_runs import until

PARK = Retry(park_after="1m")
REJECTED = OrchestrationResult(
    state=None, status=SetStateStatus.REJECT, details=StateRejectDetails(reason="not now")
)
RUNNING = {"state": {"type": "RUNNING", "name": "Running"}, "force": True}
HOUR = 3_600.0


class Busy(Exception):
    status_code, retry_after = 503, HOUR


class Away:
    """A service that answers 503 while it is away, and whose calls are noted."""

    def __init__(self) -> None:
        self.is_away, self.calls = True, list[str]()

    def __call__(self, name: str) -> str:
        self.calls.append(name)
        if self.is_away:
            raise Busy("busy")
        return name


@pytest.fixture
def client(prefect_api: None) -> Any:
    with get_client(sync_client=True) as made:
        yield made


def created(client: SyncPrefectClient, made: Any) -> FlowRun:
    return client.create_flow_run_from_deployment(made.to_deployment("d").apply())


def run_pass(client: SyncPrefectClient, made: Any, run: FlowRun) -> Any:
    """What the process of a worker does with the run: None if it parked."""
    client.set_flow_run_state(run.id, Pending(), force=True)
    with suppress(Pause):
        done = run_flow(made, flow_run=client.read_flow_run(run.id))
        return asyncio.run(done) if asyncio.iscoroutine(done) else done
    return None


@pytest.mark.api
def test_a_run_parks_once_for_all_its_tasks_and_goes_on(client, caplog):
    service = Away()

    @resilient_task(effect=Effect(key="send:{n}"), retry=None)
    def send(n: int) -> int:
        service.calls.append(f"send {n}")
        return n

    @resilient_task(dead_letter=True)
    def ask(n: int) -> str:
        return service(f"ask {n}")

    @flow
    def inner(n: int) -> str:
        return ask(n)

    @resilient_flow
    def independent() -> str:
        return f"sent {send(3)}"

    @resilient_flow(retry=PARK, retries=1, name="asks")
    def asks() -> list[Any] | None:
        sent = [send(1)]
        asked = [ask.submit(n) for n in range(3)]
        later = send.submit(2)
        for future in asked:
            with suppress(Exception):
                future.result()
        sent.append(independent())
        with suppress(Exception):
            return [inner(3), *sent, later.result(), *[future.result() for future in asked]]

    run, began = created(client, asks), time.time()
    assert run_pass(client, asks, run) is None
    parked = client.read_flow_run(run.id)
    assert (parked.state.name, parked.state.type.value) == ("Parked", "SCHEDULED")
    assert began + HOUR <= parked.state.state_details.scheduled_time.timestamp() <= time.time() + HOUR
    assert parked.state.message.endswith(" UTC: ask: 503 unavailable: busy")
    assert (parked.empirical_policy.retries, parked.empirical_policy.retry_type) == (2, "reschedule")
    assert sorted(service.calls) == ["ask 0", "ask 1", "ask 2", "ask 3", "send 1", "send 2", "send 3"]
    assert (
        "these tasks run again, because they have neither an effect nor a stored result: 'ask'" in caplog.text
    )
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    known = read_parked(str(run.id))
    assert (known.flow, known.parks, known.is_open) == ("asks", 1, True)

    service.is_away = False
    done = run_pass(client, asks, run)
    assert done == ["ask 3", 1, "sent 3", 2, "ask 0", "ask 1", "ask 2"]
    assert client.read_flow_run(run.id).run_count == 2
    assert [service.calls.count(f"send {n}") for n in (1, 2, 3)] == [1, 1, 1]
    assert not read_parked(str(run.id)).is_open


@pytest.mark.api
def test_a_coroutine_parks_for_its_own_error_and_fails_after_the_longest_time(client):
    service = Away()

    @resilient_task(fallback=Fallback.value("cached"))
    async def answered() -> str:
        return service("answered")

    @resilient_task
    async def nested() -> str:
        return await ask()

    @resilient_task
    async def ask() -> str:
        return service("ask")

    @resilient_flow(retry=Retry(park_after="1m", max_parked="90m"), deadline="2h", name="waits")
    async def waits() -> Any:
        seen.append(0)
        assert await answered() == "cached"
        if len(seen) == 1:
            raise Busy("in the flow")
        return await nested()

    seen = list[Any]()
    run = created(client, waits)
    assert run_pass(client, waits, run) is None
    parked = read_parked(str(run.id))
    assert (parked.parks, parked.why) == (1, f"{run.name}: 503 unavailable: in the flow")
    assert run_pass(client, waits, run) is None
    assert service.calls == ["answered", "answered", "ask"]
    assert read_parked(str(run.id)).parks == 2
    keep(parked.model_copy(update={"since": time.time() - 2_000}))
    client.set_flow_run_state(run.id, Pending(), force=True)
    done = asyncio.run(run_flow(waits, flow_run=client.read_flow_run(run.id), return_type="state"))
    assert done.is_failed(), "an hour more would be more than max_parked"
    context = error_context(done)
    assert (context.code, context.attempt) == ("503", 2), "a parking is no attempt"


@pytest.mark.api
def test_a_cancelled_run_does_not_park_and_an_api_that_is_away_is_waited_for(client, monkeypatch):
    service = Away()

    @resilient_task(retry=None)
    def ask() -> str:
        return service("ask")

    @resilient_flow(retry=PARK, name="cancelled")
    def cancelled() -> str:
        client.set_flow_run_state(run.id, Cancelling(), force=True)
        return ask()

    run = created(client, cancelled)
    assert run_pass(client, cancelled, run) is None
    assert client.read_flow_run(run.id).state.name == "Cancelling"
    assert not read_parked(str(run.id)).is_open

    @resilient_flow(retry=PARK, name="twice")
    def twice() -> str:
        return ask()

    def away_once(parked: ParkedRun) -> Any:
        away.append(parked)
        if len(away) == 1:
            raise ApiUnavailable("the Prefect API is unavailable")
        return park(parked)

    away, run = list[ParkedRun](), created(client, twice)
    monkeypatch.setattr(parked_runs, "TRY_AGAIN", 0.01)
    monkeypatch.setattr(parked_runs, "park", away_once)
    busy = iter([1, 0])
    monkeypatch.setattr(long_waits, "overdue_calls", lambda: next(busy))
    assert run_pass(client, twice, run) is None
    assert client.read_flow_run(run.id).state.name == "Parked"

    # A worker wrote Crashed over Parked, or the process was killed in between.
    client.set_flow_run_state(run.id, Crashed(), force=True)
    mended = crash_silent_runs.with_options(validate_parameters=False)
    assert [trouble for one, trouble in mend_parked(dry_run=True)] == [
        "its process was killed while it parked"
    ]
    assert mended() >= 1  # other tests leave silent runs on the same API
    state = client.read_flow_run(run.id).state
    assert (state.name, state.message.partition(" UTC")[0][:40]) == (
        "Parked",
        "Found: its process was killed while it p",
    )
    assert [*mend_parked()] == []
    known = read_parked(str(run.id))
    keep(known.model_copy(update={"until": time.time() - 600}))
    assert [trouble[:12] for _, trouble in mend_parked()] == ["it is Parked"]
    assert [*mend_parked()] == []
    client.set_flow_run_state(run.id, Pending(), force=True)
    keep(known.model_copy(update={"until": time.time() - 200}))
    for hold, found in (("held", []), ("unknown", []), ("gone", ["it is Pending"])):
        monkeypatch.setattr(parked_runs, "hold_on", lambda *_, hold=hold: hold)
        assert [trouble[:13] for _, trouble in mend_parked()] == found

    with monkeypatch.context() as patch:
        patch.setattr(SyncPrefectClient, "set_flow_run_state", lambda *_: REJECTED)
        client.request("POST", "/flow_runs/{id}/set_state", path_params={"id": run.id}, json=RUNNING)
        assert park(known) == "not now"
    client.set_flow_run_state(run.id, Completed(), force=True)
    assert [*mend_parked()] == []
    assert not read_parked(str(run.id)).is_open


@pytest.mark.api
def test_where_a_run_cannot_park_it_does_not_begin(client):
    @resilient_flow(retry=PARK, name="alone")
    def alone() -> None: ...

    with pytest.raises(ConfigurationError, match="park_after needs a deployment and a worker"):
        alone()
    elsewhere = alone.with_options(task_runner=ProcessPoolTaskRunner())
    with pytest.raises(ConfigurationError, match="park_after needs the ThreadPoolTaskRunner"):
        run_pass(client, elsewhere, created(client, elsewhere))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"retry": Retry(3)}, "of a flow: write Retry"),
        ({"retry": 3}, "of a flow: write Retry"),
        ({"retry": Retry(5, park_after=60)}, "Other options are for its tasks"),
    ],
)
def test_options_that_a_flow_does_not_have(options, problem):
    with pytest.raises(ConfigurationError, match=problem):
        resilient_flow(**options)(lambda: None)


def test_a_task_does_not_park_itself():
    with pytest.raises(ConfigurationError, match="park_after is for flows"):
        resilient_task(retry=PARK)(lambda: None)
    assert resilient_flow(retry={"park_after": "2m"})(
        test_a_task_does_not_park_itself
    ).guard.parking == Retry(park_after=120)


def context_of(error: Exception, **more: Any) -> ErrorContext:
    return ErrorContext.from_info(classify(error), timestamp=datetime.now(UTC), **more)


AGAIN, NEVER = Verdict(True, 61.0, ""), Verdict(False, 0.0, "")
LONG, SHORT, LOST = Busy("busy"), ConnectionError("reset"), PermissionError("no")


@pytest.mark.parametrize(
    ("error", "verdict", "waits"),
    [
        (SHORT, AGAIN, 61.0),
        (SHORT, Verdict(True, 59.0, ""), None),
        (SHORT, NEVER, None),
        (LOST, NEVER, None),
        (LONG, NEVER, HOUR),
        (LONG, None, HOUR),
        (LONG, Verdict(True, 2 * HOUR + 1, ""), None),
        (CircuitOpenError("shop", 0.5), NEVER, 0.5),
        (CircuitOpenError("shop", None), NEVER, None),
        (CircuitOpenError("shop", 2 * HOUR + 1), NEVER, None),
    ],
)
def test_which_waits_park(error, verdict, waits):
    now = time.time()
    wait = Parking(PARK, now + 2 * HOUR).wait_of("ask", context_of(error), verdict)
    assert (None if wait is None else round(wait.until - now, 1)) == waits
    assert wait is None or wait.by_service is (error is LONG)


class Line:
    """Runs that wait for the circuit "line": `until`, `since` are seconds from `now`."""

    def __init__(self, client: SyncPrefectClient) -> None:
        self.client, self.now, self.flow = client, time.time(), flow(lambda: None, name="in line")
        self.circuit = CircuitBreaker("line", failure_threshold=1, open_for=600, success_threshold=1)
        self.names = dict[str, str]()

    def put(self, name: str, until: float, since: float = 0.0, **more: Any) -> ParkedRun:
        run = created(self.client, self.flow)
        facts = {"flow_run_id": str(run.id), "name": name, "flow": "in line", "why": "open", "parks": 1}
        times = {"until": self.now + until, "at": self.now - 60, "since": self.now + since}
        parked = ParkedRun.model_validate({**facts, **times, "circuit": "line", **more})
        self.client.set_flow_run_state(run.id, Running(), force=True)
        keep(parked)
        assert park(parked)
        return parked

    def shown(self) -> dict[str, int]:
        """When each goes on, as the store and the API say it."""
        rows = {run: round(run.until - self.now) for run in list_parked() if run.flow == "in line"}
        for run, due in rows.items():
            at = self.client.read_flow_run(UUID(run.flow_run_id)).state.state_details.scheduled_time
            assert at is None or round(at.timestamp() - self.now) == due
        return {run.name: due for run, due in rows.items()}


@pytest.fixture
def line(client: Any) -> Any:
    made = Line(client)
    yield made
    for run in list_parked():
        client.set_flow_run_state(UUID(run.flow_run_id), Cancelled())
        keep(run.model_copy(update={"is_open": False}))


@pytest.mark.api
def test_one_run_probes_and_the_others_of_its_circuit_wait(line):
    assert take_turn(line.put("alone", 100, circuit=None)).until == line.now + 100
    first = line.put("probe", 100)
    keep(first.model_copy(update={"is_open": False}))
    assert take_turn(first) == first, "the first goes on when the opening ends"
    keep(first)
    second = take_turn(first.model_copy(update={"flow_run_id": "second", "until": line.now + 101}))
    assert round(second.until - line.now) == 101 + TURN
    line.put("next", 130)
    line.put("soon", 10)

    # The probe opened the circuit again: it is the next probe, too, and the others go on later.
    keep(first.model_copy(update={"is_open": False}))
    again = take_turn(first.model_copy(update={"until": line.now + 300}))
    assert (round(again.until - line.now), line.shown()) == (300, {"alone": 100, "soon": 10, "next": 330})


@pytest.mark.api
def test_runs_follow_when_their_circuit_has_closed(line):
    line.circuit.force_open("maintenance")
    line.put("first", 600)
    line.put("third", 700, since=10)
    line.put("second", 660, since=1)
    line.put("asked", 800, since=11, not_before=line.now + 500)
    line.put("late", 900, since=1_000)
    line.put("turn", 12, since=12)
    line.put("bank", 900, circuit="bank")
    assert follow() == 0
    line.circuit.force_closed()
    assert follow() == 5
    first = line.shown()["first"]
    assert line.shown() == {
        **{"first": first, "second": first + 2, "third": first + 11, "turn": 12},
        **{"late": 42, "asked": 500, "bank": 900},
    }
    assert 2 <= first < 30
    assert follow() == 0, "each only once"


@pytest.mark.api
@pytest.mark.parametrize("seen_by", ["the run whose call closed it", "the next run", "the operation"])
def test_a_closed_circuit_is_seen(line, monkeypatch, seen_by):
    monkeypatch.setattr(artifacts, "EVERY", 0.1)
    line.circuit.force_open("maintenance", until="10ms")
    line.put("first", 600)
    second = line.put("second", 700)
    time.sleep(0.05)
    line.circuit.call(int) if "call" not in seen_by else flow(lambda: line.circuit.call(int))()
    if seen_by == "the next run":
        begin_pass(second)
    elif seen_by == "the operation":
        assert [*mend_parked(dry_run=True)] == []
        assert line.shown()["first"] == 600
        assert [*mend_parked()] == []
    assert until(lambda: {run.name: run.until for run in list_parked()}["first"] < line.now + 100)


@pytest.mark.api
def test_a_person_wakes_a_run_but_not_before_its_service_is_back(line):
    run = line.put("asked", 600, not_before=line.now + 500)
    woken = wake(run, 0.0, "Woken by ada")
    assert round(woken.until - line.now) == 500
    assert wake(woken, 0.0, "Woken by ada").startswith("it goes on at 20")
    keep(free := run.model_copy(update={"not_before": None}))
    woken = wake(free, time.time() + 20, "Woken by ada")
    assert (woken.is_open, round(woken.until - line.now) < 60) == (True, True)
    state = line.client.read_flow_run(UUID(run.flow_run_id)).state
    assert (state.name, state.message.startswith("Woken by ada. Parked until 20")) == ("Parked", True)
    assert wake(free, 0.0, "Woken by ada") == "another process wakes it"
    keep(soon := free.model_copy(update={"until": time.time() + 5}))
    assert wake(soon, 0.0, "Woken by ada").startswith("it goes on at 20")
    line.client.set_flow_run_state(UUID(run.flow_run_id), Cancelled())
    assert wake(free, 0.0, "ada") == "it is Cancelled, not Parked"
    gone = free.model_copy(update={"flow_run_id": str(UUID(int=1))})
    assert wake(gone, 0.0, "ada") == "it is gone, not Parked"


@pytest.mark.api
@pytest.mark.parametrize("button", ["cancel", "retry", "cancel and retry"])
def test_the_buttons_of_the_ui_work_on_a_parked_run(client, button):
    """By the states that the pages of Prefect's UI set."""
    service, sent = Away(), list[str]()

    @resilient_task(effect=Effect(key="send"))
    def send() -> None:
        sent.append("once")

    @resilient_task(retry=None)
    def ask() -> str:
        return service("answer")

    @resilient_flow(retry=PARK, name="buttons")
    def buttons() -> str:
        send()
        return ask()

    def press(kind: str, name: str) -> None:
        state = {"type": kind, "name": name, "message": f"{name} from the UI"}
        body = {"state": state, "force": "retry" in button}  # Cancel of the old UI does not force
        client.request(
            "POST", "/flow_runs/{id}/set_state", path_params={"id": run.id}, json=body
        ).raise_for_status()

    run = created(client, buttons)
    assert run_pass(client, buttons, run) is None
    service.is_away = False
    if "cancel" in button:
        press("CANCELLING", "Cancelling")
        assert client.read_flow_run(run.id).state.name == "Cancelled", "at once: there is no process to end"
        assert [*mend_parked()] == []
        assert not read_parked(str(run.id)).is_open
    if "retry" in button:
        press("SCHEDULED", "AwaitingRetry")
        assert [*mend_parked()] == []
        due = client.request(
            "POST", "/deployments/get_scheduled_flow_runs", json={"deployment_ids": [str(run.deployment_id)]}
        )
        assert [found["id"] for found in due.json()] == [str(run.id)], "a worker takes it"
        assert run_pass(client, buttons, run) == "answer"
        assert client.read_flow_run(run.id).state.name == "Completed"
    assert (sent, len(service.calls)) == (["once"], 1 + ("retry" in button))


def test_a_task_has_decided_about_its_own_error():
    parked, error = Parking(PARK, time.time() + 2 * HOUR), Busy("busy")
    attach_context(error, context_of(error, task_run_id="t"))
    parked.note_failure("run", error)
    assert parked.waits == []


def test_a_failure_that_opens_the_circuit_waits_for_it(monkeypatch):
    circuit = CircuitBreaker("opens-in-parking", failure_threshold=1, open_for=90, open_backoff=1)
    assert opening_of(circuit) is None
    with suppress(TimeoutError):
        circuit.call(_time_out)
    name, rest = opening_of(circuit) or ("", 0.0)
    assert (name, 80 < rest <= 90) == (circuit.name, True)
    now = time.time()
    wait = Parking(PARK, now + HOUR).wait_of("ask", context_of(SHORT), NEVER, Opening(name, rest))
    assert (wait.circuit, round(wait.until - now), wait.by_service) == (name, round(rest), False)
    circuit.force_open("until a person closes it")
    assert opening_of(circuit) is None
    circuit.force_open("nearly over", until="10ms")
    time.sleep(0.05)
    assert opening_of(circuit) == (circuit.name, long_waits.SOON)


def _time_out() -> None:
    raise TimeoutError


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (None, RunParks),
        (ValueError(), RunParks),
        (RunParks(), RunParks),
        (BaseExceptionGroup("", [ValueError(), RunParks()]), RunParks),
        (BaseExceptionGroup("", [ValueError(), KeyboardInterrupt()]), BaseExceptionGroup),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_what_ends_the_function_before_it_parks(error, raised):
    context: Any = SimpleNamespace(flow_run=SimpleNamespace(name="run"), task_runner=None)
    outer = Parking(PARK, time.time() + 2 * HOUR)
    inner = Parking(PARK, outer.latest, outer=outer)
    wait = inner.wait_of("ask", context_of(LONG), None)

    def function() -> None:
        with long_waits.parking_around(inner, context):
            if error is not None:
                raise error

    with pytest.raises(raised):
        function()
    assert outer.waits[:1] == ([wait] if raised is RunParks else [])


@pytest.mark.api
def test_a_deadline_goes_on_while_the_run_is_parked(client, monkeypatch):
    begun = list[float]()

    @resilient_flow(retry=PARK, deadline="3h", name="limited")
    def limited() -> None:
        begun.append(current_deadline.get().remaining())
        raise Busy("busy")

    def shift(run: FlowRun, seconds: float) -> None:
        parked = read_parked(str(run.id))
        keep(parked.model_copy(update={"deadline": parked.deadline - seconds}))

    run = created(client, limited)
    assert run_pass(client, limited, run) is None
    assert read_parked(str(run.id)).deadline == pytest.approx(parked_runs.store_time() + 3 * HOUR, abs=60)
    shift(run, HOUR)
    assert run_pass(client, limited, run) is None
    monkeypatch.setattr(parked_runs, "store_time", raising(StoreUnavailable("away")))
    assert run_pass(client, limited, run) is None
    assert read_parked(str(run.id)).deadline is None
    monkeypatch.undo()
    assert run_pass(client, limited, run) is None
    assert begun == pytest.approx([3 * HOUR, 2 * HOUR, 3 * HOUR, 3 * HOUR], abs=60)
    shift(run, 4 * HOUR)
    with pytest.raises(DeadlineExceeded, match="not begun: the deadline of 10800 s set at flow limited"):
        run_pass(client, limited, run)
    with suppress(Busy):  # once more by hand
        run_pass(client, limited, run)
    assert len(begun) == 5


def raising(error: Exception) -> Any:
    def fail() -> Any:
        raise error

    return fail


@pytest.mark.api
def test_without_a_store_a_run_parks_too(monkeypatch, caplog):
    def away(*_: Any) -> None:
        raise StoreUnavailable("the store is away")

    for name in ("keep", "read_parked", "take_turn"):
        monkeypatch.setattr(parked_runs, name, away)
    run = SimpleNamespace(name="run", id="id", deployment_id="d", run_count=2, parent_task_run_id="p")
    context: Any = SimpleNamespace(flow_run=run, task_runner=flow(lambda: None).task_runner, flow=None)
    began = long_waits.begin_parking(PARK, context, len)
    assert began is not None
    began.wait_of("ask", context_of(LONG), None)
    monkeypatch.setattr(parked_runs, "park", lambda parked: Cancelled(name=parked.flow))
    assert long_waits.park_run(began, context).is_cancelled()
    assert caplog.text.count("the store is away") == 2


@task(persist_result=True)
def stored() -> None: ...


@task
def not_stored() -> None: ...


@task(persist_result=True, cache_policy=None)
def not_found_again() -> None: ...


@resilient_task(effect="external")
def an_effect() -> None: ...


def test_the_tasks_that_run_again():
    @task
    def of_a_closure() -> None: ...

    def body() -> list[Any]:
        return [
            stored(),
            [not_stored() for _ in range(2)],
            not_found_again(),
            an_effect(),
            of_a_closure(),
            sys,
        ]

    assert [*tasks_that_run_again(body)] == ["not_found_again", "not_stored", "of_a_closure"]
