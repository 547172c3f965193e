"""The model of a plan: its fields, its JSON Schema, and that it reads back what it writes."""

import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel, ValidationError

from prefect_resilience import ConfigurationError, Retry
from prefect_resilience.graphs.plans.model import Cache, FanOut, Node, Plan, PlanTransition
from prefect_resilience.graphs.plans.reading.meaning import Order
from prefect_resilience.graphs.plans.reading.mistakes import Mistake, Place, PlanError

FILES = sorted((Path(__file__).parent / "files").glob("*.json"))

RICH: dict[str, Any] = {
    "name": "everything",
    "inputs": {"drug": "aspirin"},
    "bounds": {"nodes": 500, "seconds": 60},
    "tasks": [
        {
            "id": "load",
            "type": "load",
            "input": {"q": "{{inputs.drug}}", "deep": [{"x": ["{{inputs.drug}}!"]}]},
        },
        {
            "id": "each",
            "kind": "reasoning",
            "depends_on": "load",
            "map": {"over": "{{load.output.items}}", "as": "doc", "allow_failures": 0.1},
            "input": {"prompt": "{{doc.text | default('none') | trim}} of {{index + 1}}"},
            "retry_policy": {"attempts": 3, "by_category": {"rate_limit": 5}, "backoff": {"kind": "linear"}},
            "cache": {"ttl": 60, "key": "{{doc.id}}"},
            "circuit": {"name": "llm", "open_for": 5},
            "effect": {"kind": "external", "key": "k"},
        },
        {
            "id": "judge",
            "type": "judge",
            "depends_on": ["each", "load"],
            "trigger_rule": "all_success",
            "condition": {
                "type": "all",
                "conditions": [
                    {"type": "comparison", "operator": "gte", "path": "score", "value": 0.5},
                    {"type": "not", "condition": {"type": "exists", "path": "x", "source_task": "load"}},
                ],
            },
            "on_success": "publish",
            "transitions": [{"to_node_id": "again", "priority": 2}, {"to": "again", "condition": None}],
        },
        {"id": "again", "type": "x", "input": {"e": "{{state._last_error.code}} {{judge.status}}"}},
        {"id": "publish", "type": "x", "timeout_ms": 1000, "input": {"a": '{{nodes["each"].output}}'}},
    ],
}


@pytest.mark.requirement("000.01")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_is_a_plan_that_reads_back(path: Path) -> None:
    plan = Plan.from_file(path)
    written = plan.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    assert Plan.model_validate(written) == plan
    assert Plan.model_validate_json(path.read_text()) == plan
    assert Plan(**json.loads(path.read_text())) == plan
    assert Plan.model_validate(plan) is plan
    assert pickle.loads(pickle.dumps(plan)) == plan


@pytest.mark.requirement("000.01")
def test_everything_reads_back() -> None:
    plan = Plan(**RICH)
    assert Plan.model_validate(plan.model_dump(mode="json", by_alias=True)) == plan
    assert plan.tasks[1].type == "reasoning"
    assert plan.tasks[1].depends_on == ("load",)
    assert plan.tasks[1].map == FanOut(over="{{load.output.items}}", item="doc", allow_failures=0.1)
    assert plan.tasks[1].cache == Cache(ttl=60, key="{{doc.id}}")
    assert plan.tasks[1].names == {"doc", "index"}
    assert plan.tasks[2].transitions[0] == PlanTransition(to="again", priority=2)


def test_the_schema_is_one_and_describes_every_field() -> None:
    schema = Plan.model_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for model in (
        schema,
        *(schema["$defs"][name] for name in ("Node", "PlanTransition", "FanOut", "Bounds", "Cache")),
    ):
        assert all(field.get("description") for field in model["properties"].values()), model["title"]


@pytest.mark.parametrize("plan", [*(json.loads(path.read_text()) for path in FILES), RICH])
def test_plans_keep_to_the_schema(plan: Any) -> None:
    plan = json.loads(
        json.dumps(plan).replace("to_node_id", "to").replace('"kind": "reasoning"', '"type": "r"')
    )
    jsonschema.Draft202012Validator(Plan.model_json_schema()).validate(plan)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"tasks": [{"id": "a"}]},
        {"tasks": [{"id": "a", "type": "x", "dependson": ["b"]}]},
        {"tasks": [{"id": "a", "type": "x", "depends_on": [1]}]},
        {"tasks": [{"id": "a", "type": "x", "retry_policy": {"max_retry": 1}}]},
    ],
)
def test_the_schema_refuses_what_is_wrong(wrong: Any) -> None:
    assert not jsonschema.Draft202012Validator(Plan.model_json_schema()).is_valid(wrong)


def test_mistakes_arrive_as_whoever_asked_wants_them() -> None:
    wrong: dict[str, Any] = {"tasks": [{"id": "a", "type": "x", "timeout_ms": "5"}, {"id": "b", "type": 1}]}
    with pytest.raises(PlanError) as told:
        Plan(**wrong)
    assert told.value.mistakes == (
        Mistake("tasks[0].timeout_ms", "write a number, not '5'"),
        Mistake("tasks[1].type", "write a string, not 1"),
    )
    assert isinstance(told.value, ConfigurationError)
    assert str(told.value) == (
        "the plan has 2 mistakes:\n"
        "tasks[0].timeout_ms: write a number, not '5'\n"
        "tasks[1].type: write a string, not 1"
    )
    copied = pickle.loads(pickle.dumps(told.value))
    assert (copied.mistakes, str(copied), copied.source) == (told.value.mistakes, str(told.value), "the plan")

    with pytest.raises(ValidationError) as formed:
        Plan.model_validate(wrong)
    assert "tasks[0].timeout_ms: write a number, not '5'" in str(formed.value)

    class Form(BaseModel):
        plan: Plan

    with pytest.raises(ValidationError, match=r"plan\n.*\ntasks\[0\]\.timeout_ms"):
        Form(plan=wrong)


def test_thousands_of_mistakes_are_kept_and_a_few_shown() -> None:
    with pytest.raises(PlanError) as told:
        Plan(tasks=[{"id": "a", "type": "x", f"wrong{n}": 1} for n in range(300)])
    assert len(told.value.mistakes) == 599
    assert str(told.value).splitlines()[0] == "the plan has 599 mistakes:"
    assert str(told.value).splitlines()[-1] == "and 549 more"
    with pytest.raises(PlanError, match="at least 1,000 mistakes") as most:
        Plan(tasks=[{"id": f"n{n}", "type": "x", "wrong": 1} for n in range(10_500)])
    assert len(most.value.mistakes) == 1_000
    with pytest.raises(PlanError, match="at least 1,000 mistakes"):
        Plan(**{f"field{n}": 1 for n in range(10_500)}, tasks=[])


def test_parts_tell_all_their_mistakes() -> None:
    with pytest.raises(PlanError) as told:
        Node(id="a b", type="", cache=3, retry_policy={"max_retries": -1, "max_retrys": 1})  # type: ignore[arg-type]
    assert [str(mistake) for mistake in told.value.mistakes] == [
        "id: 'a b' is not a valid id: use letters, digits, _ and -, not - at the beginning; write 'a_b'",
        "type: is empty: write a name",
        "retry_policy.max_retries: write a number of at least 0, not -1",
        "cache: write true, false, or an object with ttl and key, not 3",
    ]


def test_a_node_has_one_retry_policy_and_one_timeout_wherever_written() -> None:
    assert Node(id="a", type="x").retry is None
    assert Node(id="a", type="x").timeout is None
    beside = Node.model_validate({"id": "a", "type": "x", "timeout_ms": 50, "retry_policy": 2})
    inside = Node.model_validate(
        {"id": "a", "type": "x", "execution": {"timeout_ms": 50, "retry_policy": {"attempts": 2}}}
    )
    assert beside.retry == inside.retry == Retry(attempts=2)
    assert beside.timeout == inside.timeout == 0.05


def order(count: int, pairs: Iterable[tuple[int, int]]) -> Order:
    before: dict[int, dict[int, Place]] = {n: {} for n in range(count)}
    for first, then in pairs:
        before[then][first] = (first, then)
    return Order(before)


@pytest.mark.parametrize(
    ("count", "pairs", "cycles"),
    [
        (5, [(0, 1), (1, 2), (2, 1), (2, 3), (4, 4)], [([1, 2, 1], (2, 1)), ([4, 4], (4, 4))]),
        (4, [(0, 1), (1, 0), (0, 2), (2, 1), (2, 0), (0, 3)], [([0, 1, 0], (1, 0)), ([0, 2, 0], (2, 0))]),
    ],
)
def test_nodes_in_circles(count: int, pairs: list[tuple[int, int]], cycles: list[Any]) -> None:
    cut = order(count, pairs)
    assert sorted(cut.cycles) == cycles
    assert sorted(cut.order) == list(range(count))


def test_too_many_circles_leave_no_order() -> None:
    many = order(30, [(a, b) for a in range(30) for b in range(30) if a != b])
    assert len(many.cycles) == 25
    assert many.order == []
    assert many.not_before([(0, 1)]) == set()
