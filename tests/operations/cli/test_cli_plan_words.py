"""What `plan` understands of its options, and how it says what became of a plan."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.graphs.plans.result import NodeResult, PlanResult
from prefect_resilience.operations.cli import look
from prefect_resilience.operations.cli import plan as commands
from prefect_resilience.operations.cli.options import json_pairs
from prefect_resilience.operations.cli.plan import import_actions

# -- inputs


EXAMPLE = "name=value, as in --input drug=x"


def test_an_input_is_json_where_it_reads_as_json() -> None:
    pairs = ["a=3", "b=true", "c=[1, 2]", 'd="3"', "e=aspirin", "f=", "g=a=b", "h=NaN", " i =null"]
    pairs += ["j=" + "[" * 100_000]
    assert json_pairs("--input", pairs, EXAMPLE) == {
        "a": 3,
        "b": True,
        "c": [1, 2],
        "d": "3",
        "e": "aspirin",
        "f": "",
        "g": "a=b",
        "h": "NaN",
        "i": None,
        "j": "[" * 100_000,
    }


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        (["aspirin"], "--input 'aspirin' must be name=value, as in --input drug=x"),
        (["=3"], "--input '=3' must be name=value"),
        (["a=1", "a=2"], "--input a=... is given twice"),
    ],
)
def test_a_bad_input_is_one_sentence(pairs: list[str], says: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        json_pairs("--input", pairs, EXAMPLE)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


# -- modules


def test_a_module_is_seen_from_the_current_folder(folder: Path) -> None:
    (folder / "house_steps").mkdir()
    (folder / "house_steps" / "actions.py").write_text("SEEN = 1\n")
    import_actions(["house_steps.actions"])
    assert sys.modules["house_steps.actions"].SEEN == 1


def test_a_file_sees_its_neighbours_and_is_loaded_once(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "neighbour_of_steps.py").write_text("LOADED = []\n")
    code = "from neighbour_of_steps import LOADED\nLOADED.append(__name__)\n"
    (folder / "deep" / "my_steps_in_a_file.py").write_text(code)
    import_actions(["deep/my_steps_in_a_file.py", str(folder / "deep" / "my_steps_in_a_file.py")])
    assert sys.modules["neighbour_of_steps"].LOADED == ["my_steps_in_a_file"]


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("no_such_steps", None, "--actions no_such_steps: there is no module 'no_such_steps', installed"),
        ("no_such_steps.py", None, "--actions no_such_steps.py: there is no such file"),
        ("prefect_resilience.graphs.plans.actoins", None, "has no module 'actoins'; did you mean 'actions'?"),
        ("odd_a", "import a_thing_not_there\n", "No module named 'a_thing_not_there' (line 1 of "),
        ("odd_b.py", "\nfrom json import nonsense\n", "cannot import name 'nonsense' from 'json'"),
        ("odd_c", "1 / 0\n", "it cannot be imported: ZeroDivisionError: division by zero (line 1 of "),
        ("odd_d", "def broken(:\n", "it is not valid Python: "),
        ("odd_f.txt/x", "", "there is no such file"),
        ("json.py", "SEEN = 1\n", "a module 'json' is already loaded: rename the file"),
    ],
)
def test_a_module_that_cannot_be_imported_says_why(
    folder: Path, name: str, code: str | None, says: str
) -> None:
    if code:
        (folder / name).with_suffix(".py").write_text(code)
    with pytest.raises(ConfigurationError) as raised:
        import_actions([name])
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_no_python(folder: Path) -> None:
    (folder / "steps").mkdir()
    (folder / "steps" / "steps.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"steps/steps\.json is not a Python file"):
        import_actions(["steps/steps.json"])


def test_a_module_that_failed_is_tried_again(folder: Path) -> None:
    file = folder / "mended_steps.py"
    file.write_text("1 / 0\n")
    with pytest.raises(ConfigurationError):
        import_actions(["mended_steps.py"])
    file.write_text("SEEN = 1\n")
    import_actions(["mended_steps.py"])
    assert sys.modules["mended_steps"].SEEN == 1


# -- tables


def printed(part: Any, width: int = 100) -> str:
    console = Console(width=width, force_terminal=False, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(part)
    return console.export_text()


ERROR = ErrorContext.model_validate(
    {
        "category": "unavailable",
        "kind": "transient",
        "code": "503",
        "reason": "unexpected_error",
        "message": "the key sk-ant-REDACTED was\nnot asked for",
        "retryable": True,
        "timestamp": datetime(2026, 11, 20, tzinfo=UTC),
    }
)
RESULT = PlanResult(
    succeeded=False,
    nodes={
        "ask": NodeResult(
            status="handled", error=ERROR, attempts=4, duration=1.234, reason="it failed: to other"
        ),
        "a-node-of-a-name-that-goes-on-and-on": NodeResult(status="skipped", reason="no node routed to it"),
        "other": NodeResult(status="succeeded", attempts=1, duration=0.0351),
        "last": NodeResult(status="failed", attempts=1, error=ERROR, duration=600.0),
    },
)


def test_a_status_is_a_sign_and_a_word_in_a_colour_of_its_own() -> None:
    texts = [look.state(status) for status in ("succeeded", "failed", "handled", "skipped")]
    assert [text.plain for text in texts] == ["✓ succeeded", "✗ failed", "! handled", "- skipped"]
    assert len({str(text.style) for text in texts}) == 4


def test_the_table_has_a_row_for_every_node() -> None:
    lines = printed(look.table(commands.NODES, RESULT.nodes.items())).splitlines()
    (asked,) = [line for line in lines if "! handled" in line]
    assert asked.split()[:6] == ["!", "handled", "ask", "4", "1.2", "s"]
    assert "503 unavailable: the key" in asked
    statuses = [line.split()[1] for line in lines if line.strip()[:1] in ("!", "-", "✓", "✗")]
    assert statuses == ["handled", "skipped", "succeeded", "failed"]
    text = "\n".join(lines)
    assert "not asked for" not in text, "an error is told in its first line"
    assert "it failed: to" in text
    assert "35 ms" in text
    assert "10 min" in text


def test_a_secret_in_an_error_is_masked() -> None:
    assert "sk-ant" not in commands.why(RESULT.nodes["last"])


def test_a_long_error_is_shortened() -> None:
    told = commands.why(NodeResult(status="skipped", reason="x" * 1000))
    assert len(told) == commands.WHY_LIMIT + 1
    assert told.endswith("…")


def test_the_last_line_counts() -> None:
    assert (
        commands.summary(RESULT) == "The plan failed: 4 nodes, 1 succeeded, 1 failed, 1 handled, 1 skipped."
    )
    one = PlanResult(succeeded=True, nodes={"a": NodeResult(status="succeeded")})
    assert commands.summary(one) == "The plan succeeded: 1 node, 1 succeeded."
