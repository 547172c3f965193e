"""`plan validate, graph, schema`: files, stdin, JSON, mistakes. Nothing here needs a Prefect API."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

GOOD = {
    "intent": "look it up, and ask a person where that is not enough",
    "tasks": [
        {
            "id": "look",
            "type": "look_up",
            "input": {"drug": "{{inputs.drug}}"},
            "condition": {"type": "comparison", "operator": "gte", "path": "confidence", "value": 0.9},
            "on_success": ["report"],
            "on_failure": ["review"],
        },
        {"id": "report", "type": "write", "input": {"text": "{{look.output}}"}},
        {"id": "review", "type": "write", "input": {"text": "please look"}},
    ],
    "inputs": {"drug": "aspirin"},
}
WRONG = {
    "tasks": [
        {"id": "a", "type": "x", "condition": {"operator": "gte ", "path": "c", "value": 1}},
        {"id": "b", "type": "x", "depends_on": ["aa"]},
    ]
}
STEPS = """
from prefect_resilience.graphs.plans.actions import action


@action("look_up")
def look_up(drug: str, limit: int = 3) -> dict:
    return {"drug": drug, "confidence": 0.95}


@action("write")
def write(text: str) -> str:
    return text
"""


@pytest.fixture(autouse=True)
def plans(folder: Path) -> None:
    """A right plan, a wrong one, and actions."""
    (folder / "good.json").write_text(json.dumps(GOOD))
    (folder / "wrong.json").write_text(json.dumps(WRONG))
    (folder / "plan_steps.py").write_text(STEPS)


# -- validate


def test_a_right_plan_has_no_mistakes(cli: Any) -> None:
    done = cli("plan", "validate", "good.json")
    assert (done.code, done.out) == (0, "good.json: no mistakes, 3 nodes\n")
    assert done.err.startswith("Types and inputs of the nodes were not checked: add the modules of their")
    done = cli("plan", "validate", "good.json", "--actions", "plan_steps.py")
    assert (done.code, done.out, done.err) == (0, "good.json: no mistakes, 3 nodes\n", "")


def test_every_mistake_of_every_file_has_its_place(cli: Any, folder: Path) -> None:
    done = cli("plan", "validate", "wrong.json", "good.json", "xyz.yaml", "no")
    assert done.code == 1
    said = [re.sub(r"; did you mean '(good|wrong).*", "", line) for line in done.out.splitlines()]
    assert said == [
        "wrong.json: tasks[0].condition.operator: 'gte ' is not an operator; did you mean 'gte'?",
        "wrong.json: tasks[1].depends_on[0]: unknown node 'aa'; did you mean 'a'?",
        "good.json: no mistakes, 3 nodes",
        f"xyz.yaml: there is no such file in {folder}",
        "no: is not a plan file: its name must end in .json, .yaml, .yml",
    ]


def test_types_and_inputs_are_checked_with_actions(cli: Any, folder: Path) -> None:
    plan = {
        "tasks": [{"id": "a", "type": "look_upp"}, {"id": "b", "type": "look_up", "input": {"durg": "x"}}]
    }
    (folder / "types.json").write_text(json.dumps(plan))
    assert cli("plan", "validate", "types.json").code == 0
    done = cli("plan", "validate", "types.json", "--actions", "plan_steps")
    assert done.code == 1
    assert done.err == ""
    assert done.out.splitlines() == [
        "types.json: tasks[0].type: unknown action 'look_upp'; did you mean 'look_up'?",
        "types.json: tasks[1].input.durg: 'durg' is not an input of 'look_up'; did you mean 'drug'?",
        "types.json: tasks[1].input: 'look_up' needs 'drug': write it in the input",
    ]


def test_validate_as_json(cli: Any) -> None:
    done = cli("plan", "validate", "good.json", "wrong.json", "--json")
    assert done.code == 1
    good, wrong = done.json
    assert good == {
        "file": "good.json",
        "valid": True,
        "actions_checked": False,
        "nodes": 3,
        "mistakes": [],
    }
    assert (wrong["valid"], wrong["nodes"]) == (False, None)
    assert [mistake["place"] for mistake in wrong["mistakes"]] == [
        "tasks[0].condition.operator",
        "tasks[1].depends_on[0]",
    ]


def test_a_plan_from_stdin(cli: Any) -> None:
    assert cli("plan", "validate", "-", stdin=json.dumps(GOOD)).out == "stdin: no mistakes, 3 nodes\n"
    assert (
        cli("plan", "validate", "-", stdin="tasks:\n- {id: a, type: x}\n").out
        == "stdin: no mistakes, 1 node\n"
    )
    done = cli("plan", "validate", "-", stdin=json.dumps(WRONG))
    assert done.code == 1
    assert done.out.startswith("stdin: tasks[0].condition.operator: 'gte '")


@pytest.mark.parametrize("data", ["", "[1, 2", "a: [", b"\xff\xfe\x00", "3", "{}", "a: &a [*a]"])
def test_what_is_no_plan_is_one_mistake_in_a_line(cli: Any, data: str | bytes) -> None:
    done = cli("plan", "validate", "-", stdin=data)
    assert done.code == 1
    assert "Traceback" not in done.err
    assert "this is a bug in" not in done.err
    assert all(line.startswith("stdin: ") for line in done.out.splitlines())
    assert done.out.count("\n") == 1


# -- graph


def test_a_picture_of_a_plan(cli: Any, folder: Path) -> None:
    done = cli("plan", "graph", "good.json")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(("flowchart", "graph", "---", "%%"))
    assert all(name in done.out for name in ("look", "report", "review", "confidence"))


def test_a_picture_goes_into_a_file_by_its_name(cli: Any, folder: Path) -> None:
    done = cli("plan", "graph", "good.json", "--output", "good.svg")
    assert (done.code, done.out, done.err) == (0, "", "Wrote good.svg\n")
    ElementTree.fromstring((folder / "good.svg").read_text(encoding="utf-8"))
    assert cli("plan", "graph", "good.json", "--output", "good.mmd", "--json").json == {
        "format": "mermaid",
        "output": "good.mmd",
        "picture": None,
    }
    drawn = (folder / "good.mmd").read_text(encoding="utf-8")
    assert cli("plan", "graph", "good.json", "--json").json["picture"].strip() == drawn.strip()


# -- schema


def test_the_schema_is_that_of_plans(cli: Any) -> None:
    done = cli("plan", "schema")
    assert (done.code, done.err) == (0, "")
    schema = done.json
    assert schema["properties"].keys() >= {"tasks", "inputs", "bounds"}
    assert cli("plan", "schema", "--json").out == done.out


# -- mistakes


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("plan validate", "Pass the plans to check"),
        ("plan validte good.json", 'Did you mean "validate"?'),
        ("plan graph good.json --output no/such/folder.svg", "cannot be written: no such file or directory"),
        ("plan run", "FILE"),
    ],
)
def test_a_mistake_is_one_sentence(cli: Any, words: str, says: str) -> None:
    done = cli(*words.split())
    assert says in done.sentence
    assert done.out == ""


def test_a_plan_that_is_wrong_is_not_run(cli: Any) -> None:
    done = cli("plan", "run", "wrong.json", "--actions", "plan_steps.py")
    assert (done.code, done.out) == (1, "")
    lines = done.err.splitlines()
    assert all(line.startswith("wrong.json: tasks[") for line in lines)
    places = [line.split(": ")[1] for line in lines]
    assert places == ["tasks[0].condition.operator", "tasks[1].depends_on[0]", "tasks[1].type"]


def test_a_plan_without_actions_is_not_run(cli: Any) -> None:
    done = cli("plan", "run", "good.json")
    assert (done.code, done.out) == (1, "")
    assert "good.json: tasks[0].type: unknown action 'look_up', because none is registered" in done.err


def test_an_input_that_the_plan_does_not_have(cli: Any, folder: Path) -> None:
    done = cli("plan", "run", "good.json", "--actions", "plan_steps.py", "--input", "durg=x")
    assert done.sentence == "The plan has no input 'durg'; did you mean 'drug'?"
    (folder / "none.json").write_text('{"tasks": [{"id": "a", "type": "write", "input": {"text": "x"}}]}')
    done = cli("plan", "run", "none.json", "--actions", "plan_steps.py", "--input", "drug=1")
    assert done.sentence == "The plan has no input 'drug'; it has no inputs"


def test_an_input_that_the_plan_needs(cli: Any, folder: Path) -> None:
    plan = {"tasks": [{"id": "a", "type": "write", "input": {"text": "{{inputs.drug}}"}}]}
    (folder / "needs.json").write_text(json.dumps(plan))
    done = cli("plan", "run", "needs.json", "--actions", "plan_steps.py")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("needs.json: tasks[0].input.text: ")


def test_an_api_that_is_away(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        done = cli("plan", "run", "good.json", "--actions", "plan_steps.py")
    assert done.out == ""
    said = done.err.splitlines()[-1]
    assert said.startswith(
        "The Prefect API is unavailable (Failed to reach API at http://127.0.0.1:9/api/): start a server"
    )


def test_help_has_examples(cli: Any) -> None:
    for command in ("run", "validate", "graph", "schema"):
        done = cli("plan", command, "--help")
        assert done.code == 0
        assert "Example: prefect-resilience plan " in done.out
