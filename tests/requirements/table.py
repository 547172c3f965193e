"""The rows of `rows.txt`, and the tests that are marked with them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = Path(__file__).with_name("rows.txt")
PAGE = ROOT / "docs" / "requirements.md"

DOCUMENTS = {
    "000": "Task graphs with conditions, handlers and backoff",
    "001": "Errors of an agent's task system",
    "002": "Retries, timeouts and failure routing of a workflow engine",
    "003": "Retries, circuits and fallbacks of an agent orchestrator",
    "004": "Error recovery and batches",
}

HEAD = """# Requirements

What five designs of other systems require, and the tests of this repository that show it.
[Coming from…](coming_from.md#coming-from-other-designs) translates their words. A test names its rows with
`@pytest.mark.requirement`; `python -m tests.requirements --write` writes this page.
"""


@dataclass(frozen=True)
class Row:
    """`id` is "003.12": the document and the place in its list."""

    id: str
    text: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Marked:
    """A test and the rows that it names; `test` is "tests/guards/circuits/test_machine.py::test_it_opens"."""

    test: str
    ids: tuple[str, ...]


def rows() -> list[Row]:
    """Every row, with its tests. Raises ValueError for a row that is written twice."""
    shown: dict[str, list[str]] = {}
    for one in marked():
        for id in one.ids:
            shown.setdefault(id, []).append(one.test)
    written = [line.split(" ", 1) for line in ROWS.read_text().splitlines() if line]
    ids = [id for id, _ in written]
    if twice := {id for id in ids if ids.count(id) > 1}:
        raise ValueError(f"{ROWS.name} has {', '.join(sorted(twice))} twice")
    return [Row(id, text, tuple(shown.get(id, ()))) for id, text in written]


def unknown() -> list[Marked]:
    """Tests that name a row that there is not."""
    known = {row.id for row in rows()}
    return [one for one in marked() if not {*one.ids} <= known]


def marked() -> Iterator[Marked]:
    """Read from the sources: nothing is imported."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if "mark.requirement" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (ids := _ids(node)):
                yield Marked(f"{path.relative_to(ROOT)}::{node.name}", ids)


def _ids(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    return tuple(
        str(ast.literal_eval(argument))
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.requirement"
        for argument in decorator.args
    )


def page() -> str:
    found = rows()
    parts = [HEAD]
    for document, title in DOCUMENTS.items():
        parts.append(f"\n## {title}\n\n| row | requirement | shown by |\n|---|---|---|\n")
        for row in found:
            if row.id.startswith(f"{document}."):
                shown = "<br>".join(f"`{_short(test)}`" for test in row.tests) or "nothing"
                parts.append(f"| {row.id} | {row.text} | {shown} |\n")
    return "".join(parts)


def _short(test: str) -> str:
    """Without the folder of all tests, and without what every test's name begins with."""
    return test.removeprefix("tests/").replace("::test_", "::")
