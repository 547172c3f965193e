"""The options of a resilient flow, checked against its function."""

# Without `from __future__ import annotations`, so that signatures show the types of the options.

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from prefect.flows import FlowStateHook
from prefect.futures import PrefectFuture
from prefect.results import ResultSerializer, ResultStorage
from prefect.task_runners import TaskRunner
from typing_extensions import TypedDict

from prefect_resilience.base.deadlines import read_deadline
from prefect_resilience.base.durations import Duration
from prefect_resilience.base.edge.current_settings import read_grace
from prefect_resilience.base.naming import template_fields
from prefect_resilience.calls.edge.call_options import check_fields, yes_or_no
from prefect_resilience.durable.batches.strategies import RecoveryPolicy
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.retries.policy import Retry
from prefect_resilience.tasks.edge.ending import Ending
from prefect_resilience.tasks.edge.task_options import split_options

RecoveryOption = RecoveryPolicy | Mapping[str, Any] | Literal["hint", "auto", False] | None


class FlowOptions(TypedDict, total=False):
    """Every option of `prefect.flow`."""

    name: str | None
    version: str | None
    flow_run_name: Callable[[], str] | str | None
    retries: int | None
    retry_delay_seconds: int | float | None
    task_runner: type[TaskRunner[PrefectFuture[Any]]] | TaskRunner[PrefectFuture[Any]] | None
    description: str | None
    timeout_seconds: int | float | None
    validate_parameters: bool | None
    persist_result: bool | None
    result_storage: ResultStorage | str | None
    result_serializer: ResultSerializer | None
    cache_result_in_memory: bool | None
    log_prints: bool | None
    on_completion: list[FlowStateHook[..., Any]] | None
    on_failure: list[FlowStateHook[..., Any]] | None
    on_cancellation: list[FlowStateHook[..., Any]] | None
    on_crashed: list[FlowStateHook[..., Any]] | None
    on_running: list[FlowStateHook[..., Any]] | None


class ResilienceFlowOptions(TypedDict, total=False):
    """The options in addition to those of a Prefect flow; `resilient_flow` explains them."""

    batch: str | None
    deadline: Duration | None
    grace_seconds: float | None
    recovery: RecoveryOption
    retry: Retry | Mapping[str, Any] | None
    summary: bool


class ResilientFlowOptions(ResilienceFlowOptions, FlowOptions, total=False):
    """Every option of a resilient flow."""


OPTIONS = tuple(ResilienceFlowOptions.__annotations__)
DEFAULTS: dict[str, Any] = {**dict.fromkeys(OPTIONS), "recovery": "hint", "summary": True}


@dataclass(frozen=True)
class FlowGuard:
    """The options around one flow function. Small and frozen; it can be pickled to another process."""

    fn: Callable[..., Any]
    batch: str | None = None
    deadline: float | None = None
    """Seconds for a run with its automatic retries, and for everything that it calls."""
    grace_seconds: float | None = None
    """How long running effects may take to end after SIGTERM; None for the setting."""
    ending: Ending = field(default_factory=Ending)
    parking: Retry | None = None
    """Which waits park its runs."""


def split(options: Mapping[str, Any], more: Iterable[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """Our options and Prefect's. `more` are further options of a special kind of flow. Raises
    ConfigurationError for an unknown option."""
    return split_options("flow", options, OPTIONS, [*FlowOptions.__annotations__, *more])


def make_guard(fn: Callable[..., Any], ours: Mapping[str, Any]) -> FlowGuard:
    """Check the options against the function, and combine them."""
    return with_changes(FlowGuard(fn), {**DEFAULTS, **ours})


def with_changes(guard: FlowGuard, ours: Mapping[str, Any]) -> FlowGuard:
    """The guard with these options in place of its own."""
    ending = guard.ending
    if "summary" in ours:
        ending = replace(ending, summary=yes_or_no("summary", ours["summary"]))
    if "recovery" in ours:
        hint, policy = _recovery(ours["recovery"])
        ending = replace(ending, hint=hint, policy=policy)
    changes: dict[str, Any] = {"ending": ending}
    if "deadline" in ours:
        changes["deadline"] = read_deadline(ours["deadline"])
    if "grace_seconds" in ours:
        grace = ours["grace_seconds"]
        changes["grace_seconds"] = None if grace is None else read_grace("grace_seconds", grace, 0.0)
    if "retry" in ours:
        changes["parking"] = _parking(ours["retry"])
    if "batch" in ours:
        changes["batch"] = ours["batch"]
        if ours["batch"] is not None:
            fields = template_fields(ours["batch"], "batch")
            check_fields(f"batch {ours['batch']!r}", fields, guard.fn)
    return replace(guard, **changes)


def _parking(value: Any) -> Retry | None:
    """The policy by which runs park."""
    policy = Retry(**cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value
    if policy is None:
        return None
    parks = isinstance(policy, Retry) and policy.park_after is not None
    if not parks or policy.model_fields_set - {"park_after", "max_parked"}:
        raise ConfigurationError(
            f"retry={value!r} of a flow: write Retry(park_after=, max_parked=), which parks runs with longer "
            "waits. Other options are for its tasks, and retries= repeats a flow that failed"
        )
    return policy


def _recovery(value: Any) -> tuple[bool, RecoveryPolicy | None]:
    """Whether there is a hint, and the policy of the automatic recovery."""
    if value is None or value is False:
        return False, None
    if value == "hint":
        return True, None
    if value == "auto":
        return True, RecoveryPolicy()
    if isinstance(value, RecoveryPolicy):
        return True, value
    if isinstance(value, Mapping):
        return True, RecoveryPolicy(**cast("Mapping[str, Any]", value))
    raise ConfigurationError(
        f'recovery={value!r} is not a recovery: write "hint", "auto", RecoveryPolicy(attempts=3), or None'
    )
