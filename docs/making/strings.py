"""All texts of the package that a user can see: messages, log lines, CLI texts, headings, descriptions.

python -m docs.making.strings                       the whole list: path:line: kind: text
python -m docs.making.strings durable tasks         only these folders of the package
python -m docs.making.strings --kind docstring      only docstrings of public names

A text is a string of two or more words that is no docstring, SQL, Lua, regular expression or stored marker.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "prefect_resilience"
CODE = re.compile(
    r"^\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|WITH|LOCK|PRAGMA|BEGIN|SET|local |redis\.|return )\b"
    r"|\(\?[:P<!=i]|\\[bdswW]|\[\^"
)


class Text(NamedTuple):
    """One text, with the file and line it starts in. `kind` is "message" or "docstring"."""

    path: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.kind}: {self.text!r}"


def texts(rooms: list[str] | None = None) -> Iterator[Text]:
    """The texts of the package, or of some of its folders."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if not rooms or path.relative_to(PACKAGE).parts[0].removesuffix(".py") in rooms:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            yield from _docstrings(path, tree)
            yield from _messages(path, tree)


def _docstrings(path: Path, tree: ast.Module) -> Iterator[Text]:
    """The docstrings of modules, and of classes and functions without a leading underscore."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = getattr(node, "name", "")
            found = ast.get_docstring(node)
            if found and not name.startswith("_"):
                yield Text(path, getattr(node, "lineno", 1), "docstring", found)


def _messages(path: Path, tree: ast.Module) -> Iterator[Text]:
    seen = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in seen:
            continue
        if isinstance(node, ast.JoinedStr):
            seen.update(id(part) for part in ast.walk(node))
            text = "".join(_part(part) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if len(text.split()) > 1 and not CODE.search(text):
            yield Text(path, node.lineno, "message", text)


def _part(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "{" + ast.unparse(_value(part)) + "}"


def _value(part: ast.expr) -> ast.expr:
    return part.value if isinstance(part, ast.FormattedValue) else part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rooms", nargs="*")
    parser.add_argument("--kind", choices=("message", "docstring"), default="message")
    asked = parser.parse_args()
    for text in texts(asked.rooms):
        if text.kind == asked.kind:
            print(text)


if __name__ == "__main__":
    main()
