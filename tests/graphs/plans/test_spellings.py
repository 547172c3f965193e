"""Plans in the words of other documents: read as ours, or refused with the line to write instead."""

from typing import Any

import pytest

from prefect_resilience import Retry
from prefect_resilience.graphs.plans.model import Node, Plan
from prefect_resilience.graphs.plans.reading.mistakes import PlanError

EXISTS = {"type": "exists", "field": {"type": "field", "path": "state._last_error"}}
COMMENTED = """// what to do
{
  "tasks": [ /* the only
                one */
    {"id": "a", "type": "fetch", // the page
     "input": {"url": "http://host//path", "text": "/* stays */ and \\" // too"}}
  ]
}
// the end"""


def plan(*nodes: dict[str, Any], **fields: Any) -> Plan:
    return Plan(tasks=[{"type": "x", **node} for node in nodes], **fields)


def mistakes(*nodes: Any, **fields: Any) -> list[str]:
    with pytest.raises(PlanError) as refused:
        Plan(tasks=[{"type": "x", **node} if isinstance(node, dict) else node for node in nodes], **fields)
    return [str(one) for one in refused.value.mistakes]


@pytest.mark.requirement("000.27")
def test_json_may_have_comments() -> None:
    [node] = Plan.from_text(COMMENTED).tasks
    assert node.input == {"url": "http://host//path", "text": '/* stays */ and " // too'}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"tasks": [ // here\n  {"id": "a", type: 1}]}', "line 2, column 15"),
        ('{"tasks": /* one\n two */ [}', "line 2, column 10"),
        ('{"tasks": [] /* never ended', "line 1, column 28"),
    ],
)
def test_comments_move_no_mistake(text: str, place: str) -> None:
    with pytest.raises(PlanError, match=place):
        Plan.from_text(text)


@pytest.mark.requirement("000.20", "002.34")
def test_older_and_other_words_are_read() -> None:
    read = plan(
        {"id": "a", "implementation": {"model": "m"}, "retries": 2},
        {"id": "b", "transitions": [{"from_node_id": "b", "to_node_id": "c"}]},
        {"id": "c", "retries": 0},
        transitions=[
            {"from_node_id": "a", "to_node_id": "c", "priority": 2, "condition": EXISTS},
            {"from_node_id": "b", "to": "c", "priority": 1},
        ],
    )
    a, b, c = read.tasks
    assert a.input == {"model": "m"}
    assert a.retry is not None
    assert a.retry == Retry.model_validate({"max_retries": 2, "backoff": "constant", "initial_delay_ms": 100})
    assert [a.retry.delay(n) for n in range(3)] == [0.1, 0.1, 0.1]
    assert c.retry == Retry(attempts=1, backoff=a.retry.backoff)
    assert [(way.to, way.priority, str(way.condition)) for way in a.transitions] == [
        ("c", 2, "state._last_error exists")
    ]
    assert [(way.to, way.priority) for way in b.transitions] == [("c", 0), ("c", 1)]
    assert Plan(**read.model_dump(mode="json", by_alias=True)) == read


def test_what_cannot_be_read_is_told_where_it_was_written() -> None:
    found = mistakes(
        {"id": "a", "implementation": {}, "input": {}},
        {"id": "b", "retries": 2, "retry_policy": 3},
        {"id": "c", "retries": 2, "execution": {"retry_policy": 3}},
        {"id": "d", "retries": True},
        {"id": "e", "implementation": 5},
        {"id": "f", "transitions": [{"from_node_id": "a", "to": "a"}]},
        Node(id="g", type="x"),
        transitions=[
            {"to": "a"},
            {"from_node_id": "z", "to": "a"},
            {"from_node_id": "a", "to": "nowhere"},
            {"from_node_id": "a", "to": "b", "priority": "1"},
            5,
            {"from_node_id": "g", "to": "a"},
        ],
    )
    beside = "cannot be combined with a retry_policy: leave it out"
    assert found == [
        "transitions[3].priority: write a whole number, not '1'",
        "transitions[4]: write a mapping, not 5",
        "tasks[0].implementation: unknown field",
        "transitions[0].from_node_id: is missing: the node that the transition leaves",
        "transitions[1].from_node_id: unknown node 'z'; write one of a, b, c, d, e, f, g",
        "transitions[2].to: unknown node 'nowhere'; write one of a, b, c, d, e, f, g",
        f"tasks[1].retries: {beside}",
        f"tasks[2].retries: {beside}",
        "tasks[3].retries: write a whole number, not True",
        "tasks[4].implementation: write a mapping, not 5",
        "tasks[5].transitions[0].from_node_id: 'a' is another node: write the transition there",
    ]
    assert mistakes({"id": "a"}, transitions={"to": "a"}) == ["transitions: write a list, not a dict"]
