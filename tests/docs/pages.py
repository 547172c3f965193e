"""The pages of the documentation as code: their blocks, and the public names that they use."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = "prefect_resilience"
BLOCK = re.compile(r"^(?:`([\w./]+)`:\n\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^( +)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)

WITH_TESTS_OF_THEIR_OWN = {
    "agents.md": "tests/graphs/agents/test_docs.py",
    "effects.md": "tests/operations/cli/test_effects_documentation.py",
    "plans.md": "tests/operations/cli/test_cli_plan_run.py",
    "testing.md": "tests/testing/test_documentation.py",
}
SUBMODULES = ("dead_letters", "operations", "testing")


class Block(NamedTuple):
    """One block of code; `file` is the name under which the page says to keep it, "" for none."""

    file: str
    language: str
    text: str


def pages() -> list[Path]:
    return sorted(DOCS.rglob("*.md"))


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(page.read_text(encoding="utf-8"))]


def is_output(shown: str, printed: str) -> bool:
    """Whether this was printed. A `...` on the page stands for anything."""
    wanted = "\n".join(line.rstrip() for line in shown.strip().splitlines())
    found = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    return re.fullmatch(".*?".join(map(re.escape, wanted.split("..."))), found, re.DOTALL) is not None


def commands(page: Path) -> Iterator[str]:
    """The lines of shell, also of blocks in lists."""
    text = page.read_text(encoding="utf-8")
    inside = [(language, code) for _, language, code in INDENTED.findall(text)]
    for language, code in [*((block.language, block.text) for block in blocks(page)), *inside]:
        if language == "sh":
            # A comment says, for example, in which terminal the commands are typed
            yield from (line.strip() for line in code.splitlines() if line.strip() and line.strip()[0] != "#")


def public_names() -> list[str]:
    """Every public name by its module, as in `prefect_resilience.Retry`; what two have stands under one."""
    top: list[str] = importlib.import_module(PACKAGE).__all__
    names = [f"{PACKAGE}.{name}" for name in top]
    for module in SUBMODULES:
        found: list[str] = importlib.import_module(f"{PACKAGE}.{module}").__all__
        names += [f"{PACKAGE}.{module}.{name}" for name in found if name not in top]
    return names


def used(code: str) -> set[str]:
    """The public names that a piece of code takes from this package and does something with."""
    tree = ast.parse(code)
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE)
        for alias in node.names
    }
    loaded = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    through = {
        f"{PACKAGE}.{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in SUBMODULES
    }
    return {imported[name] for name in imported.keys() & loaded} | through


def used_in(page: Path) -> set[str]:
    return used("\n".join(block.text for block in blocks(page) if block.language == "python"))
