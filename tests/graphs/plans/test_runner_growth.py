"""Plans that grow: fan-outs, nodes that are added, plans inside plans, and what bounds them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter

from prefect_resilience.graphs.plans.edge import runner
from prefect_resilience.graphs.plans.model import Inject, Node
from prefect_resilience.operations import run_plan
from tests.graphs.plans.ran import BASIC, Ran, node, run
from tests.prefect_runs import until

pytestmark = pytest.mark.api


def states(done: Ran) -> dict[str, str | None]:
    return {name: run.state_name for name, run in done.task_runs().items()}


# -- fan-out


@pytest.mark.smoke
def test_a_fan_out_is_one_task_run_for_each_item_and_one_for_the_node() -> None:
    done = run(
        node("list", input={"value": {"drugs": ["a", "b", "c"]}}),
        node(
            "each",
            input={"value": "{{index}}:{{drug}}"},
            map={"over": "{{list.output.drugs}}", "as": "drug"},
            depends_on="list",
        ),
        node("all", input={"value": "{{each.output}}"}, depends_on="each"),
    )
    assert done.result.nodes["all"].output == ["0:a", "1:b", "2:c"]
    assert done.result.nodes["each"].attempts == 3
    until(lambda: len(done.task_runs()) == 6)
    assert states(done) == dict.fromkeys(
        ["list", "each[0]", "each[1]", "each[2]", "each", "all"], "Completed"
    )


def test_the_item_is_a_parameter_of_its_own_name() -> None:
    done = run(node("each", map={"over": [1, 2], "as": "value"}), node("nothing", map={"over": []}))
    assert done.result.outputs == {"each": [1, 2], "nothing": []}


@pytest.mark.requirement("002.31")
def test_branches_that_fail_fail_the_node_once_all_have_ended() -> None:
    ended: list[int] = []

    def odd(item: int) -> int:
        ended.append(item)
        if item % 2 == 0:
            raise ValueError(f"{item} is even")
        return item

    done = run(node("each", "odd", map={"over": [1, 2, 3, 4]}), actions={"odd": odd})
    assert sorted(ended) == [1, 2, 3, 4]
    assert done.statuses() == {"each": "failed"}
    error = done.error_of("each")
    assert error.message.startswith(
        "2 of 4 branches failed: each[1] (ValueError unexpected: 2 is even), each[3]"
    )
    assert error.details["failed"] == [1, 3]
    assert error.details["partial_results"] == {"0": 1, "2": 3}
    assert error.cause is not None
    assert (error.cause.node_id, error.cause.nesting_depth) == ("each[1]", 1)
    assert states(done) == {
        "each": "Failed",
        "each[0]": "Completed",
        "each[1]": "Failed",
        "each[2]": "Completed",
        "each[3]": "Failed",
    }


@pytest.mark.parametrize(
    ("allowed", "status"), [(0.25, "failed"), (0.5, "succeeded"), (1, "failed"), (2, "succeeded")]
)
def test_some_branches_may_fail(allowed: float, status: str) -> None:
    def odd(item: int) -> int:
        if item % 2 == 0:
            raise ValueError("even")
        return item

    fan_out = {"over": [1, 2, 3, 4], "allow_failures": allowed}
    done = run(node("each", "odd", map=fan_out), actions={"odd": odd})
    assert done.statuses() == {"each": status}
    if status == "succeeded":
        assert done.result.nodes["each"].output == [1, None, 3, None]


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ("{{text.output}}", "map.over must be a list"),
        ("{{text.output.x}}", "map.over: text.output is a string"),
    ],
)
def test_a_fan_out_needs_a_list(over: str, says: str) -> None:
    done = run(node("text", input={"value": "abc"}), node("each", map={"over": over}, depends_on="text"))
    assert says in done.error_of("each").message
    assert states(done)["each"] == "Failed"


def test_a_branch_that_cannot_be_filled_in_fails_alone() -> None:
    def takes(item: int, day: Path) -> str:
        return str(day)

    done = run(
        node("each", "takes", input={"day": "{{item}}"}, map={"over": ["a", 3], "allow_failures": 1}),
        actions={"takes": takes},
    )
    assert done.result.nodes["each"].output == ["a", None]
    assert states(done) == {"each": "Completed", "each[0]": "Completed", "each[1]": "Failed"}


def test_too_many_branches_are_refused_before_one_has_run() -> None:
    ran_anyway: list[int] = []
    done = run(
        node("list", "many"),
        node("each", "note", map={"over": "{{list.output}}"}, depends_on="list"),
        actions={"many": lambda: list(range(20_000)), "note": lambda: ran_anyway.append(1)},
    )
    assert done.statuses() == {"list": "succeeded", "each": "failed"}
    assert "20,000 items are more than the 10,000 that bounds.fan_out allows" in (done.state.message or "")
    done = run(
        node("list", input={"value": [1, 2, 3]}),
        node("each", "note", map={"over": "{{list.output}}"}, depends_on="list"),
        actions={"note": lambda: ran_anyway.append(1)},
        bounds={"nodes": 4},
    )
    assert "more than the 4 that bounds.nodes allows" in (done.state.message or "")
    assert ran_anyway == []


# -- nodes that are added


@pytest.mark.requirement("000.23")
def test_an_action_adds_nodes_to_the_plan() -> None:
    def split(error: Any) -> Inject:
        nodes = [
            node("left", input={"value": "{{split.output}}-left"}),
            Node(id="right", type="echo", input={"value": "{{left.output}}-right"}, depends_on=("left",)),
        ]
        join = node("join", input={"value": "{{split.output}} joined"}, depends_on="right")
        return Inject([*nodes, join], output="half")

    done = run(
        node("split", "split"),
        actions={"split": split},
        name="grows",
    )
    assert done.result.outputs == {
        "split": "half",
        "join": "half joined",
        "left": "half-left",
        "right": "half-left-right",
    }
    assert list(done.result.nodes) == ["split", "left", "right", "join"]
    assert [one.id for one in done.result.added] == ["left", "right", "join"]
    runs = done.task_runs()
    assert runs["join"].start_time >= runs["right"].end_time


@pytest.mark.parametrize(
    ("inject", "says"),
    [
        (
            Inject([{"id": "x", "type": "ecko"}]),
            "inject[0].type: unknown action 'ecko'; did you mean 'echo'?",
        ),
        (Inject([{"id": "x"}, {"id": "y", "type": "echo", "input": {"v": 1}}]), "inject[1].input.v"),
        (Inject([node("after")]), "is already the id of"),
        (Inject([node("x", depends_on="nobody")]), "unknown node 'nobody'"),
        (Inject([node("x", input={"value": "{{after.output}}"})]), "add 'after' to depends_on"),
        (Inject([node("x", depends_on="y"), node("y", depends_on="x")]), "would wait for itself"),
        (Inject([node("x", on_success="sorry", depends_on="sorry")]), "would wait for itself"),
        (Inject([node(f"x{i}") for i in range(9)]), "more than the 10 that bounds.nodes allows"),
    ],
)
def test_nodes_that_cannot_be_added_fail_the_node(inject: Inject, says: str) -> None:
    done = run(
        node("start", "add", on_failure="sorry"),
        node("after", depends_on="start"),
        node("sorry"),
        actions={"add": lambda: inject},
        bounds={"nodes": 10},
    )
    assert done.statuses() == {"start": "handled", "after": "skipped", "sorry": "succeeded"}
    error = done.error_of("start")
    assert says in error.message
    assert error.category == "invalid"
    assert states(done)["start"] == "Failed"


def test_nodes_that_add_nodes_for_ever_are_stopped() -> None:
    count = [0]

    def more() -> Inject:
        count[0] += 1
        return Inject([node(f"n{count[0]}", "more")])

    done = run(node("n0", "more"), actions={"more": more}, bounds={"depth": 3})
    assert done.statuses() == {"n0": "succeeded", "n1": "succeeded", "n2": "succeeded", "n3": "failed"}
    assert "bounds.depth allows 3" in (done.state.message or "")


# -- plans inside plans


@pytest.mark.smoke
def test_an_action_may_run_another_plan_as_a_flow_run_of_its_own() -> None:
    """An error of the inner plan is the cause of the error of the node."""
    tasks = [node("a", input={"value": "{{inputs.x}}"}), node("b", "fail", depends_on="a")]

    def inner(x: int) -> dict[str, Any]:
        return run_plan({"tasks": tasks}, inputs={"x": x}, actions=BASIC).outputs

    done = run(node("outer", "inner", input={"x": 7}), actions={**BASIC, "inner": inner})
    chain: list[str | None] = []
    link = done.result.nodes["outer"].error
    while link is not None:
        chain.append(link.node_id)
        link = link.cause
    assert (chain[0], chain[-1]) == ("outer", "b")
    tasks.pop()
    done = run(node("outer", "inner", input={"x": 7}), actions={**BASIC, "inner": inner})
    assert done.result.outputs == {"outer": {"a": 7}}
    with get_client(sync_client=True) as client:
        chosen = FlowRunFilter(parent_flow_run_id={"any_": [done.flow_run_id]})
        ended = TaskRunFilter(state={"type": {"any_": ["COMPLETED"]}})
        inside = until(lambda: client.read_task_runs(flow_run_filter=chosen, task_run_filter=ended))
    assert [run.name for run in inside] == ["a"]


# -- time


def test_no_node_begins_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MOST_RUNNING", 2)
    over = threading.Event()

    def slow(item: int = 0) -> int:
        over.wait(1.0)
        return item

    done = run(
        node("a", "slow"),
        node("b", depends_on="a"),
        node("each", "slow", map={"over": [1, 2]}),
        actions={"slow": slow},
        bounds={"seconds": 0.3},
    )
    assert done.state.is_failed()
    assert done.statuses() == {"a": "succeeded", "b": "skipped", "each": "failed"}
    assert done.result.nodes["b"].reason == "the plan timed out after 0.3 s"
    message = done.state.message or ""
    assert (
        "the plan timed out after 0.3 s, and 1 node did not start; 1 of 3 nodes failed: 'each' (" in message
    )
    assert "1 of 2 branches failed: each[1] (timeout: the plan timed out after 0.3 s)" in message
    assert (done.failure.category, done.failure.reason) == ("timeout", "execution_timeout")
    assert not done.result.succeeded


def test_what_was_ready_and_found_no_place_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MOST_RUNNING", 1)
    done = run(
        node("a", "slow"),
        node("b"),
        node("c", depends_on="b"),
        actions={"slow": lambda: time.sleep(0.6)},
        bounds={"seconds": 0.2},
    )
    assert done.statuses() == {"a": "succeeded", "b": "skipped", "c": "skipped"}


# -- the end by force

INTERRUPTED = """
import sys, time
from prefect_resilience.operations import run_plan

def work(name: str) -> None:
    print("began", name, flush=True)
    time.sleep(0.5)

nodes = [{"id": f"n{i}", "type": "work", "input": {"name": f"n{i}"}} for i in range(20)]
for i in range(1, 20):
    nodes[i]["depends_on"] = [f"n{i - 1}"]
run_plan({"tasks": nodes}, actions={"work": work})
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_plan_that_is_interrupted_ends_with_what_is_running(tmp_path: Path, how: signal.Signals) -> None:
    from prefect.settings import PREFECT_API_URL

    script = tmp_path / "interrupted.py"
    script.write_text(textwrap.dedent(INTERRUPTED))
    environment = {**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value()), "PYTHONPATH": os.getcwd()}
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("began n1"):
                process.send_signal(how)
                break
        rest = process.stdout.read()
        assert process.wait(90) != 0
    assert rest.count("began") <= 1
