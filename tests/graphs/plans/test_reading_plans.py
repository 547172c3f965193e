# ruff: noqa: E501 - what is said stands whole in its line
"""Plans from files and texts: what is read, and what is said of what cannot be."""

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.graphs.plans.edge.start import title_of
from prefect_resilience.graphs.plans.model import Plan
from prefect_resilience.graphs.plans.reading import data as plan_data
from prefect_resilience.graphs.plans.reading.data import load_yaml
from prefect_resilience.graphs.plans.reading.mistakes import PlanError
from prefect_resilience.graphs.plans.reading.reading import read_plan

FILES = sorted((Path(__file__).parent / "files").glob("*.json"))
ONE = '{"tasks": [{"id": "a", "type": "x"%s}]}'


def says(source: Any, **options: Any) -> list[str]:
    with pytest.raises(PlanError) as refused:
        read_plan(source, **options)
    return [str(mistake) for mistake in refused.value.mistakes]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_same_plan_in_every_form(path: Path, tmp_path: Path) -> None:
    data = json.loads(path.read_text())
    plan = read_plan(path)
    written = tmp_path / "plan.yaml"
    written.write_text("# a comment\n" + yaml.safe_dump(data, sort_keys=False))
    (tmp_path / "plan.YML").write_bytes(b"\xef\xbb\xbf" + written.read_bytes())
    for source in (
        data,
        plan,
        str(path),
        path.read_text(),
        "\n" + path.read_text(),
        written,
        written.read_text(),
    ):
        assert read_plan(source) == plan
    assert read_plan(tmp_path / "plan.YML") == plan
    assert Plan.from_file(written) == plan
    assert Plan.from_text(json.dumps(data)) == plan


def test_files_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text(ONE % "")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "empty.json").write_text(" ")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    (tmp_path / "latin.json").write_bytes(b'{"tasks":\n["\xe9"]}')
    (tmp_path / "utf16.json").write_bytes((ONE % "").encode("utf-16"))
    os.mkfifo(tmp_path / "pipe.json")
    assert says("plna.json") == [f"plna.json: there is no such file in {tmp_path}; did you mean 'plan.json'?"]
    assert says("other/x.json") == [f"other/x.json: there is no such file in {tmp_path}/other"]
    assert says("zzzzzzzz.yaml") == [f"zzzzzzzz.yaml: there is no such file in {tmp_path}"]
    assert says(Path("folder.json")) == ["folder.json: is not a regular file"]
    assert says("pipe.json") == ["pipe.json: is not a regular file"]
    assert says("plan.toml") == ["plan.toml: is not a plan file: its name must end in .json, .yaml, .yml"]
    assert says("empty.json") == ['empty.json: is empty: write {"tasks": [...]}']
    assert says("empty.yaml") == ["a plan is an object with its nodes in 'tasks', not None"]
    assert says("latin.json") == ["latin.json, line 2: is not encoded in UTF-8: save it as UTF-8"]
    assert says("utf16.json") == ["utf16.json, line 1: is not encoded in UTF-8: save it as UTF-8"]
    assert says("x" * 5000 + ".json")[0].endswith(": cannot be read: File name too long")
    assert says("a\0.json")[0].startswith("a\\x00.json: cannot be read: ")
    assert says("") == ['the plan: is empty: write {"tasks": [...]}']
    assert says(Path("")) == [".: is not a plan file: its name must end in .json, .yaml, .yml"]
    assert says(5) == ["a plan is an object with its nodes in 'tasks', not 5"]
    monkeypatch.setattr(plan_data, "LARGEST_FILE", 10)
    assert says("plan.json") == ["plan.json: 37 bytes are more than the 10 that a plan may have"]
    assert says(ONE % "") == ["the plan: 37 characters are more than the 10 that a plan may have"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"tasks": [}', "the plan, line 1, column 12: is not valid JSON: expecting value, at '}'"),
        ('{"tasks": []', "the plan, line 1, column 13: is not valid JSON: expecting ',' delimiter, at the end"),
        ('{"tasks": [],}', "the plan, line 1, column 13: is not valid JSON: illegal trailing comma before end of object, at ',}'"),
        (ONE % ', "input": {"p": "NaN", "q": NaN}', "tasks[0].input.q: write a finite number, not nan"),
        (ONE % ', "timeout_ms": -1e999', "tasks[0].timeout_ms: write a finite number, not -inf"),
        (ONE % (', "timeout_ms": ' + "9" * 2000), "tasks[0].timeout_ms: is a number with too many digits: write it as a string"),
        (ONE % ', "type": "y"', "tasks[0].type: 'type' is written more than once: write it once"),
        (ONE % ', "input": {"p": [{"x": 1, "x": 1, "x": 2}]}', "tasks[0].input.p[0].x: 'x' is written more than once: write it once"),
        (ONE % (', "input": {"p": "[[", "q": ' + "[]," * 3 + "[" * 5000), "the plan, line 1, column 66: is not valid JSON: expecting property name enclosed in double quotes, at '[],[],[[[[[[[[[[[[[['"),
        ("[" * 50_000 + "]" * 10, "the plan: cannot be read: it, or the program that reads it, is nested too deeply"),
        ("tasks:\n- id: a\n  type: x\n  cache: yes\n", "tasks[0].cache: write true, false, or an object with ttl and key, not 'yes'"),
        ("tasks: [{id: a, type: x, timeout_ms: 1e999}]\n", "tasks[0].timeout_ms: write a finite number, not inf"),
        ("tasks: [{id: a, type: x, input: {p: " + "9" * 2000 + "}}]\n", "tasks[0].input.p: is a number with too many digits: write it as a string"),
        ("1: 2\n", "the plan, line 1, column 1: is not valid YAML: 1 is not a key: write a string, in quotes if necessary"),
        ("a: *b\n", "the plan, line 1, column 4: is not valid YAML: the alias *b has no anchor that ends above it"),
        ("a: &b [*b]\n", "the plan, line 1, column 8: is not valid YAML: the alias *b has no anchor that ends above it"),
        ("a: !mine x\n", "the plan, line 1, column 4: is not valid YAML: the tag '!mine' is not supported: write plain data"),
        ("a: 1\n---\nb: 2\n", "the plan: is not valid YAML: it has several documents: write one plan per file"),
        ("a:\n\t- b\n", "the plan, line 2, column 1: is not valid YAML: found character that cannot start any token; indent with spaces, not tabs"),
        ("a: [\n", "the plan, line 2, column 1: is not valid YAML: did not find expected node content"),
        ("a: \0\n", "the plan: is not valid YAML: unacceptable character #x0000: control characters are not allowed"),
        ("a: \ud800\n", "the plan: is not valid YAML: 'utf-8' codec can't encode character '\\ud800' in position 3: surrogates not allowed"),
        ("a: " + "[" * 5000 + "\n", "the plan, line 1, column 103: is not valid YAML: is nested more than 100 levels deep: reduce the nesting"),
        ("just a text\n", "a plan is an object with its nodes in 'tasks', not 'just a text'"),
    ],
)  # fmt: skip
def test_texts_that_are_no_plan(text: str, said: str) -> None:
    told = says(text)
    if "illegal trailing comma" in said and "property name" in told[0]:
        return  # Python before 3.13 says it so
    assert told == [said]


def test_yaml_says_what_json_says() -> None:
    plan = Plan.from_text(
        """
        tasks:
        - id: a
          type: x
          description: >
            several
            lines
          timeout_ms: 1.5e3
          retry_policy: &retry {max_retries: 3, initial_delay_ms: 5}
          input:
            "yes": 'no'
            "on": "on"
            date: 2026-01-02
            version: 1.2.3
            minus: -4
            half: .5
            nothing: ~
            empty:
            right: True
            wrong: false
            y: n
            time: 1:30
            octal: 012
            off: off
        - {id: b, type: x, depends_on: a, retry_policy: *retry, input: {all: [*retry]}}
        """
    )
    assert plan.tasks[0].description == "several lines\n"
    assert plan.tasks[0].timeout_ms == 1500
    assert plan.tasks[0].input == {
        "yes": "no", "on": "on", "date": "2026-01-02", "version": "1.2.3", "minus": -4, "half": 0.5, "nothing": None,
        "empty": None, "right": True, "wrong": False, "y": "n",
        "time": "1:30", "octal": "012", "off": "off",
    }  # fmt: skip
    assert [node.retry.attempts for node in plan.tasks if node.retry] == [4, 4]
    assert plan.tasks[1].input == {"all": [{"max_retries": 3, "initial_delay_ms": 5}]}


def test_yaml_keys_written_twice() -> None:
    text = "tasks:\n- id: a\n  type: x\n  type: y\n  input: {p: 1, q: 2, p: 3}\n"
    assert says(text) == [
        "tasks[0].type: 'type' is written more than once: write it once",
        "tasks[0].input.p: 'p' is written more than once: write it once",
    ]


def test_the_list_of_nodes_written_twice() -> None:
    assert says('{"tasks": [], "tasks": []}') == ["tasks: 'tasks' is written more than once: write it once"]


def test_yaml_has_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_data, "LONGEST_YAML", 10)
    assert says("tasks:\n- id: a\n") == [
        "the plan: 15 characters of YAML are more than the allowed 10: use JSON"
    ]


def test_json_has_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_data, "MOST_PARTS", 2)
    assert says(ONE % "") == ["the plan: has more than 2 commas and brackets: refer to large data instead"]


def test_aliases_are_what_they_stand_for() -> None:
    assert load_yaml("a: &x 5\nb: [*x, &y {z: *x}, *y]\n", "x") == {"a": 5, "b": [5, {"z": 5}, {"z": 5}]}
    assert says(
        "a: &a [1, 2]\n"
        + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in pairwise("abcdefghijklmnopqrstuvwxyz"))
    ) == [
        "the plan, line 15, column 12: is not valid YAML: it has more than 200,000 values, including those of its aliases"
    ]


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
)


def trees(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    inner = st.recursive(
        scalars | texts,
        lambda part: st.lists(part, max_size=3) | st.dictionaries(texts, part, max_size=3),
        max_leaves=12,
    )
    return st.dictionaries(texts, inner, min_size=1)


@settings(max_examples=100, deadline=None)
@given(trees(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8)))
def test_json_is_the_same_when_read_as_yaml(data: Any) -> None:
    assert load_yaml(json.dumps(data, ensure_ascii=False), "x") == data


def test_a_plan_is_called_by_what_is_written_in_it(tmp_path: Path) -> None:
    named = tmp_path / "nightly.yaml"
    named.write_text("name: Drug  labels\ntasks: []\n")
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    assert title_of(named) == title_of(str(named)) == "Drug labels"
    assert title_of('{"intent": "In a text", "tasks": []}') == "In a text"
    # What cannot be read is called by its file; the run itself says what is wrong.
    assert title_of(wrong) == "wrong"
    assert title_of(tmp_path / "list.json") == "list"
    assert title_of(tmp_path / "nosuch.json") == "nosuch"
    assert title_of("{") == title_of(None) == title_of(3) == "plan"
