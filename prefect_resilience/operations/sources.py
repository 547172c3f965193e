"""A project's source files, and the names in them. Nothing is imported or executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SKIPPED = {".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages"}


def python_files(path: Path) -> Iterator[Path]:
    """The file itself, or the Python files of a folder without installed packages."""
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*.py")):
        if not SKIPPED.intersection(file.relative_to(path).parts):
            yield file


def origins(tree: ast.AST) -> dict[str, str]:
    """The dotted origin of each imported name of the file; one from `from .a import b` begins with dots."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (f"{node.module}." if node.module else "")
            names |= {alias.asname or alias.name: module + alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                names[alias.asname or root] = alias.name if alias.asname else root
    return names


def origin_of(node: ast.expr, names: dict[str, str]) -> str:
    """The dotted origin of a name or an attribute; "" for other expressions."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        base = origin_of(node.value, names)
        return f"{base}.{node.attr}" if base else ""
    return ""


def is_relative(origin: str) -> bool:
    return origin.startswith(".")


def is_constant(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value
