# ruff: noqa: E501 - what is said stands whole in its line
"""Every mistake of a plan, word for word and in its place."""

import json
from typing import Any

import pytest

from prefect_resilience import Retry, path
from prefect_resilience.graphs.plans.model import Node, Plan
from prefect_resilience.graphs.plans.reading.mistakes import PlanError, Wrong
from prefect_resilience.graphs.plans.reading.reading import read_plan


def node(name: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "type": "x", **fields}


def told(*nodes: Any, **fields: Any) -> list[str]:
    """What is said of a plan of these nodes."""
    try:
        Plan(tasks=nodes, **fields)
    except PlanError as error:
        return [str(mistake) for mistake in error.mistakes]
    return []


def one(**fields: Any) -> list[str]:
    return told(node("a", **fields), node("b"))


COMPARISON = {"type": "comparison", "path": "score", "value": 1}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"condition": COMPARISON | {"operator": "gte "}}, "condition.operator: 'gte ' is not an operator; did you mean 'gte'?"),
        ({"on_sucess": ["b"]}, "on_sucess: unknown field; did you mean 'on_success'?"),
        ({"depends_on": ["bb"]}, "depends_on[0]: unknown node 'bb'; did you mean 'b'?"),
        ({"depends_on": ["a"]}, "depends_on[0]: 'a' would wait for itself: a -> a; remove one of these edges, or write a retry_policy"),
        ({"depends_on": 5}, "depends_on: write a node's id or a list of them, not 5"),
        ({"depends_on": ["b", 5]}, "depends_on[1]: write a string, not 5"),
        ({"transitions": [{"to": "c"}]}, "transitions[0].to: unknown node 'c'; write one of a, b"),
        ({"transitions": [{}]}, "transitions[0].to: is missing: the id of the node that runs next"),
        ({"transitions": [{"to": "b", "priority": True}]}, "transitions[0].priority: write a whole number, not True"),
        ({"transitions": {"to": "b"}}, "transitions: write a list, not a dict"),
        ({"trigger_rule": "all_sucess"}, "trigger_rule: unknown value 'all_sucess'; did you mean 'all_success'?"),
        ({"timeout_ms": 0}, "timeout_ms: write more than 0, not 0"),
        ({"retry_policy": {"max_retries": "3"}}, "retry_policy.max_retries: write a number of at least 0, not '3'"),
        ({"retry_policy": {"attempts": 0}}, "retry_policy.attempts: write at least 1, not 0"),
        ({"retry_policy": "often"}, "retry_policy: write an object such as {\"max_retries\": 3}, not 'often'"),
        ({"retry_policy": {"backoff": {"kind": "expo"}}}, "retry_policy.backoff: Backoff(kind='expo'): unknown value 'expo'; write one of constant, decorrelated, exponential, linear, none, schedule"),
        ({"retry_policy": {"by_category": {"rate_limits": {}}}}, "retry_policy.by_category.rate_limits: unknown error category 'rate_limits'; did you mean 'rate_limit'?"),
        ({"retry_policy": {"by_category": {"rate_limit": {"atempts": 2}}}}, "retry_policy.by_category.rate_limit: Retry has no option 'atempts'; did you mean 'attempts'?"),
        ({"retry_policy": {"retryable_errors": ["rate_limits"]}}, "retry_policy.retryable_errors: unknown error category 'rate_limits'; did you mean 'rate_limit'?"),
        ({"retry_policy": 1, "execution": {"retry_policy": 1}}, "execution.retry_policy: retry_policy is written here and in the node itself: write one of them"),
        ({"timeout_ms": 5, "execution": {"timeout_ms": 5}}, "execution.timeout_ms: timeout_ms is written here and in the node itself: write one of them"),
        ({"circuit": {"open_for": 5}}, "circuit.name: is missing: the circuit's name, a template over the action's parameters"),
        ({"circuit": {"name": "c", "open_fr": 5}}, "circuit.open_fr: unknown field; did you mean 'open_for'?"),
        ({"circuit": 5}, "circuit: write a circuit's name, or an object with its name, not 5"),
        ({"effect": "externl"}, "effect: 'externl' is not a kind of effect; did you mean 'external'?"),
        ({"cache": {"ttl": -1}}, "cache.ttl: write more than 0, not -1"),
        ({"cache": "yes"}, "cache: write true, false, or an object with ttl and key, not 'yes'"),
        ({"input": 5}, "input: write a mapping, not 5"),
        ({"input": {"x": {1, 2}}}, "input.x: write a JSON value, not {1, 2}"),
        ({"input": {1: 2}}, "input: 1 is not a key: write a string"),
        ({"input": {"a key": ["{{"]}}, "input['a key'][0]: these braces are not a valid template: unexpected 'end of template'; to write literal braces: {{ \"{{\" }}"),
        ({"input": {"p": "{{c.output}}"}}, "input.p: {{ c.output }}: unknown node 'c'; write one of a, b"),
        ({"depends_on": "b", "input": {"p": "{{b.outptu.x}}"}}, "input.p: {{ b.outptu.x }}: a node has no field 'outptu'; did you mean 'output'?"),
        ({"input": {"p": "{{a.output}}"}}, "input.p: 'a' uses its own output, which does not exist before it has run"),
        ({"input": {"p": "{{b.output}}"}}, "input.p: 'b' may not have ended when 'a' runs: add 'b' to depends_on"),
        ({"cache": {"key": "{{b.output}}"}}, "cache.key: 'b' may not have ended when 'a' runs: add 'b' to depends_on"),
        ({"condition": {"type": "exists", "path": "x", "source_task": "b"}}, "condition.source_task: 'b' may not have ended when 'a' runs: add 'b' to depends_on"),
        ({"condition": {"type": "not", "condition": {"type": "exists", "path": "x", "source_task": "c"}}}, "condition.condition.source_task: unknown node 'c'; write one of a, b"),
        ({"transitions": [{"to": "b", "condition": {"type": "all", "conditions": [COMPARISON | {"operator": "gt", "source_task": "b"}]}}]}, "transitions[0].condition.conditions[0].source_task: 'b' may not have ended when 'a' runs: add 'b' to depends_on"),
        ({"map": {"over": "b.output"}}, "map.over: write a list, or a template that gives one, such as {{load.output.items}}, not 'b.output'"),
        ({"map": {"over": "{{item}}"}}, "map.over: {{ item }}: 'item' exists only in the input of a node with 'map'"),
        ({"map": {"over": [0] * 10_001}}, "map.over: 10,001 items are more than the 10,000 that bounds.fan_out allows"),
        ({"map": {"over": [], "as": "b"}}, "map.as: 'b' is the id of tasks[1]: write another name"),
        ({"map": {"over": [], "as": "state"}}, "map.as: 'state' has a special meaning in templates: write another name"),
        ({"map": {"over": [], "as": "my-doc"}}, "map.as: 'my-doc' is not a valid name: use letters, digits and _, as in 'document'"),
    ],
)  # fmt: skip
def test_one_mistake_in_words(fields: dict[str, Any], says: str) -> None:
    assert one(**fields) == [f"tasks[0].{says}"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "a b",
            "'a b' is not a valid id: use letters, digits, _ and -, not - at the beginning; write 'a_b'",
        ),
        ("-", "'-' is not a valid id: use letters, digits, _ and -, not - at the beginning"),
        ("x" * 101, f"'{'x' * 59}…' is too long: an id has at most 100 characters"),
        ("state", "'state' has a special meaning in templates: write another id, such as 'state_1'"),
        (5, "write a string, not 5"),
    ],
)
def test_ids(name: Any, says: str) -> None:
    assert told(node(name)) == [f"tasks[0].id: {says}"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"intend": "x"}, "intend: unknown field; did you mean 'intent'?"),
        ({"bounds": {"node": 5}}, "bounds.node: unknown field; did you mean 'nodes'?"),
        ({"bounds": {"nodes": 1}}, "tasks: 2 nodes are more than the 1 that bounds.nodes allows"),
        ({"bounds": {"depth": 51}}, "bounds.depth: write at most 50, not 51"),
        ({"name": 5}, "name: write a string, not 5"),
        ({"inputs": [1]}, "inputs: write a mapping, not a list"),
        ({"inputs": {"x": float("nan")}}, "inputs.x: write a finite number, not nan"),
    ],
)  # fmt: skip
def test_the_plans_own_fields(fields: dict[str, Any], says: str) -> None:
    assert told(node("a"), node("b"), **fields) == [says]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "tasks: is missing: the list of the plan's nodes"),
        ({"tasks": []}, "tasks: is empty: write at least one node"),
        ({"tasks": {"a": 1}}, "tasks: write a list of nodes, not a dict"),
        ({"tasks": [5]}, "tasks[0]: write a node, an object with id and type, not 5"),
        ({"tasks": [{"id": "a"}]}, "tasks[0].type: is missing: the name of the action to run"),
        ({"tasks": [{"id": "a", "kind": 5}]}, "tasks[0].kind: write a string, not 5"),
        ([], "a plan is an object with its nodes in 'tasks', not a list"),
    ],
)
def test_what_is_no_plan_at_all(data: Any, says: str) -> None:
    with pytest.raises(PlanError) as refused:
        read_plan(data if isinstance(data, dict) else json.dumps(data))
    assert [str(mistake) for mistake in refused.value.mistakes] == [says]


def test_every_mistake_at_once_and_none_hides_another() -> None:
    says = told(
        node(
            "a",
            wrong=1,
            depends_on=["x", 7, "b"],
            transitions=[{"to": "zz", "priority": "1"}, {"to": "yy"}, 3],
        ),
        5,
        node("a", on_success="nope", input={"p": "{{missing.output}}"}),
        {"type": "x", "depends_on": ["b c"]},
        node("b c", input={"p": float("nan")}, handles_error=["q"], retry_policy={"attempts": 0}),
        intents="x",
    )
    assert says == [
        "intents: unknown field; did you mean 'intent'?",
        "tasks[0].depends_on[1]: write a string, not 7",
        "tasks[0].transitions[0].priority: write a whole number, not '1'",
        "tasks[0].transitions[2]: write a mapping, not 3",
        "tasks[0].wrong: unknown field",
        "tasks[0].depends_on[0]: unknown node 'x'; write one of a, b c",
        "tasks[0].depends_on[2]: unknown node 'b'; write one of a, b c",
        "tasks[0].transitions[0].to: unknown node 'zz'; write one of a, b c",
        "tasks[0].transitions[1].to: unknown node 'yy'; write one of a, b c",
        "tasks[1]: write a node, an object with id and type, not 5",
        "tasks[2].id: 'a' is already the id of tasks[0]: write another name",
        "tasks[2].on_success: unknown node 'nope'; write one of a, b c",
        "tasks[2].input.p: {{ missing.output }}: unknown node 'missing'; write one of a, b c",
        "tasks[3].id: is missing: the node's id, also in templates: letters, digits, _ and -",
        "tasks[4].input.p: write a finite number, not nan",
        "tasks[4].id: 'b c' is not a valid id: use letters, digits, _ and -, not - at the beginning; write 'b_c'",
        "tasks[4].retry_policy.attempts: write at least 1, not 0",
        "tasks[4].handles_error[0]: unknown node 'q'; write one of a, b c",
    ]


def test_circles_are_told_each_once_with_their_way() -> None:
    assert told(node("a", depends_on=["c"]), node("b", depends_on=["a"]), node("c", on_success=["a"], depends_on=["b"])) == [
        "tasks[0].depends_on[0]: 'a' would wait for itself: a -> b -> c -> a; remove one of these edges, or write a retry_policy"
    ]  # fmt: skip
    assert told(node("a", on_failure=["b"], depends_on="b"), node("b")) == [
        "tasks[0].depends_on: 'a' would wait for itself: a -> b -> a; remove one of these edges, or write a retry_policy"
    ]
    two = told(node("a", depends_on=["b", "c"]), node("b", depends_on=["a"]), node("c", depends_on=["a"]))
    assert [says.split("itself: ")[1].split(";")[0] for says in two] == ["a -> b -> a", "a -> c -> a"]
    long = told(*(node(f"n{n}", depends_on=[f"n{(n + 1) % 30}"]) for n in range(30)))
    assert long[0].split("itself: ")[1].split(";")[0] == (
        " -> ".join(["n0", *(f"n{n}" for n in range(29, -1, -1))])
    )


def test_fan_outs_together_have_a_bound() -> None:
    many = [node(f"n{n}", map={"over": [0] * 10_000}) for n in range(11)]
    assert told(*many) == [
        "tasks: 11 nodes and 110,000 branches are more than the 100,000 that bounds.nodes allows"
    ]


def test_expressions_that_compute_have_a_bound() -> None:
    many = [
        node(f"n{n}", input={"p": "".join(f"{{{{ {n} + {m:20} }}}}" for m in range(200))}) for n in range(100)
    ]
    assert {says.split(": ", 1)[1] for says in told(*many)} == {
        "the templates of the plan compute more than 400,000 characters"
    }


def test_nodes_written_in_python_are_looked_at_too() -> None:
    right = Node(id="a", type="x", condition=path("x") > 1, on_success=("b",))
    assert told(right, Node(id="b", type="x")) == []
    assert told(right) == ["tasks[0].on_success[0]: unknown node 'b'; write one of a"]
    assert told(Node(id="a", type="x", input={"p": {1, 2}})) == [
        "tasks[0].input.p: write a JSON value, not {1, 2}"
    ]
    assert told(right, node("b"), bounds=Plan(tasks=[node("a")]).bounds) == []


class Actions:
    def mistakes(self, node: Node, /) -> list[Wrong]:
        return [] if node.type == "x" else [(("type",), f"unknown action {node.type!r}")]


def test_what_actions_and_inputs_say() -> None:
    data = {
        "inputs": {"drug": "aspirin"},
        "tasks": [
            node("a", input={"p": "{{inputs.drug}} {{inputs.drugs}}"}),
            {"id": "b", "type": "y", "condition": {"type": "exists", "path": "inputs.dose"}},
            node("c", map={"over": [1], "as": "doc"}, input={"p": "{{doc}} {{inputs}}"}),
        ],
    }
    plan = Plan(**data)
    assert plan.check() == []
    wrong = [
        "tasks[0].input.p: unknown input 'drugs'; did you mean 'drug'?; pass it, or declare it in the plan's inputs",
        "tasks[1].condition.path: unknown input 'dose'; write one of drug; pass it, or declare it in the plan's inputs",
        "tasks[1].type: unknown action 'y'",
    ]  # fmt: skip
    assert [str(mistake) for mistake in plan.check(Actions(), {})] == wrong
    assert [str(mistake) for mistake in plan.check(inputs={"drugs": 1, "dose": 1})] == []
    with pytest.raises(PlanError) as refused:
        read_plan(data, actions=Actions(), inputs={})
    assert sorted(map(str, refused.value.mistakes)) == sorted(wrong)
    with pytest.raises(PlanError):
        read_plan(plan, actions=Actions())
    assert read_plan(plan) is plan


def test_corners() -> None:
    assert Node(id="a", type="x", map={"over": (1, 2)}).map.over == [1, 2]  # type: ignore[arg-type, union-attr]
    assert Node(id="a", type="x", retry_policy=Retry(attempts=2)).retry == Retry(attempts=2)
    assert one(**{"a key": 1}) == ["tasks[0]['a key']: unknown field"]
    assert one(retry_policy={"attempts": "9" * 5000})[0].startswith(
        "tasks[0].retry_policy.attempts: unable to parse"
    )
    assert one(input={"\ud800": 1}) == [
        "tasks[0].input: has a key with a lone surrogate (half a character): write valid Unicode"
    ]
    assert one(input={"é": "é", "n": 10**2000}) == [
        "tasks[0].input.n: is a number with too many digits: write it as a string"
    ]
    assert one(input={"p": "\ud800"}) == [
        "tasks[0].input.p: contains a lone surrogate (half a character): write valid Unicode"
    ]
    assert one(input={"p": [0] * 100_001}) == [
        "tasks[0].input.p: has more than 100,000 values: refer to large data instead of writing it in the plan"
    ]
    assert one(input={"p": "{{b.output}} {{b.output}}"}) == [
        "tasks[0].input.p: 'b' may not have ended when 'a' runs: add 'b' to depends_on"
    ]
    assert told(node("a"), name={1, 2}) == ["name: write a JSON value, not {1, 2}"]
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    assert one(input={"p": deep}, wrong=1) == [
        "tasks[0].input.p" + "[0]" * 16 + "…: is nested more than 100 levels deep: reduce the nesting",
        "tasks[0].wrong: unknown field",
    ]
    assert read_plan(
        {"tasks": [node("a", condition={"type": "exists", "path": "inputs.x"})]}, inputs={"x": 1}
    )
    assert told(node("a", input={"p": "{{b.output}}"}), node("b"), node("c", wrong=1)) != []
    with pytest.raises(PlanError, match="has 1 mistake"):
        read_plan({"tasks": [node("c", wrong=1)]}, actions=Actions(), inputs={})
    own = {"type": "exists", "path": "x", "source_task": "a"}
    assert read_plan({"tasks": [node("a", condition=own)]}, inputs={})
    assert told(node("a"), name=None) == ["name: write a string, not None"]
    assert read_plan({"tasks": [node("a")], "intent": "é"}).intent == "é"
