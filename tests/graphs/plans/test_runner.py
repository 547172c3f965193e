"""How the nodes of a plan run: actions of every kind, their options, what they are told and give."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect import flow, task
from prefect.artifacts import Artifact
from prefect.cache_policies import INPUTS
from pydantic import BaseModel

from prefect_resilience import (
    CircuitBreaker,
    ErrorContext,
    Retry,
    error_context,
    get_circuits,
    on,
    register_secret,
    resilient_task,
)
from prefect_resilience.graphs.plans.model import Node, Plan
from prefect_resilience.graphs.plans.reading.mistakes import PlanError
from prefect_resilience.graphs.plans.result import PlanFailed
from prefect_resilience.operations import arun_plan, run_plan
from tests.graphs.plans.ran import BASIC, echo, fail, node, ran, run

pytestmark = pytest.mark.api


class Point(BaseModel):
    x: int


QUICK = {"max_attempts": 3, "backoff": "none"}


# -- kinds of actions


def test_tasks_keep_their_own_options_where_the_node_says_nothing() -> None:
    calls: list[str] = []

    @task(retries=1, tags=["ours"], retry_delay_seconds=0)
    def prefects() -> None:
        calls.append("prefects")
        raise ValueError("no")

    @resilient_task(retry=Retry(attempts=2, backoff=QUICK["backoff"], retry_on=ValueError))
    def ours() -> None:
        calls.append("ours")
        raise ValueError("no")

    done = run(
        node("a", "prefects"),
        node("b", "ours"),
        node("c", "ours", retry_policy={"max_attempts": 1}),
        actions={"prefects": prefects, "ours": ours},
    )
    assert {name: one.attempts for name, one in done.result.nodes.items()} == {"a": 2, "b": 2, "c": 1}
    assert sorted(calls) == ["ours"] * 3 + ["prefects"] * 2
    assert done.task_runs()["a"].tags == ["ours"]


def test_an_action_that_leaves_the_process_fails_its_node_alone() -> None:
    def leave() -> None:
        raise SystemExit(3)

    done = run(node("a", "leave", on_failure="b"), node("b", input={"value": 1}), actions={"leave": leave})
    assert done.statuses() == {"a": "handled", "b": "succeeded"}
    assert done.task_runs()["a"].state_name == "Crashed"
    assert done.error_of("a").category == "agent_crash"


def where() -> int:
    return os.getpid()


@pytest.mark.long
def test_nodes_run_in_other_processes() -> None:
    from prefect.task_runners import ProcessPoolTaskRunner

    there = run_plan.with_options(task_runner=ProcessPoolTaskRunner(max_workers=2))
    fallback = node("c", "where", retry_policy=QUICK)
    plan = {"tasks": [node("a", "where"), node("b", "fail", retry_policy=QUICK, on_failure="c"), fallback]}
    result = there(plan, actions={"where": where, "fail": fail})
    assert {name: one.status for name, one in result.nodes.items()} == {
        "a": "succeeded",
        "b": "handled",
        "c": "succeeded",
    }
    assert result.nodes["b"].attempts == 3
    assert os.getpid() not in result.outputs.values()


# -- what a node is told


@pytest.mark.requirement("000.11")
def test_inputs_are_filled_in_with_the_values_themselves() -> None:
    def shift(point: Point, by: int) -> Point:
        return Point(x=point.x + by)

    done = run(
        node("a", "shift", input={"point": {"x": 1}, "by": "{{inputs.by}}"}),
        node("b", "shift", input={"point": "{{a.output}}", "by": 1}, depends_on="a"),
        node("c", input={"value": "x is {{b.output.x}}"}, depends_on="b"),
        actions={"shift": shift},
        inputs={"by": 2},
    )
    assert done.result.nodes["b"].output == Point(x=4)
    assert done.result.nodes["c"].output == "x is 4"


def test_an_input_that_does_not_fit_fails_its_node() -> None:
    def shift(point: Point) -> Point:
        return point

    done = run(
        node("a", input={"value": {"y": 1}}),
        node("b", "shift", input={"point": "{{a.output}}"}, depends_on="a", on_failure="c"),
        node("c", input={"value": "{{state._last_error.message}}"}),
        actions={"shift": shift},
    )
    assert done.statuses() == {"a": "succeeded", "b": "handled", "c": "succeeded"}
    assert "is no" in done.result.nodes["c"].output
    assert done.error_of("b").category == "invalid"
    assert done.task_runs()["b"].state_name == "Failed"


def test_inputs_of_the_run_come_before_those_of_the_plan() -> None:
    plan = {"tasks": [node("a", input={"value": "{{inputs.x}}{{inputs.y}}"})], "inputs": {"x": 1, "y": 2}}
    assert ran(plan, actions=BASIC, inputs={"y": 3}).result.outputs == {"a": "13"}


@pytest.mark.requirement("002.05")
def test_the_error_is_told_along_the_way_and_cleared_by_a_success() -> None:
    seen: dict[str, Any] = {}

    def look(name: str, error: ErrorContext | None) -> None:
        seen[name] = None if error is None else error.node_id

    done = run(
        node("a", "fail", on_failure="b"),
        node("b", "look", input={"name": "b"}),
        node("c", "look", input={"name": "c"}, depends_on=["a", "b"]),
        node("d", "look", input={"name": "d"}, depends_on="a", trigger_rule="always"),
        actions={"look": look},
    )
    assert done.result.succeeded
    assert seen == {"b": "a", "c": None, "d": "a"}


# -- options of a node


@pytest.mark.requirement("000.22")
def test_a_circuit_refuses_when_it_is_open(seen: Any) -> None:
    policy = {"name": "service-{value}", "failure_threshold": 2, "open_for": 60}

    def call(value: str) -> None:
        raise ConnectionError("down")

    done = run(
        node("a", "call", input={"value": "x"}, circuit=policy, retry_policy=QUICK),
        node(
            "b",
            "call",
            input={"value": "x"},
            circuit="service-{value}",
            depends_on="a",
            trigger_rule="always",
        ),
        node("c", "call", input={"value": "y"}, circuit=policy, depends_on="a", trigger_rule="always"),
        actions={"call": call},
    )
    errors = {name: one.error.code for name, one in done.result.nodes.items() if one.error}
    assert errors == {"a": "CIRCUIT_OPEN", "b": "CIRCUIT_OPEN", "c": "NETWORK_ERROR"}
    assert done.result.nodes["b"].attempts == 0
    assert {circuit.name: circuit.state for circuit in get_circuits()}["service-x"] == "open"


def test_a_rejected_call_is_no_attempt_of_a_node_that_recovers() -> None:
    shaky, policy = CircuitBreaker("shaky"), {**QUICK, "by_category": {"circuit_open": 3}}
    shaky.force_open("a deployment")
    stop = on("retry.scheduled", lambda _: shaky.reset())
    done = run(node("a", "fine", circuit="shaky", retry_policy=policy), actions={"fine": lambda: 1})
    stop()
    assert (done.result.nodes["a"].attempts, done.task_runs()["a"].run_count) == (1, 2)


@pytest.mark.requirement("000.24")
def test_nodes_with_the_same_input_share_nothing_unless_they_say_so(tmp_path: Any) -> None:
    calls: list[str] = []

    def work(value: str) -> int:
        calls.append(value)
        return len(calls)

    same, key = {"input": {"value": str(tmp_path)}}, f"{{{{a.output}}}}-{uuid4()}"
    plan = {
        "tasks": [
            node("a", "work", **same),
            node("b", "work", **same, depends_on="a"),
            node("c", "work", **same, depends_on="b", cache=True),
            node("d", "work", **same, depends_on="c", cache={"ttl": 3600}),
            node("e", "work", **same, depends_on="d", cache={"key": key}),
            node("f", "work", input={"value": "other"}, depends_on="e", cache={"key": key}),
        ]
    }
    done = ran(plan, actions={"work": work})
    assert done.result.outputs == {"a": 1, "b": 2, "c": 3, "d": 3, "e": 4, "f": 4}
    assert [done.task_runs()[name].state_name for name in "cdef"] == [
        "Completed",
        "Cached",
        "Completed",
        "Cached",
    ]
    again = ran(plan, actions={"work": work})
    assert again.result.outputs == {"a": 5, "b": 6, "c": 3, "d": 3, "e": 7, "f": 7}


def test_an_effect_is_one_for_each_node() -> None:
    sent: list[str] = []

    def mail(to: str) -> int:
        sent.append(to)
        return len(sent)

    same = {"input": {"to": "a@example.org"}, "effect": "external"}
    done = run(node("a", "mail", **same), node("b", "mail", **same, depends_on="a"), actions={"mail": mail})
    assert done.result.outputs == {"a": 1, "b": 2}


# -- a run again


def test_what_succeeded_is_not_repeated_when_the_run_is_retried() -> None:
    calls: dict[str, int] = {}

    def work(name: str) -> str:
        calls[name] = calls.get(name, 0) + 1
        if name == "b" and calls[name] == 1:
            raise ValueError("the first time")
        return name

    def handler(error: ErrorContext | None) -> str:
        calls["handler"] = calls.get("handler", 0) + 1
        return "handled"

    plan = {
        "tasks": [
            node("a", "work", input={"name": "a"}),
            node("b", "work", input={"name": "b"}, depends_on="a"),
            node("c", "work", input={"name": "c"}),
            node("d", "work", input={"name": "c"}),
            node("broken", "fail", on_failure="handler"),
            node("handler", "handler"),
        ]
    }
    again = run_plan.with_options(retries=1, persist_result=True)
    result = again(plan, actions={**BASIC, "work": work, "handler": handler})
    assert result.succeeded
    assert calls == {"a": 1, "b": 2, "c": 2, "handler": 1}


# -- in flows


@pytest.mark.smoke
def test_a_plan_is_awaited_in_an_async_flow() -> None:
    async def beside() -> str:
        await asyncio.sleep(0)
        return "beside"

    @flow
    async def around() -> Any:
        plan = Plan(tasks=(Node(id="a", type="echo", input={"value": 1}),))
        result, other = await asyncio.gather(arun_plan(plan, actions=BASIC), beside())
        blocking = run_plan(plan, actions=BASIC)
        return result.outputs, other, blocking.outputs

    assert asyncio.run(around()) == ({"a": 1}, "beside", {"a": 1})


@pytest.mark.requirement("000.28")
def test_the_flow_run_is_named_after_the_plan(tmp_path: Any) -> None:
    from prefect.client.orchestration import get_client

    (tmp_path / "nightly.json").write_text('{"tasks": [{"id": "a", "type": "echo"}]}')
    (tmp_path / "named.yaml").write_text("name: Drug labels\ntasks: [{id: a, type: echo}]\n")
    cases = [
        ({"tasks": [node("a")], "name": "A name", "intent": "x"}, "A name"),
        ({"tasks": [node("a")], "intent": "An  intent"}, "An intent"),
        (Plan(name="Made in Python", tasks=(Node(id="a", type="echo"),)), "Made in Python"),
        (str(tmp_path / "nightly.json"), "nightly"),
        (tmp_path / "named.yaml", "Drug labels"),
        ('{"name": "In a text", "tasks": [{"id": "a", "type": "echo"}]}', "In a text"),
    ]
    with get_client(sync_client=True) as client:
        for source, name in cases:
            done = ran(source, actions=BASIC)
            assert client.read_flow_run(done.flow_run_id).name == name


# -- refused before anything runs


def test_a_wrong_plan_is_refused_whole() -> None:
    ran_anyway: list[int] = []
    pay = resilient_task(effect="external")(echo)
    kept = task(cache_policy=INPUTS)(echo)
    plan = {
        "tasks": [
            node("a", "note"),
            node("b", "nope", depends_on="x"),
            node("c", "echo", input={"valeu": 1}, circuit="svc-{provider}", timeout_ms=-1),
            node("d", "echo", circuit={"name": "d", "open_four": 1}),
            node("e", "echo", circuit="e-{provider}"),
            node("f", "echo", effect={"kind": "external", "key": "{order}"}),
            node("g", "echo", effect="external", cache=True),
            node("h", "pay", cache=True),
            node("i", "kept", effect="external"),
            node("j", "echo", effect="conditional", cache=True),
        ]
    }
    with pytest.raises(PlanError) as caught:
        run_plan(plan, actions={"note": lambda: ran_anyway.append(1), "echo": echo, "pay": pay, "kept": kept})
    places = [mistake.place for mistake in caught.value.mistakes]
    assert places == [
        "tasks[1].depends_on",
        "tasks[1].type",
        "tasks[2].timeout_ms",
        "tasks[3].circuit.open_four",
        "tasks[4].circuit",
        "tasks[5].effect",
        "tasks[6].effect",
        "tasks[7]",
        "tasks[8].effect",
    ]
    assert str(caught.value).count("the ledger replays") == 3
    assert "tasks[7]: the ledger replays" in str(caught.value)
    assert "{provider} is not an input of 'echo'" in str(caught.value)
    assert ran_anyway == []


# -- the failure


@pytest.mark.requirement("002.12")
def test_a_failure_tells_all_of_it_and_no_secret() -> None:
    register_secret("s3cr3t-in-a-plan")

    def leak(value: str) -> None:
        raise ValueError(f"cannot log in with {value}")

    plan = {
        "name": "leaky s3cr3t-in-a-plan",
        "tasks": [
            node("good", input={"value": {"password": "s3cr3t-in-a-plan"}}),
            node("bad", "leak", input={"value": "s3cr3t-in-a-plan"}),
            node("worse", "leak", input={"value": "s3cr3t-in-a-plan"}, depends_on="good"),
        ],
    }
    with pytest.raises(PlanFailed) as caught:
        run_plan(plan, actions={**BASIC, "leak": leak})
    failure = caught.value
    assert str(failure).startswith(
        "2 of 3 nodes failed: 'bad' (ValueError unexpected: cannot log in with ***)"
    )
    context = error_context(failure)
    assert context is not None
    assert context.details["partial_results"] == {"good": {"password": "***"}}
    assert "s3cr3t" not in context.model_dump_json()
    again = pickle.loads(pickle.dumps(failure))
    assert error_context(again) == context
    shown = Artifact.get("plan-leaky")
    assert shown is not None
    assert "s3cr3t" not in str(shown.data)


def test_a_condition_without_an_answer_fails_its_node_in_the_ui_too() -> None:
    condition = {"operator": "gt", "path": "x", "value": 1}
    done = run(node("a", input={"value": {}}, condition=condition, on_success="b"), node("b"))
    assert done.statuses() == {"a": "failed", "b": "skipped"}
    assert done.task_runs()["a"].state_name == "Failed"
    assert "cannot be evaluated" in (done.task_runs()["a"].state.message or "")


# -- what is shown


@pytest.mark.smoke
@pytest.mark.requirement("000.15")
def test_each_decision_is_an_event_and_a_line_of_the_log(seen: Any, caplog: pytest.LogCaptureFixture) -> None:
    condition = {"operator": "gte", "path": "score", "value": 0.9}
    with caplog.at_level(logging.INFO):
        done = run(
            node("a", input={"value": {"score": 0.4}}, condition=condition, on_success="b", on_failure="c"),
            node("b"),
            node("c"),
            name="decide",
        )

    def ours(event: dict[str, Any]) -> bool:
        return str(done.flow_run_id) in str(event["related"])

    [event] = seen.events("prefect-resilience.plan.branched", ours)
    assert event["resource"]["prefect.resource.id"] == "prefect-resilience.plan-node.a"
    assert (event["payload"]["node"], event["payload"]["to"], event["payload"]["plan"]) == (
        "a",
        ["c"],
        "decide",
    )
    assert "score" in event["payload"]["why"]
    assert any(line.startswith("Node 'a' routes to c: ") for line in caplog.messages)


@pytest.mark.smoke
def test_dependencies_are_arrows_between_task_runs() -> None:
    done = run(
        node("a"),
        node("b", depends_on="a"),
        node("c", "fail", depends_on="a", on_failure="d"),
        node("d"),
        node("e", depends_on=["b", "d"]),
        node("skipped", depends_on="c"),
    )
    runs = done.task_runs()
    names = {run.id: name for name, run in runs.items()}

    def before(name: str) -> set[str]:
        return {names[one.id] for one in runs[name].task_inputs.get("wait_for", [])}

    assert {name: before(name) for name in runs} == {
        "a": set(),
        "b": {"a"},
        "c": {"a"},
        "d": {"c"},
        "e": {"b", "d"},
        "skipped": {"c"},
    }


def test_the_report_has_a_table_and_one_picture() -> None:
    run(node("a", "fail", on_failure="b"), node("b"), node("c", depends_on="a"), name="Report | me!")
    shown = Artifact.get("plan-report-me")
    assert shown is not None
    text = str(shown.data)
    assert "The plan succeeded: 1 succeeded, 1 handled, 1 skipped." in text
    assert "| `a` | handled | 1 |" in text
    assert "| `c` | skipped |  |  | none of its dependencies produced a value: a failed |" in text.replace(
        "\\_", "_"
    )
    assert text.count("](data:image/svg+xml;base64,") == 1
    assert "mermaid" not in text


def test_an_artifact_that_cannot_be_written_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from prefect_resilience.graphs.plans.edge import start

    def refuse(*_: Any, **__: Any) -> None:
        raise httpx.ConnectError("no API")

    monkeypatch.setattr(start, "create_markdown_artifact", refuse)
    assert run(node("a")).result.succeeded
    assert any("could not be saved as an artifact" in line for line in caplog.messages)
