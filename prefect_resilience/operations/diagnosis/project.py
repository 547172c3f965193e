"""What can be seen of a project's flows and tasks, once they are imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType
from typing import Any, cast

from prefect import Flow, Task
from prefect.results import get_default_persist_setting, get_default_persist_setting_for_tasks

from prefect_resilience.calls.attempt import Guard
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.diagnosis.code import NamedPolicy, cannot_fire
from prefect_resilience.operations.diagnosis.findings import Finding
from prefect_resilience.tasks.edge.blocks.live import ask
from prefect_resilience.tasks.edge.blocks.merging import with_policy

KEEP = "Write @flow(persist_result=True), or set PREFECT_RESULTS_PERSIST_BY_DEFAULT=true for the workers."


def subjects_of(module: ModuleType) -> list[Any]:
    """The flows and tasks that are defined in a module, each once."""
    found: dict[int, Any] = {}
    for value in vars(module).values():
        if isinstance(value, (Flow, Task)):
            found[id(cast("Any", value))] = value
    return [one for one in found.values() if one.fn.__module__ == module.__name__]


def timeouts(subjects: Iterable[Any]) -> Iterator[Finding]:
    """Timeouts of sync tasks that cannot fire."""
    for task in subjects:
        if isinstance(task, Task) and task.timeout_seconds and not task.isasync:
            yield cannot_fire(task.name, _where(task))


def results(subjects: Iterable[Any]) -> Iterator[Finding]:
    """Results that are not kept, though a run that goes on behind what is done needs them."""
    everything: list[Any] = list(subjects)
    for flow in everything:
        if not isinstance(flow, Flow) or not _recovers(flow) or flow.persist_result or _kept_by_default(flow):
            continue
        yield Finding(
            check="results",
            where=_where(flow),
            says=f"a recovered run of {flow.name!r} does all its tasks again: their results are not kept",
            mend=KEEP,
        )
    for task in everything:
        if isinstance(task, Task) and task.persist_result is False and _remembers(task):
            yield Finding(
                check="results",
                where=_where(task),
                says=f"{task.name!r} falls back to earlier results, or has effects, and persist_result=False",
                mend="Leave persist_result out, so that a result that is needed again is kept.",
            )


def _recovers(flow: Any) -> bool:
    """Whether a run of it is run again by itself, or by Prefect's own retries."""
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


def blocks(subjects: Iterable[Any], named: Iterable[NamedPolicy]) -> Iterator[Finding]:
    """Policies that tasks name, and that are not there or cannot be meant for them.

    Of tasks that are imported, and of those that were only read in their files, which may be the same.
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


def _not_used(policy: str, task: str, where: str, trouble: str) -> Finding:
    return Finding(
        check="blocks",
        where=where,
        says=f"policy={policy!r} of {task!r} is not used: {redact(trouble)}",
        mend=f"Save a Resilience Policy named {policy} in the UI, or mend the one there.",
    )


def _where(subject: Any) -> str:
    code = getattr(subject.fn, "__wrapped__", subject.fn).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"
