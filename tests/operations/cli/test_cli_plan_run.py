"""`plan run` against a real Prefect API, on pipes and on a real terminal; and what docs/plans.md says."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.settings import get_current_settings

from prefect_resilience.graphs.plans.model import Plan
from prefect_resilience.graphs.plans.result import PlanResult
from tests.docs.pages import DOCS, blocks
from tests.docs.reading import Reader
from tests.operations.cli.conftest import COMMAND

pytestmark = pytest.mark.api

PAGE = DOCS / "plans.md"
STEPS = """
from prefect_resilience.graphs.plans.actions import action

print("the module is being imported")


@action("ask")
def ask(drug: str, broken: bool = False) -> dict:
    print("an action is at work")
    if broken:
        raise ConnectionError("no answer, api_key=sk-ant-REDACTED")
    return {"text": drug, "confidence": 0.95}


@action("tell")
def tell(text: str, error=None) -> str:
    return f"{text} {error.code if error else ''}".strip()
"""
QUICK = {"max_retries": 1, "initial_delay_ms": 1, "max_delay_ms": 1}
PLAN = {
    "intent": "a question for the command line",
    "inputs": {"drug": "aspirin", "broken": False},
    "tasks": [
        {
            "id": "ask",
            "type": "ask",
            "input": {"drug": "{{inputs.drug}}", "broken": "{{inputs.broken}}"},
            "retry_policy": QUICK,
        },
        {"id": "tell", "type": "tell", "input": {"text": "it is {{ask.output.text}}"}, "depends_on": "ask"},
        {"id": "sorry", "type": "tell", "input": {"text": "sorry"}},
        {"id": "shout", "type": "tell", "input": {"text": "{{inputs.drug}}!"}},
    ],
}
HANDLED = {**PLAN, "tasks": [{**PLAN["tasks"][0], "on_failure": ["sorry"]}, *PLAN["tasks"][1:]]}  # type: ignore[dict-item,index,list-item]


@pytest.fixture(autouse=True)
def plans(folder: Path) -> None:
    """Plans and their actions."""
    (folder / "plan.json").write_text(json.dumps(PLAN))
    (folder / "handled.json").write_text(json.dumps(HANDLED))
    (folder / "run_steps.py").write_text(STEPS)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are started use the API of these tests."""
    monkeypatch.setenv("PREFECT_API_URL", str(get_current_settings().api.url))


def statuses(result: PlanResult) -> dict[str, tuple[str, int]]:
    return {name: (node.status, node.attempts) for name, node in result.nodes.items()}


@pytest.mark.smoke
def test_the_table_says_what_became_of_each_node(cli: Any) -> None:
    done = cli("plan", "run", "handled.json", "--actions", "run_steps.py", "--input", "broken=true")
    assert done.code == 0
    rows = [re.split(r"\s{2,}", line.strip()) for line in done.out.splitlines()]
    told = {row[1]: row for row in rows if len(row) > 1}
    assert told["ask"][0] == "! handled"
    assert told["ask"][2] == "2"
    assert told["tell"][0] == "- skipped"
    assert told["sorry"][0] == told["shout"][0] == "✓ succeeded"
    assert "ConnectionError" in done.out or "NETWORK_ERROR" in done.out
    assert "none of its dependencies produced a value" in re.sub(r"\s+", " ", done.out)
    assert done.out.rstrip().endswith("The plan succeeded: 4 nodes, 2 succeeded, 1 handled, 1 skipped.")
    assert "an action is at work" in done.err
    assert "sk-ant" not in done.out + done.err


def test_a_plan_that_fails_says_so_and_shows_all_of_it(cli: Any) -> None:
    done = cli("plan", "run", "plan.json", "--actions", "run_steps", "--input", "broken=true")
    assert done.code == 1
    assert "✗ failed" in done.out
    assert done.out.rstrip().endswith("The plan failed: 4 nodes, 2 succeeded, 1 failed, 1 skipped.")
    assert done.err.splitlines()[-1].startswith("1 of 4 nodes failed: 'ask' (")
    assert "Traceback" not in done.out


def test_json_is_the_result_and_nothing_else(process: Any, api: None) -> None:
    done = process("plan", "run", "plan.json", "--actions", "run_steps.py", "--input", "drug=7", "--json")
    assert done.code == 0, done.err
    result = PlanResult.model_validate(done.json)
    assert result.succeeded
    assert statuses(result) == dict.fromkeys(("ask", "tell", "sorry", "shout"), ("succeeded", 1))
    assert result.nodes["shout"].output == "7!"
    assert result.nodes["ask"].output == {"text": 7, "confidence": 0.95}
    assert "an action is at work" in done.err
    with get_client(sync_client=True) as client:
        run_id = client.read_task_run(result.nodes["ask"].task_run_id).flow_run_id
        (run,) = client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run_id])))
    assert run.state_name == "Completed"


def test_json_of_a_failure_has_every_node(cli: Any) -> None:
    done = cli("plan", "run", "plan.json", "--actions", "run_steps.py", "--input", "broken=true", "--json")
    assert done.code == 1
    result = PlanResult.model_validate(done.json)
    assert statuses(result) == {
        "ask": ("failed", 2),
        "tell": ("skipped", 0),
        "sorry": ("succeeded", 1),
        "shout": ("succeeded", 1),
    }
    assert "sk-ant" not in done.out + done.err


def test_a_plan_from_stdin_runs_like_a_file(api: None) -> None:
    done = subprocess.run(
        [*COMMAND, "plan", "run", "-", "--actions", "run_steps.py", "--json"],
        input="tasks: [{id: a, type: tell, input: {text: hello}}]",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["nodes"]["a"]["output"] == "hello"


# -- the documentation


def test_the_documentation_does_as_it_says(cli: Any, folder: Path) -> None:
    reader = Reader(folder, cli)
    reader.follow(PAGE, every_command=True)
    assert reader.compared > 5
    for block in blocks(PAGE):
        if block.language == "json" and not block.file:
            assert Plan.from_text(block.text).tasks
    assert "<svg" in (folder / "research.svg").read_text()
