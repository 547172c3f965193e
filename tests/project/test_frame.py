"""The frame of the project: what a fresh clone promises, and the rules that no other tool checks."""

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

from tests.docs.pages import SUBMODULES

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
