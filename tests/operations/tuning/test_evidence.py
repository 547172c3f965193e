"""From JSON of the API to the record, without a server."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.operations.tuning.evidence import (
    KnownOptions,
    NamedRun,
    TaskNames,
    circuits_of_record,
    run_of_event,
    seen_in,
    tasks_of,
    thinned,
)
from prefect_resilience.operations.tuning.record import RecordedAttempt, RecordedOpening, RecordedRun

FAILED = {"at": 100.0, "seconds": 0.5, "delay": 2.0, "category": "unavailable", "code": "503"}
REFUSED = {"at": 102.5, "seconds": 0.0, "category": "circuit_open", "code": "CIRCUIT_OPEN", "by": "circuit"}


def event(*attempts: Any, circuit: str | None = None, **payload: Any) -> dict[str, Any]:
    record = {"attempts": list(attempts), **({"circuit": circuit} if circuit else {})}
    return {
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


def known(task: str = "ask", **options: Any) -> KnownOptions:
    return KnownOptions(task, f"{task}-12345678", options)


NAMES = TaskNames.of([known()], ())


def plain(number: int, task: str = "ask", weight: float = 1.0) -> NamedRun:
    attempt = RecordedAttempt(start=number, seconds=1, succeeded=True)
    run = RecordedRun(
        run_id=str(number),
        start=number,
        end=number + 1,
        ended="succeeded",
        attempts=(attempt,),
        weight=weight,
    )
    return NamedRun(task, run)


def failing(number: int) -> NamedRun:
    found = run_of_event(event(FAILED), "run.failed")
    assert found is not None
    return NamedRun("ask", replace(found.run, run_id=f"f{number}"))


class TestEvents:
    def test_a_recovered_run_has_the_attempt_that_succeeded(self) -> None:
        found = run_of_event(event(FAILED, after=3.0, circuit="llm"), "run.recovered")
        assert found is not None
        assert (found.task, found.run.run_id, found.run.ended) == ("ask", "run-1", "succeeded")
        assert (found.run.start, found.run.end) == (100.0, 103.0)
        first, last = found.run.attempts
        assert (first.succeeded, first.code, first.category, first.delay) == (
            False,
            "503",
            "unavailable",
            2.0,
        )
        assert (last.succeeded, last.start, last.seconds) == (True, 102.5, 0.5)
        assert first.circuit == last.circuit == "llm"

    def test_a_success_never_lasts_less_than_nothing(self) -> None:
        found = run_of_event(event(FAILED, after=0.1), "run.recovered")
        assert found is not None
        assert found.run.attempts[-1].seconds == 0
        assert found.run.end == 102.5

    def test_a_rejected_call_names_the_guard(self) -> None:
        limited = {**REFUSED, "by": "bulkhead"}
        found = run_of_event(event(FAILED, REFUSED, limited, to="archive"), "fallback.used")
        assert found is not None
        assert [one.rejected_by for one in found.run.attempts] == [None, "circuit", "limit"]
        assert (found.run.ended, found.run.fallback) == ("fallback", "archive")

    def test_only_a_fallback_has_a_name(self) -> None:
        found = run_of_event(event(FAILED, to="archive"), "run.failed")
        assert found is not None
        assert (found.run.ended, found.run.fallback) == ("failed", None)

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
        assert run_of_event(given, "run.failed") is None


class TestRows:
    def test_a_success_is_one_attempt(self) -> None:
        (one,) = seen_in([row()], NAMES, 2.5).runs
        assert (one.task, one.run.weight, one.run.ended) == ("ask", 2.5, "succeeded")
        assert [(a.succeeded, a.seconds) for a in one.run.attempts] == [(True, 2.0)]

    @pytest.mark.parametrize(
        ("changes", "ended"),
        [
            ({"state_type": "CRASHED", "state_name": "Crashed"}, "crashed"),
            ({"state_type": "CANCELLED", "state_name": "Cancelled"}, "cancelled"),
            ({"state_name": "Replayed"}, "other"),
        ],
    )
    def test_other_ends_have_no_known_attempts(self, changes: dict[str, str], ended: str) -> None:
        (one,) = seen_in([row(**changes)], NAMES).runs
        assert (one.run.ended, one.run.attempts) == (ended, ())

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
        seen = seen_in([row(**changes)], NAMES)
        assert not seen.runs
        assert list(seen.troubled) == ["run-2"]

    @pytest.mark.parametrize(
        "changes",
        [
            {"end_time": None},
            {"state_type": "RUNNING"},
            {"name": "other-1a2", "task_key": "other-12345678"},
        ],
    )
    def test_unfinished_runs_and_other_tasks_are_left_out(self, changes: dict[str, Any]) -> None:
        seen = seen_in([row(**changes)], NAMES)
        assert not seen.runs
        assert not seen.troubled

    def test_a_run_that_never_started_took_no_time(self) -> None:
        (one,) = seen_in([row(start_time=None)], NAMES).runs
        assert one.run.start == one.run.end

    def test_a_run_with_a_name_of_its_own_is_known_by_its_function(self) -> None:
        names = TaskNames.of([KnownOptions("Ask the model", "ask-12345678", {})], ())
        (one,) = seen_in([row(name="order 7", dynamic_key="7")], names).runs
        assert one.task == "Ask the model"

    def test_a_function_of_two_tasks_tells_neither(self) -> None:
        both = [KnownOptions("a", "ask-12345678", {}), KnownOptions("b", "ask-12345678", {})]
        assert not seen_in([row(name="order 7", dynamic_key="7")], TaskNames.of(both, ())).runs


class TestSamples:
    @given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(1, 100), st.integers(0, 9))
    def test_a_sample_keeps_the_totals_of_each_task(self, numbers: list[int], most: int, seed: int) -> None:
        runs = [plain(n, f"t{t}") for t, number in enumerate(numbers) for n in range(number)]
        runs += [failing(n) for n in range(3)]
        kept = thinned(runs, most, Random(seed))
        assert len(kept) - 3 <= max(most, len(numbers))
        for task, number in enumerate(numbers):
            mine = [one.run.weight for one in kept if one.task == f"t{task}"]
            assert sum(mine) == pytest.approx(number)
        assert sum(one.run.run_id.startswith("f") for one in kept) == 3

    def test_what_fits_stays_as_it_is(self) -> None:
        runs = [plain(n) for n in range(10)]
        assert thinned(runs, 10, Random(0)) == runs

    def test_a_rare_task_keeps_its_runs(self) -> None:
        runs = [*(plain(n) for n in range(1000)), *(plain(n, "rare") for n in range(20))]
        kept = thinned(runs, 100, Random(0))
        assert sum(one.task == "rare" for one in kept) == 20
        assert len(kept) == 100

    def test_failures_alone_are_not_thinned(self) -> None:
        assert len(thinned([failing(n) for n in range(5)], 1, Random(0))) == 5

    def test_weights_multiply(self) -> None:
        kept = thinned([plain(n, weight=3.0) for n in range(10)], 5, Random(0))
        assert {one.run.weight for one in kept} == {6.0}


class TestRecord:
    def test_attempts_are_behind_the_circuit_of_their_task(self) -> None:
        options = known(circuit={"name": "llm", "open_for": 30.0})
        recovered = run_of_event(event(FAILED, after=3, circuit="llm:own"), "run.recovered")
        assert recovered is not None
        (task,) = tasks_of([plain(5), recovered], [options])
        assert (task.name, task.circuit, task.options) == ("ask", "llm", options.options)
        assert [run.attempts[0].circuit for run in task.runs] == ["llm", "llm:own"]

    def test_a_template_names_no_circuit(self) -> None:
        (task,) = tasks_of([plain(5)], [known(circuit={"name": "llm:{provider}"})])
        assert task.runs[0].attempts[0].circuit is None

    def test_a_task_without_options_or_runs_is_there(self) -> None:
        first, second = tasks_of([plain(5, "a")], [known("b", retry={})])
        assert (first.name, first.options, first.circuit) == ("a", None, None)
        assert (second.name, second.runs, second.options) == ("b", (), {"retry": {}})

    def test_runs_are_in_the_order_of_their_starts(self) -> None:
        (task,) = tasks_of([plain(9), plain(3), plain(5)], ())
        assert [run.start for run in task.runs] == [3, 5, 9]

    def test_circuits_have_the_policy_of_their_task(self) -> None:
        options = [
            known("a", circuit={"name": "llm:{provider}", "open_for": 30.0}),
            known("b", circuit={"name": "db", "open_for": 5.0}),
            known("c"),
        ]
        opening = RecordedOpening(start=1, end=2)
        found = circuits_of_record({"llm:primary": [opening], "unknown": [opening]}, options)
        assert {one.name: (one.policy, len(one.openings)) for one in found} == {
            "llm:primary": ({"open_for": 30.0}, 1),
            "db": ({"open_for": 5.0}, 0),
            "unknown": (None, 1),
        }
