"""What a project's plain Prefect tasks would be as resilient tasks, and what is dangerous in them.

    adopt(text) -> Adoption        text of a file to its new text, its tasks and its dangers

Pure: the command `prefect-resilience adopt` reads and writes the files.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from prefect_resilience.operations.adoption.dangers import Danger, ModuleCode, TaskCalls, dangers_in
from prefect_resilience.operations.adoption.plain_tasks import PlainTask, new_text, plain_tasks
from prefect_resilience.operations.users_code import origins


@dataclass(frozen=True)
class Adoption:
    """What becomes of one file. `text` is the new text, the same as before if no task can be changed."""

    text: str
    tasks: list[PlainTask]
    dangers: list[Danger]
    calls: dict[PlainTask, TaskCalls]


def adopt(
    text: str,
    *,
    retried_by_default: bool = False,
    is_local: Callable[[str], bool] = lambda origin: origin.startswith("."),
) -> Adoption:
    """Read a file's text. Raises SyntaxError if it is not Python.

    retried_by_default: whether Prefect's settings retry a task that does not say so itself
        (`PREFECT_TASKS_DEFAULT_RETRIES`).
    is_local: whether a module is of the same project, so that what it writes has to be read there.
    """
    tree = ast.parse(text)
    names = origins(tree)
    tasks = plain_tasks(tree, names, retried_by_default)
    code = ModuleCode(tree, names, is_local)
    calls = {task: code.calls_of(task.function) for task in tasks if task.function is not None}
    dangers = dangers_in(tree, names, tasks, calls)
    return Adoption(new_text(text, tree, names, tasks), tasks, dangers, calls)
