"""What is dangerous in the code of tasks, above all in tasks that are repeated."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from prefect_resilience.operations.adoption.reading import PlainTask
from prefect_resilience.operations.adoption.writes import TaskCalls
from prefect_resilience.operations.sources import is_constant, origin_of

REPEATING = {"tenacity", "stamina", "backoff", "retrying", "retry", "retry2"}
"""Libraries that repeat calls."""
SDKS = {"openai": "twice", "anthropic": "twice", "groq": "twice", "mistralai": "by its own rules"}
CLIENT = ("Client", "OpenAI", "Anthropic", "Bedrock", "Vertex", "Groq", "Mistral")
SLEEPS = ("time.sleep", "asyncio.sleep", "anyio.sleep")
WAITING = {f"requests.{name}" for name in ("get", "post", "put", "patch", "delete", "head", "request")}


@dataclass(frozen=True, order=True)
class Danger:
    """One dangerous place. `task` is "" for code outside of tasks."""

    line: int
    task: str
    says: str
    mend: str


def dangers_in(
    tree: ast.Module, names: dict[str, str], tasks: list[PlainTask], calls: dict[PlainTask, TaskCalls]
) -> list[Danger]:
    """Everything dangerous in a file's tasks, and in the clients that they may use, by line."""
    found: set[Danger] = set()
    for task, called in calls.items():
        for node in called.nodes:
            found.update(_in_task(node, names, task))
        if task.retried:
            found.update(_written(call, helper, task) for call, helper in called.writes)
    if any(task.retried for task in tasks):
        inside = {id(node) for called in calls.values() for node in called.nodes}
        for node in ast.walk(tree):
            if id(node) not in inside:
                found.update(_repeated_inside(node, names, ""))
    return sorted(found)


def _in_task(node: ast.AST, names: dict[str, str], task: PlainTask) -> Iterator[Danger]:
    if isinstance(node, ast.ExceptHandler):
        yield from _swallowed(node, task)
    elif isinstance(node, ast.While | ast.For | ast.AsyncFor):
        yield from _sleeping(node, names, task)
    elif isinstance(node, ast.Call) and origin_of(node.func, names) in WAITING:
        yield from _without_timeout(node, names, task)
    if task.retried:
        yield from _repeated_inside(node, names, task.name)


def _written(call: ast.Call, helper: str, task: PlainTask) -> Danger:
    where = f" in {helper}()" if helper else ""
    says = f"each retry repeats {ast.unparse(call.func)}(){where}, even if only the response was lost"
    mend = f"Write {effect_of(task)}: the call is made once, and not repeated if its outcome is unknown."
    return Danger(call.lineno, task.name, says, mend)


def effect_of(task: PlainTask) -> str:
    """The option that declares the task's effect, with its first parameter as the key."""
    parameters = task.function.args.args if task.function else []
    key = f"{task.name}:{{{parameters[0].arg}}}" if parameters else task.name
    return f'effect=Effect(key="{key}")'


def _repeated_inside(node: ast.AST, names: dict[str, str], task: str) -> Iterator[Danger]:
    """Calls that are repeated by a library or an SDK inside of what the task's retries repeat."""
    if not isinstance(node, ast.Call):
        return
    origin = origin_of(node.func, names)
    root, _, name = origin.partition(".")
    written = {keyword.arg: keyword.value for keyword in node.keywords}
    if root in REPEATING:
        says = f"{ast.unparse(node.func)}() retries inside the task's retries, so that attempts multiply"
        yield Danger(
            node.lineno, task, says, "Keep one of the two. The task's retries are visible in the UI."
        )
    elif root in SDKS and name.endswith(CLIENT) and not is_constant(written.get("max_retries"), 0):
        says = f"{name.rpartition('.')[2]}() retries calls {SDKS[root]}, in addition to the task's retries"
        yield Danger(node.lineno, task, says, "Write max_retries=0.")
    elif origin.endswith(("HTTPAdapter", "HTTPTransport")):
        option = "retries" if origin.endswith("HTTPTransport") else "max_retries"
        if option in written and not is_constant(written[option], 0):
            says = f"{option}={ast.unparse(written[option])} retries calls in addition to the task's retries"
            yield Danger(node.lineno, task, says, f"Leave {option} out.")


def _sleeping(
    node: ast.While | ast.For | ast.AsyncFor, names: dict[str, str], task: PlainTask
) -> Iterator[Danger]:
    """A loop that waits in the task's own code."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and origin_of(inner.func, names) in SLEEPS:
            yield Danger(
                inner.lineno,
                task.name,
                f"{ast.unparse(inner.func)}() in a loop: such retries are neither counted nor visible",
                "Raise an error and let the task retry; a poll can raise while nothing is ready.",
            )


def _swallowed(node: ast.ExceptHandler, task: PlainTask) -> Iterator[Danger]:
    """An error that never leaves the task."""
    caught = "" if node.type is None else ast.unparse(node.type)
    if caught not in ("", "Exception", "BaseException"):
        return
    if any(isinstance(inner, ast.Raise) for inner in ast.walk(node)):
        return
    yield Danger(
        node.lineno,
        task.name,
        f"{f'except {caught}' if caught else 'except'}: without raise hides all errors; nothing is retried",
        "Catch only the errors that you expect, or raise them again.",
    )


def _without_timeout(node: ast.Call, names: dict[str, str], task: PlainTask) -> Iterator[Danger]:
    if all(keyword.arg not in ("timeout", None) for keyword in node.keywords):
        says = f"{origin_of(node.func, names)}() without timeout= may wait forever"
        yield Danger(node.lineno, task.name, says, "Write timeout=10, or set the task's timeout=.")
