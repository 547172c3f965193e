"""`resilient_task` and `resilient_flow` have what Prefect's own decorators and classes have, and show it."""

from __future__ import annotations

import inspect
import json
import pydoc
import subprocess
import sys
from pathlib import Path
from typing import Any

import prefect
import pytest
from prefect import Flow, Task, flow, task

from prefect_resilience import ResilientFlow, ResilientTask, resilient_flow, resilient_task
from prefect_resilience.base.naming import UNSET
from prefect_resilience.calls.edge import call_options
from prefect_resilience.tasks.edge import flow_options, task_options


def work(x: int = 1) -> int:
    """What it is for."""
    return x


PAIRS: dict[str, tuple[Any, Any]] = {
    "prefect.task": (prefect.task, resilient_task),
    "prefect.flow": (prefect.flow, resilient_flow),
    "Task": (Task, ResilientTask),
    "Flow": (Flow, ResilientFlow),
    "a task": (task(work), resilient_task(work)),
    "a flow": (flow(work), resilient_flow(work)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_every_public_attribute_of_prefects_own_is_there(name: str) -> None:
    theirs, ours = PAIRS[name]
    assert {name for name in dir(theirs) if not name.startswith("_")} <= set(dir(ours))


CLASSES = [(Task, ResilientTask), (Flow, ResilientFlow)]
METHODS = [
    (theirs, ours, name)
    for theirs, ours in CLASSES
    for name, method in inspect.getmembers(theirs, callable)
    if not name.startswith("_") or name == "__call__"
]


@pytest.mark.parametrize(
    ("theirs", "ours", "name"), METHODS, ids=[f"{t.__name__}.{n}" for t, _, n in METHODS]
)
def test_every_method_takes_what_prefects_own_takes(theirs: type, ours: type, name: str) -> None:
    expected = inspect.signature(getattr(theirs, name)).parameters
    taken = inspect.signature(getattr(ours, name)).parameters
    passed_on = any(each.kind is each.VAR_KEYWORD for each in taken.values())
    for parameter in expected.values():
        if parameter.name in taken:
            assert taken[parameter.name].default == parameter.default
        else:
            assert passed_on, f"{name} takes no {parameter.name}"


SHOWN: dict[str, tuple[Any, Any, list[Any]]] = {
    "resilient_task": (resilient_task, call_options.DEFAULTS, [task]),
    "resilient_flow": (resilient_flow, flow_options.DEFAULTS, [flow]),
    "ResilientTask": (ResilientTask, call_options.DEFAULTS, [task, Task]),
    "ResilientFlow": (ResilientFlow, flow_options.DEFAULTS, [flow, Flow]),
    "ResilientTask.wrap": (ResilientTask.wrap, call_options.DEFAULTS, []),
    "ResilientFlow.wrap": (ResilientFlow.wrap, flow_options.DEFAULTS, []),
    "a task's with_options": (
        resilient_task(work).with_options,
        dict.fromkeys(call_options.DEFAULTS, UNSET),
        [task(work).with_options],
    ),
    "a flow's with_options": (
        resilient_flow(work).with_options,
        dict.fromkeys(flow_options.DEFAULTS, UNSET),
        [flow(work).with_options],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_signatures_show_every_option_with_its_default(name: str) -> None:
    subject, defaults, likes = SHOWN[name]
    shown = inspect.signature(subject).parameters
    assert not any(each.kind is each.VAR_KEYWORD for each in shown.values())
    for option, default in defaults.items():
        assert shown[option].default is default or shown[option].default == default
        assert shown[option].annotation is not inspect.Parameter.empty
    for like in likes[:1]:
        for parameter in inspect.signature(like).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY or "with_options" in name:
                assert shown[parameter.name].default == parameter.default
                assert shown[parameter.name].annotation == parameter.annotation
    for like in likes[1:]:
        taken = {*inspect.signature(like).parameters} - {"fn"}
        assert taken <= set(shown)
    for option in shown:
        assert option in pydoc.render_doc(subject, renderer=pydoc.plaintext)


def test_the_lists_of_options_are_those_of_prefect() -> None:
    """A new option of Prefect's is to be added to the types that are checked."""
    ours = task_options.ResilientTaskOptions.__annotations__
    assert {*ours} == {*call_options.DEFAULTS, *inspect.signature(Task).parameters} - {"fn"}
    assert {*call_options.ResilienceOptions.__annotations__} == {*call_options.DEFAULTS}
    flows = flow_options.ResilientFlowOptions.__annotations__
    assert {*flows} == {*flow_options.DEFAULTS, *inspect.signature(Flow).parameters} - {"fn"}
    assert {*flow_options.ResilienceFlowOptions.__annotations__} == {*flow_options.DEFAULTS}


@pytest.mark.parametrize("load", [resilient_flow.from_source, ResilientFlow.from_source, flow.from_source])
def test_a_flow_is_loaded_from_a_source(load: Any, tmp_path: Path) -> None:
    (tmp_path / "flows_of_mine.py").write_text(
        "from prefect_resilience import resilient_flow\n\n"
        "@resilient_flow(name='mine', summary=True)\ndef mine(x: int = 1): ...\n"
    )
    loaded = load(source=str(tmp_path), entrypoint="flows_of_mine.py:mine")
    assert isinstance(loaded, ResilientFlow)
    assert loaded.name == "mine"
    assert loaded.guard.ending.summary


TYPED = """
from collections.abc import Generator
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect_resilience import resilient_flow, resilient_task
from typing_extensions import assert_type

@resilient_task
def bare(x: int, y: str = "") -> float: return 0.0
@resilient_task(retry=3, timeout="30s", retries=None, tags=["a"])
async def awaited(x: int) -> float: return 0.0
@resilient_task(timeout=5)
def chunks(x: int) -> Generator[int, None, str]:
    yield 1
    return ""
@resilient_flow
def flowing(x: int) -> str: return ""
@resilient_flow(summary=True, log_prints=True)
async def aflowing(x: int) -> str: return ""

assert_type(bare(1), float)
assert_type(bare(1, y="a"), float)
assert_type(bare.submit(1), PrefectFuture[float])
assert_type(bare(1, return_state=True), State[float])
assert_type(bare.with_options(retry=1, name="n")(1), float)
assert_type(chunks(1), Generator[int, None, str])
assert_type(flowing(1), str)
loaded = resilient_flow.from_source("a", "b")
async def main() -> None:
    assert_type(await awaited(1), float)
    assert_type(await aflowing(1), str)
bare("wrong")  # error
bare(1, 2)  # error
bare.submit("wrong")  # error
resilient_task(retyr=3)  # error
resilient_task(retries="many")  # error
resilient_flow(summary="yes")  # error
bare.with_options(timeoutt=3)  # error
flowing("wrong")  # error
"""


@pytest.mark.slow
def test_type_checkers_see_parameters_and_results_through_both_decorators(tmp_path: Path) -> None:
    file = tmp_path / "typed.py"
    file.write_text(TYPED)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "basic"}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(file)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    wrong = sorted({one["range"]["start"]["line"] for one in found if one["severity"] == "error"})
    lines = TYPED.splitlines()
    assert wrong == [number for number, line in enumerate(lines) if line.endswith("# error")], found
