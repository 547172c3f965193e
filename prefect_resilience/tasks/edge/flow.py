"""`resilient_flow`, and its class `ResilientFlow`."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, contextmanager, nullcontext
from copy import copy
from datetime import UTC, datetime
from functools import partial, update_wrapper
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.flows import Flow, FlowDecorator, flow
from prefect.logging.loggers import flow_run_logger
from prefect.tasks import Task
from typing_extensions import ParamSpec, Unpack

from prefect_resilience.base.deadlines import CallDeadline
from prefect_resilience.base.drive import Blocking, Steps, adrive, drive
from prefect_resilience.base.edge.current_settings import is_enabled
from prefect_resilience.base.naming import UNSET, fill, more_options, shows
from prefect_resilience.durable.batches.batch import batch as batch_named
from prefect_resilience.durable.batches.edge.flow_runs import RECOVERY_LABEL, RECOVERY_TAG
from prefect_resilience.durable.batches.edge.tags import TAG
from prefect_resilience.durable.batches.strategies import RecoveryPolicy
from prefect_resilience.errors.context import ErrorContext, attach_context, attached_context, exhausted_since
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.requests import (
    SubtaskRequest,
    attach_request,
    is_sub_step,
    subtask_request,
    with_inner,
)
from prefect_resilience.errors.secrets.redact import learn_secrets
from prefect_resilience.errors.secrets.scrub import scrub_exception
from prefect_resilience.tasks.edge.answers import Again
from prefect_resilience.tasks.edge.ending import Ending
from prefect_resilience.tasks.edge.flow_options import (
    DEFAULTS,
    FlowGuard,
    ResilienceFlowOptions,
    ResilientFlowOptions,
    make_guard,
    split,
    with_changes,
)
from prefect_resilience.tasks.edge.interruptions import deadline_of_run, hand_over, in_time
from prefect_resilience.tasks.edge.logs import keep_secrets_out_of_logs
from prefect_resilience.tasks.edge.long_waits import Parking, begin_parking, current_parking, parking_around
from prefect_resilience.tasks.edge.questions import bound_like, class_of_copy
from prefect_resilience.tasks.edge.task_options import check_wrapped
from prefect_resilience.telemetry import notes

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun


def mark_run(flow_run: FlowRun, batch_id: str | None, policy: RecoveryPolicy | None) -> None:
    """Write the run's batch and its recovery policy on the run. May block; never raises."""
    try:
        tags = {tag for tag in flow_run.tags if batch_id is None or not tag.startswith(TAG)}
        tags |= {TAG + batch_id} if batch_id is not None else set()
        # Only root runs are run again.
        root = flow_run.parent_task_run_id is None
        tags |= {RECOVERY_TAG} if policy is not None and root else set()
        with get_client(sync_client=True) as client:
            if tags != set(flow_run.tags):
                client.update_flow_run(flow_run.id, tags=sorted(tags)).raise_for_status()
                flow_run.tags = sorted(tags)
            if policy is not None and root:
                written = json.dumps(policy.model_dump(mode="json"))
                if flow_run.labels.get(RECOVERY_LABEL) != written:
                    client.update_flow_run_labels(flow_run.id, {RECOVERY_LABEL: written})
    except Exception as failure:  # noqa: BLE001 - the work itself does not need it
        log = flow_run_logger(flow_run=flow_run)
        log.warning("The recovery policy could not be stored on this run: %r", failure)


def error_with_outputs(error: Exception, context: FlowRunContext, parks: int = 0) -> BaseException:
    """The flow's error without secrets, with the completed outputs in its context. Never raises. `parks`: how
    often the run was parked, which is not an attempt."""
    try:
        learn_secrets(context.parameters or {})
        clean = scrub_exception(error)
        flow_run = context.flow_run
        assert flow_run is not None
        noted = notes.last_notes(str(flow_run.id))
        subflow = flow_run.parent_task_run_id is not None
        own = ErrorContext.from_exception(
            clean,
            timestamp=datetime.now(UTC),
            node_id=context.flow.name if context.flow is not None else None,
            flow_run_id=str(flow_run.id),
            attempt=max(flow_run.run_count - parks, 1),
            exhausted=exhausted_since(clean, 0.0) is not None,
        )
        inner = attached_context(clean)
        if inner is None or subflow or is_sub_step(inner, own):
            # The flow has failed; the task or subflow that made it fail is the cause.
            inner = with_inner(own, inner, subtask_request(clean))
        if subflow and context.flow is not None:
            again = Again(context.flow, dict(context.parameters or {}))
            request = SubtaskRequest(context.flow.name, again.parameters, "flow", again, context.flow.fn)
            attach_request(clean, request)
        if noted and noted.partial_results:
            details = {**inner.details, "partial_results": noted.partial_results}
            inner = inner.model_copy(update={"details": details})
        attach_context(clean, inner)
        return clean
    except Exception:  # noqa: BLE001 - the user's own error must not be replaced
        return error


P = ParamSpec("P")
R = TypeVar("R")

HOOKS = ("on_completion_hooks", "on_failure_hooks", "on_cancellation_hooks", "on_crashed_hooks")


class ResilientFlow(Flow[P, R]):
    """A Prefect flow that reports at its end what happened, and how to continue if it ended badly.

    It takes the options of `resilient_flow`. Every way to use a Prefect flow works: `()`, `.with_options`
    (with the same options), `.serve`, `.deploy`, `.from_source`, in other flows, on methods and generators.
    """

    guard: FlowGuard
    """The options around the function."""

    @shows(ResilienceFlowOptions, DEFAULTS, flow)
    def __init__(self, fn: Callable[P, R], **options: Unpack[ResilientFlowOptions]) -> None:
        ours, theirs = split(options)
        super().__init__(fn, **theirs)
        self._guard_with(make_guard(self.fn, ours))

    @classmethod
    @shows(ResilienceFlowOptions, DEFAULTS)
    def wrap(cls, flow: Flow[P, R], **options: Unpack[ResilienceFlowOptions]) -> ResilientFlow[P, R]:
        """A resilient copy of `flow`; the flow itself is not changed."""
        ours, theirs = split(options)
        is_flow = isinstance(flow, Flow)  # pyright: ignore[reportUnnecessaryIsInstance]
        check_wrapped("flow", flow, is_flow, isinstance(flow, ResilientFlow), theirs)
        return cls._of(flow, make_guard(flow.fn, ours))

    @classmethod
    def _of(cls, flow: Flow[P, R], guard: FlowGuard) -> ResilientFlow[P, R]:
        """A copy of a plain flow, with the guard around its function."""
        resilient: Any = copy(flow)
        resilient.__class__ = class_of_copy(cls, type(flow), Flow)
        resilient._guard_with(guard)
        return resilient

    def _guard_with(self, guard: FlowGuard) -> None:
        self.guard = guard
        for name in HOOKS:
            setattr(self, name, [*getattr(self, name)])
        if not is_enabled():
            return
        plain: Flow[P, R] = self  # the field is Prefect's own, with Prefect's type
        plain.fn = around(guard, bound_to=self.fn)
        if guard.ending.summary or guard.ending.hint:
            for name in HOOKS:
                getattr(self, name).append(guard.ending)

    def _plain_copy(self) -> Flow[P, R]:
        """A plain Prefect copy: with its own function and hooks."""
        plain = copy(self)
        plain.fn = bound_like(self.fn, copy_of=self.guard.fn)
        for name in HOOKS:
            own = [hook for hook in getattr(self, name) if not isinstance(hook, Ending)]
            setattr(plain, name, own)
        return plain

    if TYPE_CHECKING:

        def with_options(  # pyright: ignore[reportIncompatibleMethodOverride]
            self, **options: Unpack[ResilientFlowOptions]
        ) -> ResilientFlow[P, R]: ...

    else:

        @shows(ResilienceFlowOptions, dict.fromkeys(DEFAULTS, UNSET), Flow.with_options)
        def with_options(self, **options: Any) -> ResilientFlow[P, R]:
            """A copy with other options, ours or Prefect's. Options that are not given stay the same."""
            ours, theirs = split(options, more_options(type(self), ResilientFlow))
            plain = super(ResilientFlow, self._plain_copy()).with_options(**theirs)
            return ResilientFlow._of(bound_like(self, copy_of=plain), with_changes(self.guard, ours))


# -- around the function


def around(guard: FlowGuard, bound_to: Callable[..., Any]) -> Callable[..., Any]:
    """The function that the engine calls once per run. It has the signature of the user's function."""
    fn: Callable[..., Any] = guard.fn
    inside, entered, closing, run, arun = _inside, _enter, aclosing[Any], drive, adrive
    if inspect.isasyncgenfunction(guard.fn):

        async def call_async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            with inside(guard, await arun(entered(guard, args, kwargs))):
                async with closing(fn(*args, **kwargs)) as items:
                    async for item in items:
                        yield item

        wrapper: Callable[..., Any] = call_async_generator
    elif inspect.isgeneratorfunction(guard.fn):

        def call_generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            with inside(guard, run(entered(guard, args, kwargs))):
                chunks: Generator[Any, Any, Any] = fn(*args, **kwargs)
                return (yield from chunks)

        wrapper = call_generator
    elif inspect.iscoroutinefunction(guard.fn):

        async def call_coroutine(*args: Any, **kwargs: Any) -> Any:
            with inside(guard, await arun(entered(guard, args, kwargs))):
                return await fn(*args, **kwargs)

        wrapper = call_coroutine
    else:

        def call_function(*args: Any, **kwargs: Any) -> Any:
            with inside(guard, run(entered(guard, args, kwargs))):
                return fn(*args, **kwargs)

        wrapper = call_function
    if (names := getattr(fn, "__globals__", None)) is not None:
        # Prefect looks up the names in annotations here. The code above uses none but its own.
        wrapper = FunctionType(wrapper.__code__, names, closure=wrapper.__closure__)
    wrapper = update_wrapper(wrapper, fn)
    # The engine reads the signature at every call, and reading it through the wrapper is slow.
    setattr(wrapper, "__signature__", inspect.signature(fn))  # noqa: B010
    return bound_like(bound_to, copy_of=wrapper)


_Entered = tuple[Any, str | None, CallDeadline | None, Parking | None] | None
"""A current run of the flow, the name of its batch, the deadline around it, and its long waits."""


def _enter(guard: FlowGuard, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps[_Entered]:
    """Name the run's batch, and write the batch and the recovery policy on the run. None for a call as a
    plain function."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or not is_enabled():
        return None
    if getattr(getattr(context.flow, "fn", None), "__wrapped__", None) is not guard.fn:
        return None
    keep_secrets_out_of_logs()
    run = context.flow_run
    notes.begin(str(run.id), max(run.run_count, 1), keeps_outputs=True)
    named = None
    if guard.batch is not None:
        bound = inspect.signature(guard.fn).bind(*args, **kwargs)
        bound.apply_defaults()
        named = fill(guard.batch, bound.arguments, "batch")
    if named is not None or guard.ending.policy is not None:
        yield Blocking(mark_run, (run, named, guard.ending.policy))
    parking = None
    if any(part is not None for part in (guard.parking, guard.ending.policy, current_parking.get())):
        parking = yield Blocking(begin_parking, (guard.parking, context, guard.fn))
    limit = deadline_of_run(guard, run, None if parking is None else parking.earlier)
    if parking is not None and limit is not None:  # a wait that would pass the deadline is not begun
        parking.limit = limit
        parking.latest = min(parking.latest, time.time() + limit.remaining())
    return context, named, limit, parking


@contextmanager
def _inside(guard: FlowGuard, entered: _Entered) -> Generator[None, None, None]:
    if entered is None:
        yield
        return
    context, named, limit, parking = entered
    in_batch = batch_named(named) if named is not None else nullcontext()
    with hand_over(guard, context, parking), parking_around(parking, context), in_batch:
        try:
            with nullcontext() if limit is None else in_time(guard.fn, limit, context.flow_run):
                yield
        except Exception as error:
            clean = error_with_outputs(error, context, parking.parks if parking is not None else 0)
            if clean is error:
                raise
            raise clean from clean.__cause__


# -- the decorator


if TYPE_CHECKING:

    class _Decorator(FlowDecorator):
        """Make a function a resilient Prefect flow; see `help(resilient_flow)` for the options."""

        @overload
        def __call__(self, fn: Callable[P, R], /) -> ResilientFlow[P, R]: ...
        @overload
        def __call__(
            self, fn: None = None, /, **options: Unpack[ResilientFlowOptions]
        ) -> Callable[[Callable[P, R]], ResilientFlow[P, R]]: ...
        def __call__(self, fn: Any = None, /, **options: Any) -> Any: ...  # pyright: ignore

    resilient_flow: _Decorator

else:

    @shows(ResilienceFlowOptions, DEFAULTS, flow)
    def resilient_flow(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Make a function a resilient Prefect flow.

        summary: True, the default, writes an artifact `run-summary-<id>`, with a picture, at the end of a run
            with notable events (retries, rejected calls, fallbacks).
        recovery: "hint" writes to the summary and the log how to continue after a run that ended badly.
            "auto" or a `RecoveryPolicy` also lets the automation of `prefect-resilience install` do it, as
            often as the policy allows. None writes nothing.
        retry: `Retry(park_after="2m")` parks the run during a longer wait (`Retry-After`, an open circuit, a
            delay), in the flow or in one of its tasks: the process ends, and a worker runs the flow again
            later. Only for deployments.
        batch: the batch of everything in the run: a template with the flow's parameters, such as
            "invoices-{month}". Default: the root flow run, in all its passes.
        deadline: seconds for a run with its automatic retries, and for everything that it calls: tasks, also
            in other processes, subflows and guarded clients. At the deadline, the flow's own code is
            interrupted as by Prefect's `timeout_seconds`, and the run ends `TimedOut`.

        The exception of a failed run carries what had been completed:
        `error_context(state).details["partial_results"]`, by the task's name, as "fetch" and
        "fetch (2)", or by the name that its `task_run_name` gives.

        grace_seconds: how long running effects may take to end after SIGTERM, which ends a worker or a pod;
        by default the setting PREFECT_RESILIENCE_GRACE_SECONDS, 20. Then a deployed run that parks, or that
        is recovered automatically, is handed over to the next worker: it is Parked and goes on half a minute
        later, which counts no attempt. Only for flows that run in the main thread.

        Every option of `prefect.flow` works too. Raises ConfigurationError for invalid options.
        """
        if fn is None:
            return partial(resilient_flow, **options)
        if isinstance(fn, Flow):
            name = getattr(fn.fn, "__name__", fn.name)
            raise ConfigurationError(f"{fn.name!r} is already a flow: write ResilientFlow.wrap({name}, ...)")
        if isinstance(fn, Task):
            raise ConfigurationError(
                f"@resilient_flow decorates the task {fn.name!r}: decorate a function that calls the task"
            )
        return ResilientFlow(fn, **options)

    resilient_flow.from_source = Flow.from_source
