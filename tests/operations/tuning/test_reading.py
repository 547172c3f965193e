"""The record of real task runs equals what a scripted day produced, read at once or in steps."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_HOME

from prefect_resilience import Bulkhead, CircuitBreaker, resilient_flow, resilient_task
from prefect_resilience.blocks import ResiliencePolicy
from prefect_resilience.guards.budgets import policy
from prefect_resilience.guards.circuits.registry import forget_circuits
from prefect_resilience.operations.reports import api
from prefect_resilience.operations.tuning import kept, reading
from prefect_resilience.operations.tuning.reading import read_evidence
from prefect_resilience.operations.tuning.record import RecordedPeriod, RecordedTask
from prefect_resilience.tasks.edge.configured import EVENT, forget_options_told
from tests.operations.reports.scripted_day import QUICK, Day, play
from tests.prefect_runs import until

pytestmark = [pytest.mark.usefixtures("own_prefect_api"), pytest.mark.timeout(300)]

PLAIN_TASK = "plain"
RENAMED = "numbered"
"""In the report the function, and in the record the task "named"."""


@pytest.fixture(scope="module")
def day(own_prefect_api: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    with pytest.MonkeyPatch.context() as patch:
        url = f"sqlite:///{tmp_path_factory.mktemp('day')}/store.db"
        patch.setenv("PREFECT_RESILIENCE_STORE_URL", url)
        policy.forget_budgets()
        forget_circuits()
        forget_options_told()
        played = play(90)
        wanted = {name: counts["runs"] for name, counts in expected(played).items()}
        until(lambda: {one.name: len(one.runs) for one in fresh(played).tasks} == wanted, 60)
        yield SimpleNamespace(day=played, url=url)


@pytest.fixture
def at_the_day(day: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, own_store: Any) -> Day:
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", day.url)
    forget()
    return day.day


def files() -> list[Path]:
    return [*(Path(PREFECT_HOME.value()) / kept.FOLDER).glob("*")]


def forget() -> None:
    for path in files():
        path.unlink()


def fresh(day: Day) -> RecordedPeriod:
    forget()
    return read_evidence(day.since)


def expected(day: Day) -> dict[str, Counter[str]]:
    ours = {name: counts for name, counts in day.tasks.items() if name != PLAIN_TASK}
    return {"named" if name == RENAMED else name: counts for name, counts in ours.items()}


def check(period: RecordedPeriod, day: Day) -> None:
    assert period.runs == day.runs["runs"]
    assert period.unknown == {}
    found = {one.name: one for one in period.tasks}
    assert found.keys() == expected(day).keys()
    for name, counts in expected(day).items():
        # The report counts a replayed effect as an attempt; the record has only calls of the function.
        made = {**counts, "attempts": counts["attempts"] - counts["replayed"]}
        assert told(found[name]) == {key: made.get(key, 0) for key in told(found[name])}, name
    codes = Counter(
        attempt.code
        for task in period.tasks
        for run in task.runs
        for attempt in run.attempts
        if not attempt.succeeded and attempt.rejected_by is None
    )
    assert codes == day.codes


def told(task: RecordedTask) -> dict[str, int]:
    attempts = [one for run in task.runs for one in run.attempts]
    ends = Counter(run.ended for run in task.runs)
    return {
        "runs": len(task.runs),
        "attempts": sum(one.rejected_by is None for one in attempts),
        "refused": sum(one.rejected_by is not None for one in attempts),
        "recovered": sum(run.ended == "succeeded" and len(run.attempts) > 1 for run in task.runs),
        "succeeded": ends["succeeded"],
        "failed": ends["failed"],
        "fallbacks": ends["fallback"],
        "replayed": ends["other"],
    }


def test_every_run_is_recorded_with_its_attempts(at_the_day: Day) -> None:
    check(read_evidence(at_the_day.since), at_the_day)


def test_options_and_circuits_are_known(at_the_day: Day) -> None:
    period = read_evidence(at_the_day.since)
    tasks = {one.name: one for one in period.tasks}
    options: Any = tasks["fetch"].options
    assert options["retry"]["attempts"] == 3
    assert options["retry"]["backoff"]["kind"] == "none"
    assert tasks["ask model"].options is not None
    assert tasks["behind"].circuit == at_the_day.circuit
    assert {a.circuit for run in tasks["behind"].runs for a in run.attempts} == {at_the_day.circuit}
    (circuit,) = period.circuits
    assert circuit.name == at_the_day.circuit
    assert circuit.policy is not None
    assert circuit.policy["open_for"] == 600
    (opening,) = circuit.openings
    assert at_the_day.since.timestamp() < opening.start < period.until
    assert (opening.end, opening.forced) == (None, False)
    assert opening.reason


def test_times_are_those_of_the_runs(at_the_day: Day) -> None:
    period = read_evidence(at_the_day.since)
    for task in period.tasks:
        for run in task.runs:
            assert period.since <= run.start <= run.end <= period.until
            ends = [one.start + one.seconds for one in run.attempts]
            assert all(run.start - 0.01 <= end <= run.end + 0.01 for end in ends)


def test_pages_of_a_sample_stand_for_all(at_the_day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_PLAIN", 40)
    monkeypatch.setattr(reading, "SLICE", 60)
    monkeypatch.setattr(reading, "PAGE", 10)
    monkeypatch.setattr(api, "PAGE", 10)
    monkeypatch.setattr(reading, "FEW", 1)
    period = read_evidence(at_the_day.since)
    assert "successes" in period.unknown
    troubled = [
        run for task in period.tasks for run in task.runs if len(run.attempts) != 1 or run.weight == 1
    ]
    assert period.read < at_the_day.runs["runs"]
    assert len(troubled) >= at_the_day.runs["retried"]
    everything = sum(run.weight for task in period.tasks for run in task.runs)
    assert everything == pytest.approx(at_the_day.runs["runs"], rel=0.35)


def test_a_task_with_few_runs_is_read_whole(at_the_day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_PLAIN", 60)
    monkeypatch.setattr(reading, "PAGE", 10)
    monkeypatch.setattr(api, "PAGE", 10)
    monkeypatch.setattr(kept.Evidence, "bounded", _unbounded)
    period = read_evidence(at_the_day.since)
    behind = next(one for one in period.tasks if one.name == "pay")
    assert told(behind)["runs"] == at_the_day.tasks["pay"]["runs"]


def _unbounded(evidence: kept.Evidence, *_: object) -> kept.Evidence:
    return evidence


def test_too_many_failures_are_a_sample(at_the_day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_TROUBLED", 10)
    period = read_evidence(at_the_day.since)
    assert "failures" in period.unknown
    weights = {run.weight for task in period.tasks for run in task.runs if len(run.attempts) > 1}
    assert all(weight > 1 for weight in weights)


def test_the_second_call_reads_only_what_is_new(at_the_day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SETTLED", timedelta(0))
    read_evidence(at_the_day.since)
    asked: list[Any] = []
    page = api.Api.page

    def counting(self: Any, filters: Any, offset: int = 0, sort: str = "END_TIME_DESC") -> Any:
        rows = page(self, filters, offset, sort)
        asked.extend(rows)
        return rows

    monkeypatch.setattr(api.Api, "page", counting)
    check(read_evidence(at_the_day.since), at_the_day)
    assert len(asked) <= 2  # that the latest run is still there

    later = read_evidence(datetime.now(UTC) - timedelta(seconds=1))
    assert later.read == 0


def test_a_thin_sample_is_read_again_for_a_short_period(
    at_the_day: Day, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SETTLED", timedelta(0))
    monkeypatch.setattr(reading, "FEW", 1)
    monkeypatch.setattr(reading, "MOST_PLAIN", 10)
    sample = read_evidence(at_the_day.since)
    assert "successes" in sample.unknown
    monkeypatch.setattr(reading, "MOST_PLAIN", 10_000)
    check(read_evidence(at_the_day.since), at_the_day)


def test_a_stretch_in_the_middle_of_what_is_kept(at_the_day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SETTLED", timedelta(0))
    whole = read_evidence(at_the_day.since)
    middle = datetime.fromtimestamp((whole.since + whole.until) / 2, UTC)
    first, second = read_evidence(at_the_day.since, middle), read_evidence(middle)
    assert first.read + second.read == whole.read


def test_a_damaged_file_is_read_again(at_the_day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SETTLED", timedelta(0))
    read_evidence(at_the_day.since)
    (path,) = files()
    for damaged in (
        b"",
        b"nothing",
        gzip.compress(b"{}"),
        gzip.compress(b'{"version":0,"since":0,"until":9e9}'),
    ):
        path.write_bytes(damaged)
        check(read_evidence(at_the_day.since), at_the_day)


def test_another_server_at_the_address_is_noticed(at_the_day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SETTLED", timedelta(0))
    read_evidence(at_the_day.since)
    with get_client(sync_client=True) as client:
        address = str(client.api_url)
    found = kept.kept_evidence(address)
    assert found is not None
    run = replace(found.named()[0].run, run_id="0" * 8 + "-0000-4000-8000-" + "0" * 12, end=9e9)
    kept.keep(address, found.model_copy(update={"runs": {"gone": (run,)}}))
    check(read_evidence(at_the_day.since), at_the_day)


def test_options_are_told_once_and_when_they_change(own_store: Any) -> None:
    forget_options_told()
    forget()
    since = datetime.now(UTC)
    ResiliencePolicy.model_validate({"retry": {"attempts": 2}}).save("evidence-block", overwrite=True)

    @resilient_task(
        name="governed", policy="evidence-block", circuit="svc:{n}", retry=QUICK, limits=[Bulkhead(3)]
    )
    def governed(n: int) -> int:
        if n == 7:
            raise ConnectionError("reset")
        return n

    @resilient_flow
    def work() -> None:
        for n in range(9):
            governed(n, return_state=True)

    work()

    def read() -> RecordedTask | None:
        forget()
        found = {one.name: one for one in read_evidence(since).tasks}.get("governed")
        return found if found is not None and len(found.runs) == 9 and found.options else None

    task = until(read, 60)
    options: Any = task.options
    assert (options["retry"]["attempts"], task.block, task.circuit) == (2, "evidence-block", "svc:{n}")
    assert options["limits"] == {"max_concurrent": 3, "max_wait": None}
    assert task.changed_at is None
    failed = next(run for run in task.runs if run.ended == "failed")
    assert [one.circuit for one in failed.attempts] == ["svc:7", "svc:7"]
    with get_client(sync_client=True) as client:
        body = {"filter": {"occurred": {"since": since.isoformat()}, "event": {"name": [EVENT]}}}
        assert client.request("POST", "/events/filter", json=body).json()["total"] == 1


def test_the_change_of_options_has_its_time(own_store: Any) -> None:
    forget_options_told()
    since = datetime.now(UTC)

    def make(attempts: int) -> Any:
        @resilient_task(name="changing", retry=attempts)
        def changing() -> None: ...

        return changing

    @resilient_flow
    def work() -> float:
        make(3)()
        between = datetime.now(UTC).timestamp()
        make(4)()
        return between

    between = work()

    def read() -> RecordedTask | None:
        forget()
        found = {one.name: one for one in read_evidence(since).tasks}.get("changing")
        return found if found is not None and len(found.runs) == 2 and found.changed_at else None

    task = until(read, 60)
    options: Any = task.options
    assert options["retry"]["attempts"] == 4
    assert task.changed_at is not None
    assert task.changed_at >= between


def test_a_forced_circuit_and_an_unavailable_store(own_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forget()
    CircuitBreaker("by-hand").force_open("maintenance")
    period = read_evidence(timedelta(minutes=1))
    circuit = next(one for one in period.circuits if one.name == "by-hand")
    assert [one.forced for one in circuit.openings] == [True]
    monkeypatch.setenv("PREFECT_RESILIENCE_CIRCUIT_STORE_URL", "sqlite:////proc/no/such/place.db")
    forget_circuits()
    assert "circuits" in read_evidence(timedelta(minutes=1)).unknown
