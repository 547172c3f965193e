"""The plain Prefect tasks of a file, and its new text: each as a resilient task that keeps its own settings.

Only what must change is changed: the name that makes a task, `retries=0` for a task that is not retried
(a resilient task without `retries` has a policy), and the imports.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from prefect_resilience.operations.users_code import is_constant, origin_of

TASK = ("prefect.task", "prefect.tasks.task")
IMPORTED = (*TASK, "prefect")
KEPT = ("retries", "retry_delay_seconds", "retry_jitter_factor", "retry_condition_fn", "timeout_seconds")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class PlainTask:
    """A task that is made by Prefect's `task`.

    made: the expression that makes it: `task`, `task(...)` or `prefect.task(...)`.
    function: its definition, if it is in the same file.
    retried: whether Prefect repeats it; also True where only a run can tell.
    unread: why it is left as it is; "" for a task that can be changed.
    """

    name: str
    line: int
    made: ast.expr
    function: Function | None
    retried: bool
    unread: str = ""

    @property
    def options(self) -> dict[str, ast.expr]:
        """What the task sets itself."""
        keywords = self.made.keywords if isinstance(self.made, ast.Call) else []
        return {keyword.arg: keyword.value for keyword in keywords if keyword.arg}

    @property
    def settings(self) -> dict[str, str]:
        """Its settings for retries and time, as they are written. They stay as they are."""
        return {name: ast.unparse(self.options[name]) for name in KEPT if name in self.options}

    @property
    def policy(self) -> str:
        """A policy with as many attempts, which looks at what failed; "" where only a run can tell."""
        retries, delay = self.options.get("retries"), self.options.get("retry_delay_seconds")
        if not self.retried:
            return "retry=Retry()"
        if not (isinstance(retries, ast.Constant) and isinstance(retries.value, int)):
            return ""
        attempts = f"attempts={retries.value + 1}"
        pauses = _pauses(delay)
        return f"retry=Retry({attempts}, backoff={pauses})" if pauses else f"retry=Retry({attempts})"


def _pauses(delay: ast.expr | None) -> str:
    """The same delays as a `Backoff`; "" where none are written, or only a run can tell."""
    if isinstance(delay, ast.Constant) and isinstance(delay.value, int | float):
        return f"Backoff.schedule([{delay.value}])"
    if isinstance(delay, ast.List):
        return f"Backoff.schedule({ast.unparse(delay)})"
    if isinstance(delay, ast.Call) and ast.unparse(delay.func).endswith("exponential_backoff"):
        factor = [*delay.args, *(keyword.value for keyword in delay.keywords)]
        return f"Backoff.exponential(initial={ast.unparse(factor[0])})" if factor else ""
    return ""


def plain_tasks(tree: ast.Module, names: dict[str, str], retried_by_default: bool) -> list[PlainTask]:
    """All tasks of a file that Prefect's `task` makes, in their order."""
    tasks: list[PlainTask] = []
    decorators: set[int] = set()
    functions: dict[str, Function] = {}
    for node in ast.walk(tree):
        if isinstance(node, Function):
            functions[node.name] = node
            for decorator in node.decorator_list:
                decorators.add(id(decorator))
                if _is_task(decorator, names):
                    tasks.append(_task(decorator, node.name, node, retried_by_default))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and id(node) not in decorators and _is_task(node, names):
            name = ast.unparse(node.args[0] if node.args else node)
            tasks.append(_task(node, name, functions.get(name), retried_by_default))
    return sorted(tasks, key=lambda task: (task.line, task.made.col_offset))


def _is_task(node: ast.expr, names: dict[str, str]) -> bool:
    return origin_of(node.func if isinstance(node, ast.Call) else node, names) in TASK


def _task(made: ast.expr, name: str, function: Function | None, retried_by_default: bool) -> PlainTask:
    keywords = made.keywords if isinstance(made, ast.Call) else []
    retries = next((keyword.value for keyword in keywords if keyword.arg == "retries"), None)
    retried = (
        retried_by_default if retries is None or is_constant(retries, None) else not is_constant(retries, 0)
    )
    unread = next(iter(_troubles(made)), "")
    return PlainTask(name, made.lineno, made, function, retried, unread)


def _troubles(made: ast.expr) -> Iterator[str]:
    """Why a task cannot be changed without a person."""
    if isinstance(made, ast.Call):
        if any(keyword.arg is None for keyword in made.keywords):
            yield "its options come from **, so they are known only in a run"
        if any(isinstance(argument, ast.Starred) for argument in made.args) or len(made.args) > 1:
            yield "task() is not called with exactly one function"


# -- the new text

NAME = "resilient_task"
IMPORT = f"from prefect_resilience import {NAME}"


class Edit(NamedTuple):
    """`text` instead of what stands from `start` to `end`."""

    start: int
    end: int
    text: str


class Text:
    """A file's text, in which places of its syntax tree are tasks."""

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

    def apply(self, edits: Iterable[Edit]) -> str:
        text = self.text
        for start, end, new in sorted(edits, reverse=True):
            text = text[:start] + new + text[end:]
        return text


def new_text(text: str, tree: ast.Module, names: dict[str, str], tasks: list[PlainTask]) -> str:
    """The text with every task changed that can be."""
    changed = [task for task in tasks if not task.unread]
    if not changed:
        return text
    source = Text(text)
    edits = [edit for task in changed for edit in _making(source, task)]
    done = {id(node) for task in changed for node in ast.walk(_maker(task.made))}
    edits += _imports(source, tree, names, done)
    return source.apply(edits)


def _maker(made: ast.expr) -> ast.expr:
    return made.func if isinstance(made, ast.Call) else made


def _making(source: Text, task: PlainTask) -> Iterator[Edit]:
    """The edits of one task: its maker's name, and `retries=0` if it is not retried."""
    expression, maker = task.made, _maker(task.made)
    own = "" if task.retried or "retries" in task.settings else "retries=0"
    none = task.options.get("retries")
    if none is not None and is_constant(none, None) and not task.retried:
        yield Edit(source.start(none), source.end(none), "0")
    if not isinstance(expression, ast.Call):
        yield Edit(source.start(maker), source.end(maker), f"{NAME}({own})" if own else NAME)
        return
    if expression.args:
        yield from _wrap_call(source, expression, own)
        return
    yield Edit(source.start(maker), source.end(maker), NAME)
    if own and expression.keywords:
        first = expression.keywords[0]
        alone = first.lineno != expression.lineno
        separator = f",{source.newline}{source.indent(first)}" if alone else ", "
        yield Edit(source.start(first), source.start(first), own + separator)
    elif own:
        yield Edit(source.end(maker), source.end(expression), f"({own})")


def _wrap_call(source: Text, made: ast.Call, own: str) -> Iterator[Edit]:
    """`task(function, name="x")`, which becomes `resilient_task(name="x")(function)`."""
    written = [own] if own else []
    written += [source.text[source.start(option) : source.end(option.value)] for option in made.keywords]
    function = source.text[source.start(made.args[0]) : source.end(made.args[0])]
    options = f"({', '.join(written)})" if written else ""
    yield Edit(source.start(made), source.end(made), f"{NAME}{options}({function})")


def _imports(source: Text, tree: ast.Module, names: dict[str, str], done: set[int]) -> Iterator[Edit]:
    """Import the new name where the old one is imported, and the old one no longer if nothing uses it."""
    new = "" if names.get(NAME, "").startswith("prefect_resilience") else IMPORT
    names_in_use = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in done}
    # A text may be a name in `__all__`.
    names_in_use |= {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    at_top = False
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        old = [alias for alias in node.names if module + alias.name in IMPORTED]
        if not old:
            continue
        wanted = new if node.col_offset or not at_top else ""
        at_top = at_top or not node.col_offset
        gone = [alias for alias in old if (alias.asname or alias.name) not in names_in_use]
        if len(gone) == len(node.names):
            yield Edit(source.start(node), source.end(node), wanted)
            continue
        for alias in gone:
            yield _without(source, node, alias)
        if wanted:
            place = source.end(node)
            yield Edit(place, place, f"{source.newline}{source.indent(node)}{wanted}")


def _without(source: Text, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> Edit:
    """Remove one of several names from an import, with its comma."""
    place = node.names.index(alias)
    if place + 1 < len(node.names):
        return Edit(source.start(alias), source.start(node.names[place + 1]), "")
    return Edit(source.end(node.names[place - 1]), source.end(alias), "")
