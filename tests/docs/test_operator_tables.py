"""The page for operators names every state and every event that the code can give, and no other event."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PACKAGE, ROOT

pytestmark = pytest.mark.docs

PAGE = DOCS / "operations.md"
SENDING = {"emit", "_emit", "send_event", "emit_event", "_event", "_report", "CallEvent", "_events"}
STATES = {"Completed", "Failed", "Pending", "_make_completed"}
EVENT = re.compile(r"[a-z]+(?:-[a-z]+)*\.[a-z]+(?:-[a-z]+)*")


@cache
def modules() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / PACKAGE).rglob("*.py")}


def texts(tree: ast.AST) -> set[str]:
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def assigned(tree: ast.AST) -> dict[str, set[str]]:
    """The texts in what is assigned to each name, and in the tables that it is taken from."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets = [part.id for part in ast.walk(node.targets[0]) if isinstance(part, ast.Name)]
            for name in targets:
                found.setdefault(name, set()).update(may_be(node.value, found))
    return found


@cache
def constants() -> dict[str, set[str]]:
    """The texts of constants, which other modules import."""
    return {
        node.targets[0].id: {node.value.value}
        for tree in modules().values()
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def may_be(value: ast.AST, names: dict[str, set[str]]) -> set[str]:
    """The texts that an argument may be: those in it, and those that its names were given."""
    used = [node.id for node in ast.walk(value) if isinstance(node, ast.Name)]
    return texts(value).union(*(names.get(name, ()) for name in used))


def calls(tree: ast.AST, functions: set[str]) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in functions:
                yield node


def events_of_the_code() -> set[str]:
    found: set[str] = set()
    for tree in modules().values():
        names = {**constants(), **assigned(tree)}
        for call in calls(tree, SENDING):
            found.update(*(may_be(value, names) for value in call.args[:3]))
    return {name for name in (text.lstrip(".") for text in found) if EVENT.fullmatch(name)}


def states_of_the_code() -> set[str]:
    found: set[str] = set()
    for path, tree in modules().items():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                names = assigned(function)
                for call in calls(function, STATES):
                    given = [word.value for word in call.keywords if word.arg == "name"]
                    found.update(*(may_be(value, names) for value in given or call.args[:1]))
        if "routing" in path.parts:  # whose nodes all end by `ended(name, why, value)`
            found.update(*(texts(call.args[0]) for call in calls(tree, {"ended"})))
    return found


def first_column(heading: str) -> list[str]:
    """The code in the first column of the first table under a heading of the page."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_the_table_has_the_events_that_are_sent() -> None:
    named = first_column("Events")
    assert len(named) == len(set(named))
    assert set(named) == events_of_the_code()


def test_the_table_has_every_state_that_is_given() -> None:
    given = states_of_the_code()
    # That the reading of the code finds any of each kind: by a name, by a choice, by a node of routing
    assert {"Replayed", "Decomposed", "Routed", "NotReady"} <= given
    named = first_column("States")
    assert len(named) == len(set(named))
    assert given - set(named) == set()
