"""The record of real task runs equals what a scripted day produced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.client.orchestration import get_client

from prefect_resilience import Bulkhead, resilient_flow, resilient_task
from prefect_resilience.blocks import ResiliencePolicy
from prefect_resilience.guards.budgets import policy
from prefect_resilience.guards.circuits.registry import forget_circuits
from prefect_resilience.operations.reports import api
from prefect_resilience.operations.tuning import record as reading
from prefect_resilience.operations.tuning.record import RecordedPeriod, RecordedTask, read_evidence
from prefect_resilience.tasks.edge.task_options import forget_options_told
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
        played = play(60)
        wanted = {name: counts["runs"] for name, counts in expected(played).items()}
        until(lambda: {one.name: len(one.runs) for one in read_evidence(played.since).tasks} == wanted, 60)
        yield SimpleNamespace(day=played, url=url)


@pytest.fixture
def at_the_day(day: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, own_store: Any) -> Day:
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", day.url)
    return day.day


def expected(day: Day) -> dict[str, Counter[str]]:
    ours = {name: counts for name, counts in day.tasks.items() if name != PLAIN_TASK}
    return {"named" if name == RENAMED else name: counts for name, counts in ours.items()}


def check(period: RecordedPeriod, day: Day) -> None:
    assert period.unknown == {}
    found = {one.name: one for one in period.tasks}
    assert found.keys() == expected(day).keys()
    for name, counts in expected(day).items():
        assert told(found[name]) == {key: counts.get(key, 0) for key in told(found[name])}, name


def told(task: RecordedTask) -> dict[str, int]:
    attempts = [one for run in task.runs for one in run.attempts]
    ends = Counter(run.ended for run in task.runs)
    return {
        "runs": len(task.runs),
        "attempts": sum(not one.rejected for one in attempts),
        "refused": sum(one.rejected for one in attempts),
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
    assert tasks["behind"].service == at_the_day.circuit
    assert {a.circuit for run in tasks["behind"].runs for a in run.attempts} == {at_the_day.circuit}


def test_times_are_those_of_the_runs(at_the_day: Day) -> None:
    period = read_evidence(at_the_day.since)
    for task in period.tasks:
        for run in task.runs:
            assert period.since <= run.start <= run.end <= period.until
            ends = [one.start + one.seconds for one in run.attempts]
            assert all(run.start - 0.01 <= end <= run.end + 0.01 for end in ends)


def test_pages_of_a_sample_stand_for_all(at_the_day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_PLAIN", 25)
    monkeypatch.setattr(reading, "PAGE", 10)
    monkeypatch.setattr(api, "PAGE", 10)
    period = read_evidence(at_the_day.since)
    assert "successes" in period.unknown
    troubled = [
        run for task in period.tasks for run in task.runs if len(run.attempts) != 1 or run.weight == 1
    ]
    assert period.runs < at_the_day.runs["runs"]
    assert len(troubled) >= at_the_day.runs["retried"]
    everything = sum(run.weight for task in period.tasks for run in task.runs)
    assert everything == pytest.approx(at_the_day.runs["runs"], rel=0.35)


def test_options_are_told_once_and_when_they_change(own_store: Any) -> None:
    forget_options_told()
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
        found = {one.name: one for one in read_evidence(since).tasks}.get("governed")
        return found if found is not None and len(found.runs) == 9 and found.options else None

    task = until(read, 60)
    options: Any = task.options
    assert options["retry"]["attempts"] == 2
    assert task.block == "evidence-block"
    assert options["circuit"]["name"] == "svc:{n}"
    assert "limits" not in options
    failed = next(run for run in task.runs if run.ended == "failed")
    assert [one.circuit for one in failed.attempts] == ["svc:7", "svc:7"]
    with get_client(sync_client=True) as client:
        body = {
            "filter": {
                "occurred": {"since": since.isoformat()},
                "event": {"name": ["prefect-resilience.task.configured"]},
            }
        }
        assert client.request("POST", "/events/filter", json=body).json()["total"] == 1


def test_the_latest_options_count(own_store: Any) -> None:
    forget_options_told()
    since = datetime.now(UTC)

    def make(attempts: int) -> Any:
        @resilient_task(name="changing", retry=attempts)
        def changing() -> None: ...

        return changing

    @resilient_flow
    def work() -> None:
        make(3)()
        make(4)()

    work()

    def read() -> Any:
        options: Any = {one.name: one.options for one in read_evidence(since).tasks}.get("changing")
        return options if options and options["retry"]["attempts"] == 4 else None

    assert until(read, 60)
