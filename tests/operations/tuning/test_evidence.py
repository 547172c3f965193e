"""From JSON of the API to the record, without a server."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from prefect_resilience.operations.reports.api import PAGE, Api, Period
from prefect_resilience.operations.tuning import record as reading
from prefect_resilience.operations.tuning.record import RecordedRun, RecordedTask, run_of_event

FAILED = {"at": 100.0, "seconds": 0.5, "delay": 2.0, "category": "unavailable", "code": "503"}
REFUSED = {"at": 102.5, "seconds": 0.0, "category": "circuit_open", "code": "CIRCUIT_OPEN", "by": "circuit"}


def event(*attempts: Any, circuit: str | None = None, name: str = "run.failed", **payload: Any) -> Any:
    record = {"attempts": list(attempts), **({"circuit": circuit} if circuit else {})}
    return {
        "event": f"prefect-resilience.{name}",
        "resource": {"prefect.resource.name": "ask"},
        "payload": {"task_run_id": "run-1", "record": record, **payload},
    }


def row(**changes: Any) -> dict[str, Any]:
    return {
        "id": "run-2",
        "name": "ask-1a2",
        "task_key": "ask-12345678",
        "dynamic_key": "1a2b3c4d",
        "state_type": "COMPLETED",
        "state_name": "Completed",
        "run_count": 1,
        "start_time": "2026-11-25T10:00:00Z",
        "end_time": "2026-11-25T10:00:02Z",
        **changes,
    }


class FakeApi:
    """The rows of an API, in pages."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def count(self, kind: str, filters: Any) -> int:
        return len(self.rows)

    def page(self, filters: Any, offset: int) -> list[dict[str, Any]]:
        return self.rows[offset : offset + PAGE]

    def each(self, work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return map(work, items)


DAY = Period(datetime(2026, 11, 25, tzinfo=UTC), datetime(2026, 11, 26, tzinfo=UTC))


def options(task: str = "ask", function: str = "ask") -> reading.TaskOptions:
    return reading.TaskOptions(task, f"{function}-12345678", {}, None)


def read(
    *rows: dict[str, Any], known: Any = None, troubled: Mapping[str, Any] | None = None
) -> tuple[dict[str, tuple[str, RecordedRun]], dict[str, str]]:
    """The runs that the rows tell, and what is unknown."""
    unknown: dict[str, str] = {}
    tasks = reading._tasks_of_rows([options()] if known is None else known, {})
    api = cast(Api, FakeApi(list(rows)))
    return reading._plain(api, DAY, tasks, unknown, dict(troubled or {})), unknown


class TestEvents:
    def test_a_recovered_run_has_the_attempt_that_succeeded(self) -> None:
        told = run_of_event(event(FAILED, name="run.recovered", after=3.0, circuit="llm"))
        assert told is not None
        task, run = told
        assert (task, run.run_id, run.ended) == ("ask", "run-1", "succeeded")
        assert (run.start, run.end) == (100.0, 103.0)
        first, last = run.attempts
        assert (first.succeeded, first.seconds, first.category) == (False, 0.5, "unavailable")
        assert (last.succeeded, last.start, last.seconds) == (True, 102.5, 0.5)
        assert first.circuit == last.circuit == "llm"

    def test_a_rejected_call_is_no_call(self) -> None:
        told = run_of_event(event(FAILED, REFUSED, {**REFUSED, "by": "bulkhead"}, name="fallback.used"))
        assert told is not None
        assert [one.rejected for one in told[1].attempts] == [False, True, True]
        assert told[1].ended == "fallback"

    @pytest.mark.parametrize(
        "given",
        [
            event(),
            {**event(FAILED), "payload": {"task_run_id": "run-1"}},
            {**event(FAILED), "payload": None},
            {**event(FAILED), "resource": {}},
            event("… 3 more"),
            event(FAILED, task_run_id=None),
        ],
    )
    def test_an_event_without_its_attempts_is_left_out(self, given: dict[str, Any]) -> None:
        assert run_of_event(given) is None


class TestRows:
    @pytest.mark.parametrize(
        "changes",
        [
            {"run_count": 2},
            {"state_name": "Failed", "state_type": "FAILED"},
            {"state_name": "Fallback"},
            {"state_name": "Degraded"},
        ],
    )
    def test_runs_with_failures_are_left_to_their_events(self, changes: dict[str, Any]) -> None:
        runs, unknown = read(row(**changes))
        assert not runs
        assert "about 100% of the runs with retries or failures" in unknown["attempts"]
        assert read(row(**changes), troubled={"run-2": ("ask", None)}) == ({}, {})

    def test_a_run_with_a_name_of_its_own_is_known_by_its_function(self) -> None:
        own = row(name="order 7", dynamic_key="7")
        runs, _ = read(own, known=[options("Ask the model")])
        assert runs["run-2"][0] == "Ask the model"
        assert read(own, known=[options("a"), options("b")])[0] == {}

    def test_a_sample_stands_for_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "MOST_PLAIN", 3 * PAGE)
        rows = [row(id=f"run-{number}") for number in range(10 * PAGE)]
        runs, unknown = read(*rows)
        assert len(runs) == 3 * PAGE
        assert sum(run.weight for _, run in runs.values()) == pytest.approx(len(rows))
        assert f"a random sample of {3 * PAGE} was read" in unknown["successes"]


def test_the_service_of_a_task_is_its_circuit() -> None:
    told = [run_of_event(event(FAILED, circuit=name)) for name in ("llm:a", "llm:b", "llm:b")]
    runs = tuple(one[1] for one in told if one is not None)
    written: dict[str, object] = {"circuit": {"name": "llm:{provider}"}}
    assert RecordedTask("ask", runs, written).service == "llm:b"
    assert RecordedTask("ask", (), written).service == "llm:{provider}"
    assert RecordedTask("ask", (), {"circuit": None}).service == "ask"
