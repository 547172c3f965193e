"""`quorum` and `vote` in a plan: as they are written, refused and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prefect_resilience import ConfigurationError, ErrorContext, NoQuorum
from prefect_resilience.graphs.plans.actions import Actions
from prefect_resilience.graphs.plans.builtin import run_quorum, run_vote
from prefect_resilience.graphs.plans.edge.nodes import TaskFactory
from prefect_resilience.graphs.plans.model import Plan
from prefect_resilience.graphs.plans.reading.mistakes import PlanError
from prefect_resilience.graphs.plans.reading.reading import read_plan
from tests.graphs.plans.ran import ran

Answer = dict[str, Any]


def judge(label: str) -> Callable[[str], Answer]:
    def said(text: str) -> Answer:
        return {"label": label, "why": text}

    return said


def broken(text: str) -> Answer:
    raise ConnectionError(text)


def other(number: int) -> int:
    return number


def ballot(ballot: str) -> str:
    return ballot


def handler(text: str, error: ErrorContext | None) -> Answer:
    return {"label": error.category.value if error else None, "why": text}


ACTIONS: dict[str, Callable[..., Any]] = {
    "good": judge("good"),
    "fine": judge("good"),
    "bad": judge("bad"),
    "broken": broken,
    "handler": handler,
    "other": other,
}


def node(**fields: Any) -> dict[str, Any]:
    return {"id": "verdict", "input": {"text": "hi"}, **fields}


def mistakes(**fields: Any) -> list[str]:
    with pytest.raises(PlanError) as refused:
        read_plan({"tasks": [node(**fields)]}, actions=TaskFactory(Actions.of(ACTIONS)))
    return [str(one) for one in refused.value.mistakes]


ALL = ["good", "fine", "bad"]


def quorum(of: Any, inner: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """The type and the input of a quorum."""
    return {"type": "quorum", "input": {"of": of, "input": inner or {"text": "hi"}, **options}}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (quorum(["godo", "bad"]), "tasks[0].input.of[0]: unknown action 'godo'; did you mean"),
        (quorum([]), "tasks[0].input.of: write the names of the actions to call"),
        (quorum([1]), "tasks[0].input.of[0]: write the name of an action, not 1"),
        (quorum(ALL, need=4), "tasks[0].input.need: write a whole number from 1 to 3, not 4"),
        (quorum(ALL, need=True), "tasks[0].input.need: write a whole number"),
        (quorum(ALL, key="a..b"), "tasks[0].input.key: "),
        (quorum(["other"]), "tasks[0].input.input.text: 'text' is not an input of 'other'"),
        (quorum(["other"]), "tasks[0].input.input: 'other' needs 'number': write it in the input"),
        ({"type": "vote", "input": {"answers": [1], "need": 2}}, "tasks[0].input.need: write a whole number"),
    ],
)
def test_mistakes_stand_in_their_place(fields: dict[str, Any], said: str) -> None:
    assert any(one.startswith(said) for one in mistakes(**fields)), mistakes(**fields)


def test_answers_that_are_there_are_counted() -> None:
    assert run_vote([None, "a", "b", "a"], need=2) == "a"
    assert run_vote([{"k": 1}, {"k": True}, {"k": 1, "more": 2}], key="k") == {"k": 1}
    with pytest.raises(NoQuorum, match="2"):
        run_vote(["a", "b", None])
    with pytest.raises(ConfigurationError, match="elsewhere call quorum"):
        run_quorum(ALL)


def test_an_action_of_ones_own_may_be_called_vote() -> None:
    own = Actions.of({"vote": ballot})
    assert not Plan(tasks=[{"id": "a", "type": "vote", "input": {"ballot": "x"}}]).check(own)


@pytest.mark.smoke
@pytest.mark.api
def test_a_quorum_runs_each_action_as_a_task_run_of_its_own() -> None:
    asked = node(**quorum(["broken", *ALL], need=2, key="label"))
    done = ran({"tasks": [asked]}, actions=ACTIONS)
    assert done.result.outputs == {"verdict": {"label": "good", "why": "hi"}}


@pytest.mark.requirement("000.25")
@pytest.mark.api
def test_handlers_of_an_error_vote_on_it() -> None:
    voters = quorum(["handler", "handler", "broken"], {"text": "x"}, key="label")
    handlers = {"id": "decide", "handles_error": ["first"], **voters}
    tasks = [{"id": "first", "type": "broken", "input": {"text": "down"}}, handlers]
    done = ran({"tasks": tasks}, actions=ACTIONS)
    assert done.result.outputs["decide"]["label"] == "network"


@pytest.mark.api
def test_a_vote_over_nodes_of_which_one_failed() -> None:
    """What failed is no answer, and too few that agree are an error with the votes."""
    asked = [{"id": f"n{i}", "type": name, "input": {"text": "x"}} for i, name in enumerate([*ALL, "broken"])]
    vote: dict[str, Any] = {
        "id": "vote",
        "type": "vote",
        "depends_on": [one["id"] for one in asked],
        "input": {"answers": [f"{{{{n{i}.output}}}}" for i in range(4)], "need": 2, "key": "label"},
    }
    rescue = {"id": "rescue", "type": "good", "handles_error": ["n3"], "input": {"text": "y"}}
    done = ran({"tasks": [*asked, vote, rescue]}, actions=ACTIONS)
    assert done.result.outputs["vote"]["label"] == "good"
    vote["input"] = {**vote["input"], "need": 3}
    failed = ran({"tasks": [*asked, vote, rescue]}, actions=ACTIONS).result.nodes["vote"].error
    assert failed is not None
    assert "good" in str(failed.message)
