"""Checks of a project's files, and of its flows and tasks after import."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from prefect import Flow, Task
from prefect.results import get_default_persist_setting, get_default_persist_setting_for_tasks

from prefect_resilience.base.text import one_line
from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.errors.exceptions import CircuitOpenError, ConfigurationError
from prefect_resilience.operations.diagnosis import DiagnosisFinding, finding
from prefect_resilience.operations.users_code import is_constant, origin_of, origins
from prefect_resilience.tasks.edge.live_policy import ask, with_policy
from prefect_resilience.tasks.edge.task import ResilientTask

LIMITS = {"concurrency", "rate_limit"}
TASKS = {"task", "resilient_task"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class NamedPolicy(NamedTuple):
    """`policy="..."` of a task: the block's name, the function's, and the place in the file."""

    policy: str
    task: str
    where: str


def read_file(file: Path) -> tuple[list[DiagnosisFinding], list[NamedPolicy]]:
    """The findings in one file, and its tasks with `policy="..."`, if the name is a literal."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError) as error:
        return [finding("code.unreadable", str(file), error=one_line(error))], []
    names = origins(tree)
    findings, policies = list[DiagnosisFinding](), list[NamedPolicy]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            findings += _limit(node, names, file)
        elif isinstance(node, FUNCTIONS) and (options := _task_options(node, names)):
            # Python, too, gives the line of the first decorator.
            place = f"{file}:{node.decorator_list[0].lineno}"
            seconds, policy = options.get("timeout_seconds"), options.get("policy")
            # Prefect's timeout cannot end a sync function that blocks in a worker's thread.
            if isinstance(node, ast.FunctionDef) and seconds and not is_constant(seconds, None):
                findings.append(finding("timeouts.sync", place, task=node.name))
            if isinstance(policy, ast.Constant) and isinstance(policy.value, str):
                policies.append(NamedPolicy(policy.value, node.name, place))
    return sorted(findings, key=lambda finding: int(finding.where.rpartition(":")[2])), policies


def _limit(node: ast.Call, names: dict[str, str], file: Path) -> list[DiagnosisFinding]:
    """`concurrency()` and `rate_limit()` without `strict`: if the limit is missing, they only warn."""
    origin = origin_of(node.func, names)
    module, _, name = origin.rpartition(".")
    if name not in LIMITS or not module.startswith("prefect.concurrency"):
        return []
    written = {keyword.arg: keyword.value for keyword in node.keywords}
    strict = written.get("strict")
    if None in written or (strict is not None and not is_constant(strict, False)):
        return []
    return [finding("concurrency.not-strict", f"{file}:{node.lineno}", name=name)]


def _task_options(node: ast.FunctionDef | ast.AsyncFunctionDef, names: dict[str, str]) -> dict[str, ast.expr]:
    """The keyword arguments of the decorator that makes the function a task."""
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call):
            module, _, name = origin_of(decorator.func, names).rpartition(".")
            if name in TASKS and module.partition(".")[0] in ("prefect", "prefect_resilience"):
                return {keyword.arg: keyword.value for keyword in decorator.keywords if keyword.arg}
    return {}


def subjects_of(module: ModuleType) -> list[Any]:
    """The flows and tasks that are defined in a module, each once."""
    members: dict[int, Any] = {id(value): value for value in vars(module).values()}
    subjects: list[Any] = [value for value in members.values() if isinstance(value, (Flow, Task))]
    return [subject for subject in subjects if subject.fn.__module__ == module.__name__]


def results(subjects: Iterable[Any]) -> Iterator[DiagnosisFinding]:
    """Results that are not persisted although a recovered run needs them."""
    for subject in subjects:
        if isinstance(subject, Flow):
            if _recovers(subject) and not subject.persist_result and not _persists_by_default(subject):
                yield finding("results.flow", _where(subject), name=subject.name)
        elif isinstance(subject, Task) and subject.persist_result is False and _remembers(subject):
            yield finding("results.task", _where(subject), name=subject.name)


def circuits(subjects: Iterable[Any]) -> Iterator[DiagnosisFinding]:
    """Tasks that fail while their circuit is open: they have no fallback, and their retries do not wait."""
    rejected = CircuitOpenError("")
    info = classify(rejected)
    for task in subjects:
        if not isinstance(task, ResilientTask):
            continue
        guard, retry = task.guard, task.guard.retrying
        waits = retry.rule_for(info).attempts > 1 and retry.refusal(info, rejected) is None
        if guard.circuit is not None and not guard.fallbacks and not waits:
            circuit = guard.circuit.name
            yield finding("circuits.no-fallback", _where(task), task=task.name, circuit=circuit)


CHECKS = {"results": results, "circuits": circuits}
"""The checks of imported flows and tasks."""


def _recovers(flow: Any) -> bool:
    """Whether runs of the flow are recovered automatically or retried by Prefect."""
    guard = getattr(flow, "guard", None)
    ending = getattr(guard, "ending", None)
    return bool(flow.retries) or getattr(ending, "policy", None) is not None


def _persists_by_default(flow: Any) -> bool:
    if flow.persist_result is False:
        return False
    return get_default_persist_setting() or get_default_persist_setting_for_tasks()


def _remembers(task: Any) -> bool:
    return isinstance(task, ResilientTask) and (task.guard.remembers or task.guard.effect is not None)


def blocks(subjects: Iterable[Any], named: Iterable[NamedPolicy]) -> Iterator[DiagnosisFinding]:
    """Policies that tasks name but that are missing or do not fit.

    `subjects`: imported tasks. `named`: tasks that were read from files; both may contain the same task.
    """
    answer = cache(ask)
    troubles: dict[NamedPolicy, str | None] = {policy: answer(policy.policy).trouble for policy in named}
    for task in subjects:
        if isinstance(task, ResilientTask) and task.guard.policy is not None:
            policy = NamedPolicy(task.guard.policy, task.name, _where(task))
            troubles[policy] = _trouble(task.guard, answer(task.guard.policy))
    for policy, trouble in troubles.items():
        if trouble:
            words = {"policy": policy.policy, "task": policy.task, "trouble": trouble}
            yield finding("blocks.policy", policy.where, **words)


def _trouble(guard: Any, block: Any) -> str | None:
    """Why the block cannot be used for the guard of a task."""
    if block.policy is not None:
        try:
            with_policy(guard, block.policy)
        except ConfigurationError as error:
            return str(error)
    return block.trouble


def _where(subject: Any) -> str:
    code = getattr(subject.fn, "__wrapped__", subject.fn).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"
