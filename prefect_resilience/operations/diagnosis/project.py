"""Checks of a project's files, and of its flows and tasks after import."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

from prefect import Flow, Task
from prefect.results import get_default_persist_setting, get_default_persist_setting_for_tasks

from prefect_resilience.base.text import one_line
from prefect_resilience.calls.model import Guard
from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.errors.exceptions import CircuitOpenError, ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.diagnosis.findings import DiagnosisFinding, note, wrong
from prefect_resilience.operations.sources import imported, is_constant, origin_of
from prefect_resilience.tasks.edge.blocks.live import ask, with_policy

LIMITS = {"concurrency": "prefect.concurrency", "rate_limit": "prefect.concurrency"}
TASKS = {"task", "resilient_task"}


class NamedPolicy(NamedTuple):
    """`policy="..."` of a task: the block's name, the function's, and the place in the file."""

    policy: str
    task: str
    where: str


def look_at(file: Path) -> list[DiagnosisFinding]:
    """Findings in one file."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError) as error:
        says = f"it cannot be read as Python: {one_line(error)}"
        return [wrong("code", str(file), says, "Fix the file, or leave it out.")]
    names = imported(tree)
    found: list[DiagnosisFinding] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found += _limit(node, names, file)
        elif isinstance(node, ast.FunctionDef):
            found += _timeout(node, names, file)
    return sorted(found, key=lambda one: _line(one.where))


def _limit(node: ast.Call, names: dict[str, str], file: Path) -> list[DiagnosisFinding]:
    """`concurrency()` and `rate_limit()` without `strict`: if the limit is missing, they only warn."""
    origin = origin_of(node.func, names)
    module, _, name = origin.rpartition(".")
    if name not in LIMITS or not module.startswith(LIMITS[name]):
        return []
    written = {keyword.arg: keyword.value for keyword in node.keywords}
    strict = written.get("strict")
    if None in written or (strict is not None and not is_constant(strict, False)):
        return []
    says = f"{name}() only warns, and lets every call through, if its limit is missing or inactive"
    mend = "Write strict=True, or use a named Bulkhead(...) or RateLimit(...), which creates the limit."
    return [wrong("concurrency", f"{file}:{node.lineno}", says, mend)]


def _timeout(node: ast.FunctionDef, names: dict[str, str], file: Path) -> list[DiagnosisFinding]:
    """Prefect's timeout cannot end a sync function that blocks in a worker's thread."""
    seconds = _task_options(node, names).get("timeout_seconds")
    if seconds is None or is_constant(seconds, None):
        return []
    return [cannot_fire(node.name, _place(file, node))]


def named_policies(file: Path) -> Iterator[NamedPolicy]:
    """The tasks of a file with `policy="..."`, if the name is a literal."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError):
        return  # `look_at` reports this
    names = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            policy = _task_options(node, names).get("policy")
            if isinstance(policy, ast.Constant) and isinstance(policy.value, str):
                yield NamedPolicy(policy.value, node.name, _place(file, node))


def _task_options(node: ast.FunctionDef | ast.AsyncFunctionDef, names: dict[str, str]) -> dict[str, ast.expr]:
    """The keyword arguments of the decorator that makes the function a task."""
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call):
            module, _, name = origin_of(decorator.func, names).rpartition(".")
            if name in TASKS and module.partition(".")[0] in ("prefect", "prefect_resilience"):
                return {keyword.arg: keyword.value for keyword in decorator.keywords if keyword.arg}
    return {}


def _place(file: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    # Python, too, gives the line of the first decorator.
    return f"{file}:{node.decorator_list[0].lineno}"


def cannot_fire(task: str, where: str) -> DiagnosisFinding:
    """The finding that a task's timeout does not fire."""
    says = f"timeout_seconds of the sync task {task!r} does not fire while it blocks in a worker thread"
    mend = "Write @resilient_task(timeout=...), which ends the attempt in time, or make the task `async def`."
    return wrong("timeouts", where, says, mend)


def _line(where: str) -> int:
    number = where.rpartition(":")[2]
    return int(number) if number.isdigit() else 0


KEEP = "Write @flow(persist_result=True), or set PREFECT_RESULTS_PERSIST_BY_DEFAULT=true for the workers."


def subjects_of(module: ModuleType) -> list[Any]:
    """The flows and tasks that are defined in a module, each once."""
    found: dict[int, Any] = {}
    for value in vars(module).values():
        if isinstance(value, (Flow, Task)):
            found[id(cast("Any", value))] = value
    return [one for one in found.values() if one.fn.__module__ == module.__name__]


def timeouts(subjects: Iterable[Any]) -> Iterator[DiagnosisFinding]:
    """Timeouts of sync tasks that cannot fire."""
    for task in subjects:
        if isinstance(task, Task) and task.timeout_seconds and not task.isasync:
            yield cannot_fire(task.name, _where(task))


def results(subjects: Iterable[Any]) -> Iterator[DiagnosisFinding]:
    """Results that are not persisted although a recovered run needs them."""
    everything: list[Any] = list(subjects)
    for flow in everything:
        if not isinstance(flow, Flow) or not _recovers(flow) or flow.persist_result or _kept_by_default(flow):
            continue
        says = f"a recovered run of {flow.name!r} repeats all its tasks: their results are not persisted"
        yield wrong("results", _where(flow), says, KEEP)
    for task in everything:
        if isinstance(task, Task) and task.persist_result is False and _remembers(task):
            says = (
                f"{task.name!r} needs earlier results for a fallback or an effect, but persist_result=False"
            )
            mend = "Leave persist_result out, so that results that are needed later are persisted."
            yield wrong("results", _where(task), says, mend)


def circuits(subjects: Iterable[Any]) -> Iterator[DiagnosisFinding]:
    """Tasks that fail while their circuit is open: they have no fallback, and their retries do not wait."""
    rejected = CircuitOpenError("")
    info = classify(rejected)
    for task in subjects:
        guard = getattr(task, "guard", None)
        if not isinstance(task, Task) or not isinstance(guard, Guard):
            continue
        retry = guard.retrying
        waits = retry.rule_for(info).attempts > 1 and retry.refusal(info, rejected) is None
        if guard.circuit is not None and not guard.fallbacks and not waits:
            says = f"{task.name!r} fails at once while its circuit {guard.circuit.name!r} is open"
            mend = 'Add fallback=, or let it wait: Retry(by_category={"circuit_open": Retry(attempts=100)}).'
            yield note("circuits", _where(task), says, mend)


def _recovers(flow: Any) -> bool:
    """Whether runs of the flow are recovered automatically or retried by Prefect."""
    guard = getattr(flow, "guard", None)
    ending = getattr(guard, "ending", None)
    return bool(flow.retries) or getattr(ending, "policy", None) is not None


def _kept_by_default(flow: Any) -> bool:
    if flow.persist_result is False:
        return False
    return get_default_persist_setting() or get_default_persist_setting_for_tasks()


def _remembers(task: Any) -> bool:
    guard = getattr(task, "guard", None)
    return isinstance(guard, Guard) and (guard.remembers or guard.effect is not None)


def blocks(subjects: Iterable[Any], named: Iterable[NamedPolicy]) -> Iterator[DiagnosisFinding]:
    """Policies that tasks name but that are missing or do not fit.

    `subjects`: imported tasks. `named`: tasks that were read from files; both may contain the same task.
    """
    asked = cache(ask)
    for task in subjects:
        guard = getattr(task, "guard", None)
        if not isinstance(guard, Guard) or guard.policy is None:
            continue
        known = asked(guard.policy)
        trouble = known.trouble
        if known.policy is not None:
            try:
                with_policy(guard, known.policy)
            except ConfigurationError as error:
                trouble = str(error)
        if trouble:
            yield _not_used(guard.policy, task.name, _where(task), trouble)
    for policy, name, where in named:
        if trouble := asked(policy).trouble:
            yield _not_used(policy, name, where, trouble)


def _not_used(policy: str, task: str, where: str, trouble: str) -> DiagnosisFinding:
    says = f"policy={policy!r} of {task!r} is not used: {redact(trouble)}"
    mend = f"Save a Resilience Policy named {policy} in the UI, or correct the existing one."
    return wrong("blocks", where, says, mend)


def _where(subject: Any) -> str:
    code = getattr(subject.fn, "__wrapped__", subject.fn).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"
