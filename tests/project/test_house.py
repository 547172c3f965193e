"""The limits of the package's size hold (`make house`), and are measured as they say."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL

from tests.project import house, names

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


def test_names_are_counted_as_they_begin() -> None:
    tree = ast.parse(
        "def told(): ...\ndef _closed_twice(): ...\ndef feed(): ...\ndef __made__(): ...\ndef tell(): ...\n"
        "class C:\n    @property\n    def found(self):\n        one, two = 1, 2\n        self.kept = one\n"
    )
    assert names.participles({Path("a.py"): tree}) == (50.0, ["a: told", "a: _closed_twice"])
    assert names.vague_locals({Path("a.py"): tree}) == (50.0, ["a: one"])


def test_files_of_one_name_are_counted_with_their_folders() -> None:
    paths = [Path(place) for place in ("a/rows.py", "b/rows.py", "a/model.py", "b/model.py", "b/other.py")]
    assert names.files_twice(paths) == ["rows.py: a, b"]


@pytest.mark.api
@pytest.mark.slow
def test_the_road_of_a_failure_is_as_short_as_its_limit() -> None:
    command = [sys.executable, "-m", "tests.project.failure_road"]
    environment = {**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value())}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
