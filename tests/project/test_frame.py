"""The frame of the project: its rules, the limits of its size, and its public names."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL

from tests.docs.pages import SUBMODULES
from tests.project import api, house, names

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PURE: list[str] = PROJECT["tool"]["coverage"]["report"]["include"]
PUBLIC_FOR_FLOWS = {
    "aiosmtpd",
    "anthropic",
    "prefect_dask",
    "prefect_ray",
    "openai",
    # the frameworks of flows/once
    "agents",
    "fastmcp",
    "langchain_core",
    "langchain_openai",
    "langgraph",
    "pydantic_ai",
    "pydantic",
    "prefect_resilience",
    "prefect",
    "sqlalchemy",
    "httpx",
    "starlette",
    "uvicorn",
    "rich",
    "flows",
}

# The seams through which a caller who hands in no time gets one
CLOCKS = {
    ROOT / "prefect_resilience" / name
    for name in (
        "base/deadlines.py",
        "base/drive.py",
        "errors/classify/classify.py",
        "graphs/conditions/bounds.py",
    )
}
PURE_FILES = sorted({path for pattern in PURE for path in ROOT.glob(pattern) if path.is_file()} - CLOCKS)
FLOW_FILES = sorted((ROOT / "flows").rglob("*.py"))


def imports_of(path: Path) -> Iterator[str]:
    """Every module that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def tracked_files() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:  # an archive that was unpacked has no git tree
        ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
        return [*files_below(ROOT, [".git", *ignored])]
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def files_below(folder: Path, ignored: list[str]) -> Iterator[Path]:
    for path in folder.iterdir():
        if not any(fnmatch(path.name, pattern) for pattern in ignored):
            yield from files_below(path, ignored) if path.is_dir() else [path]


def id_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


MINOR = ".".join(version("prefect-resilience").split(".")[:2])
TARGETS = "help demo test test-all check house bench clean mutants fuzz soak growth store-scale"
COMMANDS = {
    **dict.fromkeys(TARGETS.split(), ""),
    "docs": "mkdocs build --strict",
    "docs-version": f"mike deploy --alias-type copy --update-aliases {MINOR} latest",
}


@pytest.mark.parametrize(("target", "command"), COMMANDS.items())
def test_make_knows_the_target(target: str, command: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "-n", target], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert command in done.stdout


def test_ci_runs_the_checks_and_the_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "check test-all" in script.read_text()


def test_constraints_are_names_and_versions_only() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!_-]+", line) for line in lines)
    assert lines == sorted(lines, key=str.lower)
    assert "fastapi==0.150.0" in lines


def test_every_dependency_is_constrained() -> None:
    plain = {re.sub(r"[-_.]+", "-", line.split("==")[0]).lower() for line in constraint_lines()}
    extras = PROJECT["project"]["optional-dependencies"].values()
    wanted = [*PROJECT["project"]["dependencies"], *(name for extra in extras for name in extra)]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", name)[0]).lower() for name in wanted}
    assert names - plain == {"prefect-resilience"}


def constraint_lines() -> list[str]:
    return [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]


def test_no_registry_is_named() -> None:
    """Which registry serves the packages is the business of whoever installs."""
    words = [
        "--" + "index-url",
        "--" + "extra-index-url",
        "--" + "find-links",
        "/".join(["pypi.org", "simple"]),
    ]
    named = [
        f"{id_of(path)}: {word}"
        for path in tracked_files()
        for word in words
        if word in path.read_text(errors="ignore")
    ]
    assert named == []


def test_no_file_knows_where_this_clone_lies() -> None:
    assert [id_of(path) for path in tracked_files() if f"{ROOT}/" in path.read_text(errors="ignore")] == []


@pytest.mark.parametrize("path", PURE_FILES, ids=id_of)
def test_pure_files_are_given_time_and_chance(path: Path) -> None:
    roots = {name.partition(".")[0] for name in imports_of(path)}
    assert roots.isdisjoint({"prefect", "random", "secrets", "time"})
    clocks = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("now", "utcnow", "today")
    ]
    assert clocks == [], "a pure file reads no clock"


def test_the_pure_files_are_there() -> None:
    missing = [pattern for pattern in PURE if not list(ROOT.glob(pattern))]
    assert missing == []


@pytest.mark.parametrize("path", FLOW_FILES, ids=id_of)
def test_examples_use_the_public_api_alone(path: Path) -> None:
    ours = {name for name in imports_of(path) if name.startswith("prefect_resilience.")}
    assert ours <= {f"prefect_resilience.{name}" for name in SUBMODULES}
    foreign = {name.partition(".")[0] for name in imports_of(path)} - set(sys.stdlib_module_names)
    assert foreign <= PUBLIC_FOR_FLOWS


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


OLD = """# module prefect_resilience
class Retry(Policy):
    def __init__(self, *, attempts: int = 3, budget: RetryBudget | None = None): ...
    def decide(self, error: ErrorInfo, attempt: int, *, elapsed: float = 0.0) -> Verdict: ...

def redact(text: str) -> str: ...
LIMIT: int = 3
# module prefect_resilience.testing
def no_wait() -> None: ...
"""


def test_the_api_is_the_one_that_was_written_down() -> None:
    # In a process of its own: a test that provokes a RecursionError can leave Python's parser in a bad state.
    command = [sys.executable, "-c", "from tests.project import api; print(api.current(), end='')"]
    new = subprocess.run(command, cwd=api.ROOT, capture_output=True, text=True, check=True).stdout
    old = api.SNAPSHOT.read_text()
    assert api.unnamed(api.breaking(old, new)) == {}, "breaks callers: CHANGELOG.md must name it"
    assert old == new, "the API has changed: python -m tests.project.api --write"


def test_every_public_module_and_name_stands_in_it() -> None:
    written = api.modules_of(api.SNAPSHOT.read_text())
    assert set(written) == set(api.MODULES)
    assert {"Retry", "CircuitBreaker", "resilient_task", "run_plan"} <= set(written[api.PACKAGE].members)


@pytest.mark.parametrize(
    ("was", "now", "broken"),
    [
        ("attempt: int, *", "attempt: int, retries: int, *", {"Retry.decide"}),
        ("elapsed: float = 0.0", "elapsed: float = 1.0", {"Retry.decide"}),
        ("elapsed: float = 0.0", "elapsed: float = 0.0, random: float = 0.5", set[str]()),
        ("attempts: int = 3", "attempts: int", {"Retry.__init__"}),
        (", budget: RetryBudget | None = None", "", {"Retry.__init__"}),
        ("def redact(text: str) -> str: ...\n", "", {"redact"}),
        ("def redact", "def redacted", {"redact"}),
        ("LIMIT: int = 3", "", {"LIMIT"}),
        ("def no_wait() -> None: ...", "def no_wait(really: bool) -> None: ...", {"no_wait"}),
        (
            "# module prefect_resilience.testing",
            "# module prefect_resilience.tests",
            {"prefect_resilience.testing"},
        ),
        ("def redact", "def also() -> None: ...\n\ndef redact", set[str]()),
    ],
)
def test_what_breaks_a_caller_is_found(was: str, now: str, broken: set[str]) -> None:
    assert was in OLD
    assert set(api.breaking(OLD, OLD.replace(was, now))) == broken


def test_the_changelog_excuses_what_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"Retry.decide": "a parameter is gone", "redact": "gone"}
    text = "# Log\n\n## [Unreleased]\n\n- `Retry.decide(error)` is new.\n\n## [0.1.0]\n\n- `redact`\n"
    page = tmp_path / "CHANGELOG.md"
    page.write_text(text)
    monkeypatch.setattr(api, "CHANGELOG", page)
    assert api.unnamed(broken) == {"redact": "gone"}
