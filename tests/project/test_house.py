"""The limits of the package's size hold (`make house`), and are measured as they say."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.project import house

pytestmark = pytest.mark.docs


def test_the_limits_hold() -> None:
    assert ["\n".join([str(one), *one.counted]) for one in house.figures() if not one.holds] == []


def test_every_limit_belongs_to_a_figure() -> None:
    assert house.LIMITS.keys() <= {figure.name for figure in house.figures()}


def test_code_is_counted_without_blanks_comments_and_docstrings(tmp_path: Path) -> None:
    text = (
        '"""Module.\n\nMore.\n"""\n\n# comment\nA = """one\ntwo"""\n'
        '\n\ndef f():\n    """Doc."""\n    return A  # why\n'
    )
    file = tmp_path / "file.py"
    file.write_text(text)
    assert house.code_lines(file) == 4


def test_imports_for_types_are_no_arrows_and_those_in_functions_are_late() -> None:
    text = (
        "import a.b\nif TYPE_CHECKING:\n    import types_only\n"
        "class C:\n    def f(self):\n        from d import e\n"
    )
    assert list(house.imports(ast.parse(text))) == [("a.b", False), ("d.e", True)]


def test_a_room_is_a_folder_of_the_package() -> None:
    assert house.room_of("prefect_resilience.guards.retries.policy") == "guards"
    assert house.room_of("prefect_resilience.guards") == "guards"
    assert [
        house.room_of(name) for name in ("prefect_resilience.blocks", "prefect_resilience", "guards")
    ] == [None] * 3
