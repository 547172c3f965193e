"""The plain Prefect tasks of a file, with the settings that they have."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from prefect_resilience.operations.sources import is_constant, origin_of

TASK = ("prefect.task", "prefect.tasks.task")
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
    found: list[PlainTask] = []
    decorators: set[int] = set()
    functions: dict[str, Function] = {}
    for node in ast.walk(tree):
        if isinstance(node, Function):
            functions[node.name] = node
            for decorator in node.decorator_list:
                decorators.add(id(decorator))
                if _is_task(decorator, names):
                    found.append(_task(decorator, node.name, node, retried_by_default))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and id(node) not in decorators and _is_task(node, names):
            name = ast.unparse(node.args[0] if node.args else node)
            found.append(_task(node, name, functions.get(name), retried_by_default))
    return sorted(found, key=lambda task: (task.line, task.made.col_offset))


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
