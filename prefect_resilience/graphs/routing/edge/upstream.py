"""The ending of an upstream (a value, a failure, or it never ran), and the nodes after an upstream.

An upstream is a Prefect future, a Prefect state, a caught exception, or any other value; also a list or
mapping of these, which has failed if one of them has failed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn, cast
from uuid import UUID

from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, StateDetails, TaskRunResult
from prefect.context import FlowRunContext
from prefect.exceptions import UpstreamTaskError
from prefect.futures import PrefectFuture, PrefectFutureList
from prefect.logging import get_run_logger
from prefect.runtime import task_run
from prefect.states import Cancelled, Completed, Crashed, Pending, get_state_exception
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.tasks import task
from prefect.transactions import Transaction
from prefect.utilities.collections import visit_collection
from prefect.utilities.engine import collect_task_run_inputs_sync

from prefect_resilience.base.process import setting
from prefect_resilience.errors.classify.shapes import state_error
from prefect_resilience.errors.context import ErrorContext, attached_context, error_context
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo
from prefect_resilience.tasks.edge.answers import ReplacedState
from prefect_resilience.tasks.edge.logs import keep_secrets_out_of_logs
from prefect_resilience.telemetry.edge.events import emit
from prefect_resilience.telemetry.payloads import error_payload


@dataclass(frozen=True, slots=True)
class Gave:
    """The upstream ran and returned a value."""

    value: Any


@dataclass(frozen=True, slots=True)
class FailedUpstream:
    """The upstream ran and failed or crashed."""

    error: BaseException
    context: ErrorContext


@dataclass(frozen=True, slots=True)
class NeverRan:
    """The upstream was cancelled, or blocked by its own upstream. `state` is its last state."""

    state: State[Any]

    @property
    def why(self) -> str:
        message = f": {self.state.message}" if self.state.message else ""
        return f"{self.state.name}{message}"

    @property
    def context(self) -> ErrorContext:
        """The ending as an ErrorContext, to handle it like a failure."""
        cancelled = error_context(self.state)
        if cancelled is not None:
            return cancelled
        info = ErrorInfo.of(ErrorCategory.CANCELLED, "NOT_RUN", message=self.why)
        return ErrorContext.from_info(info, timestamp=datetime.now(UTC), **_ids(self.state))


Ending = Gave | FailedUpstream | NeverRan


def _ids(state: State[Any]) -> dict[str, str]:
    details = state.state_details
    ids = {"task_run_id": details.task_run_id, "flow_run_id": details.flow_run_id}
    return {name: str(value) for name, value in ids.items() if value is not None}


def check_upstream(upstream: Any, what: str) -> Any:
    """The upstream; a list of futures becomes a plain list. Raises ConfigurationError for an awaitable."""
    if inspect.isawaitable(upstream) and not isinstance(upstream, PrefectFuture):
        if inspect.iscoroutine(upstream):
            upstream.close()
        raise ConfigurationError(f"{what} received an awaitable: await it first, or use .submit(...)")
    return list(cast("list[Any]", upstream)) if isinstance(upstream, PrefectFutureList) else upstream


def ending_of(upstream: Any) -> Ending:
    """Wait for `upstream` and return its ending. Blocks this thread."""
    if isinstance(upstream, PrefectFuture):
        return _ending_of_state(state_after(cast("PrefectFuture[Any]", upstream)))
    if isinstance(upstream, State):
        return _ending_of_state(cast("State[Any]", upstream))
    if isinstance(upstream, BaseException):
        return FailedUpstream(upstream, context_of(upstream))
    return _ending_of_collection(upstream)


def _ending_of_collection(upstream: Any) -> Ending:
    """The ending of a collection: its first failure, else its first member that never ran, else its value."""
    bad: list[Ending] = []

    def resolve(part: Any) -> Any:
        if not isinstance(part, PrefectFuture | State):
            return part
        ending = ending_of(part)
        if isinstance(ending, Gave):
            return ending.value
        bad.append(ending)
        return None

    value = visit_collection(upstream, visit_fn=resolve, return_data=True)
    failed = [ending for ending in bad if isinstance(ending, FailedUpstream)]
    return next(iter([*failed, *bad]), Gave(value))


def _ending_of_state(state: State[Any]) -> Ending:
    if state.is_completed():
        return Gave(state.result(raise_on_failure=False, _sync=True))  # pyright: ignore
    if state.is_failed() or state.is_crashed():
        error = cast("BaseException", get_state_exception(state, _sync=True))  # pyright: ignore
        return FailedUpstream(error, context_of(error, state))
    return NeverRan(state)


def context_of(error: BaseException, state: State[Any] | None = None) -> ErrorContext:
    """The context of a failure, from the exception or else from the state."""
    context = attached_context(error)
    if context is None and state is not None and (state.is_crashed() or state_error(state) is not error):
        context = error_context(state)
    if context is None:
        ids: dict[str, Any] = {} if state is None else {**_ids(state)}
        timestamp = datetime.now(UTC) if state is None else state.timestamp
        context = ErrorContext.from_exception(error, timestamp=timestamp, **ids)
    return context


def state_after(future: PrefectFuture[Any]) -> State[Any]:
    """Wait for a future and return its last state. A run that its runner lost counts as crashed.

    Waiting for a crashed run raises its error, which must not crash the waiting run too.
    """
    try:
        future.wait()
    except BaseException as error:
        lost = _lost(future)
        if lost is None or (lost is not error and type(lost) is not type(error)):
            raise  # not the run's error: the wait was interrupted
        return _state_of_lost(future, error)
    state = future.state
    if not state.is_final() and (lost := _lost(future)) is not None:
        return _state_of_lost(future, lost)
    return state


def _lost(future: PrefectFuture[Any]) -> BaseException | None:
    """The error of the runner's own future. The run then has no final state."""
    inner = getattr(future, "wrapped_future", None)
    if inner is None or not inner.done():
        return None
    try:
        return inner.exception()
    except BaseException as error:  # noqa: BLE001 - a cancelled future raises CancelledError
        return error


def _state_of_lost(future: PrefectFuture[Any], error: BaseException) -> State[Any]:
    details = StateDetails(task_run_id=getattr(future, "task_run_id", None))
    if isinstance(error, UpstreamTaskError):
        return Pending(name="NotReady", message=str(error), state_details=details)
    if isinstance(error, CancelledError):
        return Cancelled(message="The task runner stopped before this task could run.", state_details=details)
    return Crashed(message=f"{type(error).__name__}: {error}", data=error, state_details=details)


def runs_behind(upstream: Any) -> list[UUID]:
    """The ids of the task runs of `upstream`. Prefect finds them in futures, states and results."""
    inputs = collect_task_run_inputs_sync(upstream)
    return sorted(run.id for run in inputs if isinstance(run, TaskRunResult))


def outside_transactions() -> AbstractContextManager[None]:
    """Tasks that begin in this block are in no transaction.

    Otherwise they would be in the transaction of the node's task. A failure that another task handles would
    then roll back the succeeded tasks and the node.
    """
    return setting(Transaction.__var__, cast(Any, None))


LONGEST_NAME = 80


class Opaque:
    """The input of a node, in which Prefect finds no futures."""

    def __init__(self, content: Any) -> None:
        self.content: Any = content


def submit_node(
    what: str, work: Callable[..., Any], content: Any, *, runs: list[Any], name: str
) -> PrefectFuture[Any]:
    """Submit `work(upstream: Opaque)` as a task run called `name`, with arrows from `runs` to it."""
    flow_run = FlowRunContext.get()
    if flow_run is None:
        raise ConfigurationError(f"{what} works only in a flow run: call it while a @flow is running")
    keep_secrets_out_of_logs()
    shown = name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
    node = task(
        name=what, task_run_name=shown.replace("{", "{{").replace("}", "}}"), cache_policy=NO_CACHE, retries=0
    )(work)
    runner: Any = flow_run.task_runner
    # Other processes cannot wait for the futures of this one.
    if not isinstance(flow_run.task_runner, ThreadPoolTaskRunner):
        content = visit_collection(content, visit_fn=_state_for, return_data=True)
    arrows: Any = {cast("Any", TaskRunResult(id=run)) for run in runs}
    parameters = {"upstream": Opaque(content)}
    return cast("PrefectFuture[Any]", runner.submit(node, parameters, dependencies={"upstream": arrows}))


def _state_for(part: Any) -> Any:
    """The last state of a future, which is waited for; any other part of the content unchanged."""
    return state_after(cast("PrefectFuture[Any]", part)) if isinstance(part, PrefectFuture) else part


def announce(kind: str, name: str, *, chosen: str, why: str, error: ErrorContext | None, **more: Any) -> None:
    """Emit the event of a decision, before it is carried out."""
    payload = {"task_run_id": task_run.get_id(), "chosen": chosen, "why": why, "passed_over": list[str]()}
    payload |= {**more, "error": None if error is None else error_payload(error)}
    emit("plan.branched", kind, name, payload)


# -- the end of a node


def ended(name: str, why: str, value: Any, *, instead_of: ErrorContext | None = None) -> State[Any]:
    """A completed state with this name. `instead_of` is the error that was handled."""
    message = redact(why)
    get_run_logger().info("%s: %s", name, message)
    if instead_of is None:
        return Completed(name=name, message=message, data=value)
    state = Completed(cls=ReplacedState, name=name, message=message, data=value)
    cast(ReplacedState, state)._error_context = instead_of  # pyright: ignore[reportPrivateUsage]
    return state


def not_run(ending: NeverRan, why: str) -> State[Any]:
    """The state of a node whose upstream never ran: the same as the upstream's."""
    message = redact(f"{why}: {ending.why}")
    get_run_logger().warning("%s", message)
    if ending.state.is_cancelled() or ending.state.is_cancelling():
        return Cancelled(message=message)
    return Pending(name="NotReady", message=message)


def passed_on(ending: FailedUpstream, why: str) -> NoReturn:
    """Raise the upstream's error."""
    get_run_logger().warning("%s: %s", why, ending.context.summary())
    raise ending.error


def value_of(ending: Ending) -> Any:
    """The value, or the error raised."""
    if isinstance(ending, FailedUpstream):
        raise ending.error
    if isinstance(ending, NeverRan):
        raise RuntimeError(f"the task run never ran: {ending.why}")
    return ending.value
