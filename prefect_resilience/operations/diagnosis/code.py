"""What can be seen in source files without running them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from prefect_resilience.operations.diagnosis.findings import Finding

LIMITS = {"concurrency": "prefect.concurrency", "rate_limit": "prefect.concurrency"}
TASKS = {"task", "resilient_task"}
SKIPPED = {".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages"}


class NamedPolicy(NamedTuple):
    """`policy="..."` of a task: the block's name, the function's, and the place in the file."""

    policy: str
    task: str
    where: str


def python_files(path: Path) -> Iterator[Path]:
    """The file itself, or those of a folder, without what was installed there."""
    if path.is_file():
        yield path
        return
    for found in sorted(path.rglob("*.py")):
        if not SKIPPED.intersection(found.relative_to(path).parts):
            yield found


def look_at(file: Path) -> list[Finding]:
    """What is wrong in one file."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError) as error:
        says = f"it cannot be read as Python: {' '.join(str(error).split())}"
        return [Finding(check="code", where=str(file), says=says, mend="Mend the file, or leave it out.")]
    names = _imported(tree)
    found: list[Finding] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found += _limit(node, names, file)
        elif isinstance(node, ast.FunctionDef):
            found += _timeout(node, names, file)
    return sorted(found, key=lambda one: _line(one.where))


def _imported(tree: ast.AST) -> dict[str, str]:
    """Where each name of the file comes from: local name -> dotted origin."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                names[alias.asname or root] = alias.name if alias.asname else root
    return names


def _origin(node: ast.expr, names: dict[str, str]) -> str:
    """The dotted origin of what an expression names; "" for what is no plain name."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        base = _origin(node.value, names)
        return f"{base}.{node.attr}" if base else ""
    return ""


def _limit(node: ast.Call, names: dict[str, str], file: Path) -> list[Finding]:
    """`concurrency()` and `rate_limit()` do nothing but warn when the limit is missing, unless strict."""
    origin = _origin(node.func, names)
    module, _, name = origin.rpartition(".")
    if name not in LIMITS or not module.startswith(LIMITS[name]):
        return []
    written = {keyword.arg: keyword.value for keyword in node.keywords}
    strict = written.get("strict")
    if None in written or (strict is not None and not _is(strict, value=False)):
        return []
    says = f"{name}() lets everything through, with a warning only, when its limit is missing or inactive"
    mend = "Write strict=True, or use Bulkhead(...) or RateLimit(...) with a name, which make the limit."
    return [Finding(check="concurrency", where=f"{file}:{node.lineno}", says=says, mend=mend)]


def _timeout(node: ast.FunctionDef, names: dict[str, str], file: Path) -> list[Finding]:
    """Prefect's own timeout cannot end a plain function that blocks in a worker's thread."""
    seconds = _task_options(node, names).get("timeout_seconds")
    if seconds is None or _is(seconds, value=None):
        return []
    return [cannot_fire(node.name, _place(file, node))]


def named_policies(file: Path) -> Iterator[NamedPolicy]:
    """The tasks of a file whose options are in a block, as far as it is named in so many words."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError):
        return  # `look_at` says so
    names = _imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            policy = _task_options(node, names).get("policy")
            if isinstance(policy, ast.Constant) and isinstance(policy.value, str):
                yield NamedPolicy(policy.value, node.name, _place(file, node))


def _task_options(node: ast.FunctionDef | ast.AsyncFunctionDef, names: dict[str, str]) -> dict[str, ast.expr]:
    """What is written in the decorator that makes the function a task."""
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call):
            module, _, name = _origin(decorator.func, names).rpartition(".")
            if name in TASKS and module.partition(".")[0] in ("prefect", "prefect_resilience"):
                return {keyword.arg: keyword.value for keyword in decorator.keywords if keyword.arg}
    return {}


def _place(file: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    # As Python itself says where a decorated function is.
    return f"{file}:{node.decorator_list[0].lineno}"


def cannot_fire(task: str, where: str) -> Finding:
    """That a task's timeout is one on paper only."""
    return Finding(
        check="timeouts",
        where=where,
        says=f"timeout_seconds of the sync task {task!r} does not fire while it blocks in a worker thread",
        mend="Write @resilient_task(timeout=...), which ends the waiting, or make it `async def`.",
    )


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _line(where: str) -> int:
    number = where.rpartition(":")[2]
    return int(number) if number.isdigit() else 0
