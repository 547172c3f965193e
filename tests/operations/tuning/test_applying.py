"""What is written to blocks, and how it is restored."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.operations.tuning.applying import (
    TuningChange,
    before_changes,
    own_value,
    plan_changes,
    with_changes,
)
from prefect_resilience.operations.tuning.record import with_value
from prefect_resilience.operations.tuning.report import TuningAdvice


def advice(option: str = "retry.attempts", now: Any = 3, better: Any = 5, task: str = "ask") -> TuningAdvice:
    return TuningAdvice(task=task, option=option, now=now, better=better, why="it is better")


def change(**changes: Any) -> TuningChange:
    told = {"task": "ask", "option": "retry.attempts", "block": "llm", "before": None, "now": 3, "after": 5}
    return TuningChange.model_validate({**told, **changes})


def reason(*told: TuningAdvice, blocks: dict[str, str | None], documents: Any = None) -> str:
    plan = plan_changes(told, blocks, documents or {})
    assert not plan.changes
    return plan.left[0].why


class TestPlan:
    def test_advice_goes_to_the_block_of_its_task(self) -> None:
        plan = plan_changes([advice()], {"ask": "llm", "other": "else"}, {"llm": {"timeout": 9}})
        (one,) = plan.changes
        assert (one.block, one.before, one.now, one.after) == ("llm", None, 3, 5)
        assert plan.blocks == ("llm",)
        assert with_changes(plan.changes, {"llm": {"timeout": 9}}) == {
            "llm": {"timeout": 9, "retry": {"attempts": 5}}
        }

    def test_part_of_a_value_is_still_the_value_that_ran(self) -> None:
        one = advice("retry.backoff", {"kind": "exponential", "initial": 1.0}, {"initial": 2.0})
        plan = plan_changes([one], {"ask": "llm"}, {"llm": {"retry": {"backoff": {"initial": 1.0}}}})
        assert plan.changes[0].before == {"initial": 1.0}

    def test_a_task_without_a_block_changes_its_code(self) -> None:
        assert reason(advice(), blocks={"ask": None}) == (
            'the task reads no block: set retry.attempts=5 in its code, or policy="ask" and apply again'
        )

    def test_a_shared_block_changes_only_if_all_its_tasks_agree(self) -> None:
        blocks: dict[str, str | None] = {"ask": "llm", "label": "llm"}
        assert "label also reads the block 'llm'" in reason(advice(), blocks=blocks)
        both = plan_changes([advice(), advice(task="label")], blocks, {})
        assert [one.task for one in both.changes] == ["ask", "label"]

    def test_a_block_that_was_changed_since_is_left(self) -> None:
        documents = {"llm": {"retry": {"attempts": 9}}}
        assert "has changed since: it now says 9" in reason(
            advice(), blocks={"ask": "llm"}, documents=documents
        )


class TestUndo:
    def test_values_are_as_they_were(self) -> None:
        before = {"llm": {"retry": {"attempts": 3, "max_elapsed": 60}}, "db": {}}
        changes = [change(before=3), change(task="b", block="db", option="timeout", after=3.0)]
        assert before_changes(changes, with_changes(changes, before)) == (before, tuple(changes), ())

    def test_what_a_person_changed_stays(self) -> None:
        made, restored, left = before_changes([change()], {"llm": {"retry": {"attempts": 7}}})
        assert (made, restored) == ({"llm": {"retry": {"attempts": 7}}}, ())
        assert left[0].why == "the block 'llm' now says 7, not 5"

    def test_a_block_that_is_gone_stays_gone(self) -> None:
        made, restored, left = before_changes([change()], {})
        assert (made, restored) == ({}, ())
        assert "is gone" in left[0].why


PATHS = st.sampled_from(["timeout", "retry.attempts", "retry.backoff.initial", "circuit.open_for"])


@given(st.dictionaries(PATHS, st.integers(1, 9)), PATHS, st.integers(1, 9))
def test_setting_and_setting_back_is_nothing(values: dict[str, int], path: str, value: int) -> None:
    document: dict[str, Any] = {}
    for option, number in values.items():
        document = with_value(document, option, number)
    before = own_value(document, path)
    others = {option: own_value(document, option) for option in values if option != path}
    document = with_value(document, path, value)
    assert own_value(document, path) == value
    document = with_value(document, path, before)
    assert own_value(document, path) == before
    assert {option: own_value(document, option) for option in others} == others
