"""The new text of a file: each plain task as a resilient task that keeps its own settings.

Only what must change is changed: the name that makes a task, `retries=0` for a task that is not retried
(a resilient task without `retries` has a policy), and the imports.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prefect_resilience.operations.adoption.reading import TASK, PlainTask
from prefect_resilience.operations.sources import is_constant

NAME = "resilient_task"
IMPORT = f"from prefect_resilience import {NAME}"


class Edit(NamedTuple):
    """`text` instead of what stands from `start` to `end`."""

    start: int
    end: int
    text: str


class Text:
    """A file's text, in which places of its syntax tree are found."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.lines: list[str] = re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)
        self.starts: list[int] = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        """The place of a line, counted from 1, and of a column, counted in bytes as `ast` does."""
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def start(self, node: ast.expr | ast.stmt | ast.alias | ast.keyword) -> int:
        return self.at(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt | ast.alias) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.at(node.end_lineno, node.end_col_offset)

    def indent(self, node: ast.stmt | ast.keyword) -> str:
        line = self.lines[node.lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    def changed(self, edits: Iterable[Edit]) -> str:
        text = self.text
        for start, end, new in sorted(edits, reverse=True):
            text = text[:start] + new + text[end:]
        return text


def rewritten(text: str, tree: ast.Module, names: dict[str, str], tasks: list[PlainTask]) -> str:
    """The text with every task changed that can be."""
    changed = [task for task in tasks if not task.unread]
    if not changed:
        return text
    source = Text(text)
    edits = [edit for task in changed for edit in _making(source, task)]
    done = {id(node) for task in changed for node in ast.walk(_maker(task.made))}
    edits += _imports(source, tree, names, done)
    return source.changed(edits)


def _maker(made: ast.expr) -> ast.expr:
    return made.func if isinstance(made, ast.Call) else made


def _making(source: Text, task: PlainTask) -> Iterator[Edit]:
    """The edits of one task: its maker's name, and `retries=0` if it is not retried."""
    made, maker = task.made, _maker(task.made)
    own = "" if task.retried or "retries" in task.settings else "retries=0"
    none = task.options.get("retries")
    if none is not None and is_constant(none, None) and not task.retried:
        yield Edit(source.start(none), source.end(none), "0")
    if not isinstance(made, ast.Call):
        yield Edit(source.start(maker), source.end(maker), f"{NAME}({own})" if own else NAME)
        return
    if made.args:
        yield from _called(source, made, own)
        return
    yield Edit(source.start(maker), source.end(maker), NAME)
    if own and made.keywords:
        first = made.keywords[0]
        alone = first.lineno != made.lineno
        separator = f",{source.newline}{source.indent(first)}" if alone else ", "
        yield Edit(source.start(first), source.start(first), own + separator)
    elif own:
        yield Edit(source.end(maker), source.end(made), f"({own})")


def _called(source: Text, made: ast.Call, own: str) -> Iterator[Edit]:
    """`task(function, name="x")`, which becomes `resilient_task(name="x")(function)`."""
    written = [own] if own else []
    written += [source.text[source.start(one) : source.end(one.value)] for one in made.keywords]
    function = source.text[source.start(made.args[0]) : source.end(made.args[0])]
    options = f"({', '.join(written)})" if written else ""
    yield Edit(source.start(made), source.end(made), f"{NAME}{options}({function})")


def _imports(source: Text, tree: ast.Module, names: dict[str, str], done: set[int]) -> Iterator[Edit]:
    """Import the new name where the old one is imported, and the old one no longer if nothing uses it."""
    new = "" if names.get(NAME, "").startswith("prefect_resilience") else IMPORT
    left = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in done}
    left |= {name for node in tree.body if isinstance(node, ast.Assign) for name in _exported(node)}
    at_top = False
    for node in _importing(tree):
        inside = node.col_offset > 0
        wanted = new if inside or not at_top else ""
        at_top = at_top or not inside
        gone = [alias for alias in node.names if _is_gone(node, alias, left)]
        if gone and len(gone) == len(node.names):
            yield Edit(source.start(node), source.end(node), wanted)
            continue
        for alias in gone:
            yield _without(source, node, alias)
        if wanted:
            place = source.end(_last_of_prefect(tree, node))
            yield Edit(place, place, f"{source.newline}{source.indent(node)}{wanted}")


def _exported(node: ast.Assign) -> Iterator[str]:
    """The names in `__all__ = [...]`."""
    if any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets):
        for one in ast.walk(node.value):
            if isinstance(one, ast.Constant) and isinstance(one.value, str):
                yield one.value


def _importing(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """The statements that import Prefect's `task`, or Prefect."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            if any(f"{node.module}.{alias.name}" in TASK for alias in node.names):
                yield node
        elif isinstance(node, ast.Import) and any(alias.name == "prefect" for alias in node.names):
            yield node


def _is_gone(node: ast.Import | ast.ImportFrom, alias: ast.alias, left: set[str]) -> bool:
    return (
        isinstance(node, ast.ImportFrom)
        and f"{node.module}.{alias.name}" in TASK
        and (alias.asname or alias.name) not in left
    )


def _without(source: Text, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> Edit:
    """Remove one of several names from an import, with its comma."""
    place = node.names.index(alias)
    if place + 1 < len(node.names):
        return Edit(source.start(alias), source.start(node.names[place + 1]), "")
    return Edit(source.end(node.names[place - 1]), source.end(alias), "")


def _last_of_prefect(tree: ast.Module, node: ast.stmt) -> ast.stmt:
    """The last of the imports from Prefect that follow each other: behind it, imports stay in order."""
    if node not in tree.body:
        return node
    last = node
    for following in tree.body[tree.body.index(node) + 1 :]:
        if not (
            isinstance(following, ast.ImportFrom) and (following.module or "").split(".")[0] == "prefect"
        ):
            break
        last = following
    return last
