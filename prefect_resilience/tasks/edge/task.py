"""`resilient_task`, and its class `ResilientTask`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext, TaskRunContext
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.tasks import Task, TaskOptions, task
from prefect.utilities.annotations import NotSet
from typing_extensions import ParamSpec, Unpack

from prefect_resilience.base.edge.current_settings import is_enabled
from prefect_resilience.base.naming import UNSET, more_options, shows
from prefect_resilience.base.outcomes import PLAIN, as_coroutine_function
from prefect_resilience.calls.edge.call_options import DEFAULTS, ResilienceOptions, as_policy, make_guard
from prefect_resilience.calls.first import FirstAttempt
from prefect_resilience.calls.model import Guard
from prefect_resilience.durable.batches.edge.tags import context_of_calls, tag_again
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.tasks.edge.answers import value_of
from prefect_resilience.tasks.edge.questions import (
    Answers,
    AsWritten,
    answers_of,
    bound_like,
    class_of_copy,
    code_without_source,
    delays_of,
    with_outer_deadline,
    with_own_function,
)
from prefect_resilience.tasks.edge.task_options import (
    ResilientTaskOptions,
    check_wrapped,
    policy_of,
    prefects_backoff,
    prefects_own,
    refuse_cache,
    refuse_later_cache,
    restarting,
    retry_with,
    split,
)
from prefect_resilience.tasks.edge.task_runs import (
    astream,
    in_one_task,
    run_async,
    run_sync,
    stream,
    surroundings_of,
)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class ResilientTask(Task[P, R]):
    """A Prefect task with retries by kind of error, a circuit, a deadline and fallbacks.

    It takes the options of `resilient_task`, and so does `.with_options`. Every way to call a Prefect task
    works: `()`, `.submit`, `.map`, `.delay`, `.serve`, on methods and generators, with every task runner.
    """

    guard: Guard
    """The policies around the function."""
    own_retries: int
    """The retries that Prefect's own option `retries` (or its settings) asked for."""
    own_retry_delay: float | int | list[float] | None
    own_retry_condition: Callable[..., Any] | None
    """The user's `retry_condition_fn`, called when the policy would retry."""
    action_id: str | None = None
    """The action of the plan's node that this task runs; None outside plans."""
    _written: Mapping[str, Any]
    """The resilience options as the user wrote them."""
    _for_engine: Answers | None
    """The retry settings for Prefect's engine; None while resilience is switched off."""

    @shows(ResilienceOptions, DEFAULTS, task, Task)
    def __init__(self, fn: Callable[P, R], **options: Unpack[ResilientTaskOptions]) -> None:
        ours, theirs = split(options)
        # As in Prefect's decorator: None leaves the logging of prints to the flow or the setting.
        super().__init__(as_coroutine_function(fn), **cast(TaskOptions, {"log_prints": None, **theirs}))
        policy = policy_of(self, ours, theirs)
        ours = restarting(self, ours, asked=self.retries > 0)
        self._guard_with(make_guard(self.fn, self.isasync, policy, ours), ours)

    @classmethod
    @shows(ResilienceOptions, DEFAULTS)
    def wrap(cls, task: Task[P, R], **options: Unpack[ResilienceOptions]) -> ResilientTask[P, R]:
        """A resilient copy of `task`; the task itself is not changed.

        The task's own retries are kept if it has any and `retry` is not given.

        Example:
            >>> from prefect import task
            >>> @task
            ... def label(drug: str) -> str:
            ...     return f"{drug}: 100 mg"
            >>> ResilientTask.wrap(label, timeout=10, circuit="labels").name
            'label'
        """
        ours, theirs = split(options)
        inner = getattr(task, "fn", None)
        is_resilient = isinstance(task, ResilientTask) or isinstance(inner, ResilientTask)
        is_task = isinstance(task, Task)  # pyright: ignore[reportUnnecessaryIsInstance]
        check_wrapped("task", task, is_task, is_resilient, theirs)
        policy = policy_of(task, ours, {})
        ours = restarting(task, ours, asked=task.retries > 0)
        return cls._of(task, make_guard(task.fn, task.isasync, policy, ours), ours)

    @classmethod
    def _of(cls, task: Task[P, R], guard: Guard, written: Mapping[str, Any]) -> ResilientTask[P, R]:
        """A copy of a plain task, with the guard around its function."""
        resilient: Any = copy(task)
        resilient.__class__ = class_of_copy(cls, type(task), Task)
        resilient._guard_with(guard, written)
        return resilient

    def _guard_with(self, guard: Guard, written: Mapping[str, Any]) -> None:
        self.guard = guard
        self._written = written
        self._for_engine = None
        self.own_retries = self.retries
        self.own_retry_delay = self.retry_delay_seconds
        self.own_retry_condition = self.retry_condition_fn
        if guard.effect is not None and guard.effect.external:
            refuse_cache(self)
        plain: Task[P, R] = self  # the fields set below are Prefect's own, with Prefect's types
        plain.on_failure_hooks = [*self.on_failure_hooks, *_letter_hooks(guard)]
        if not is_enabled():
            return
        plain.source_code = self.source_code or code_without_source(guard.fn)
        plain.cache_policy = with_own_function(self.cache_policy)
        if guard.effect is not None and (guard.effect.external or guard.effect.compensate is not None):
            # The ledger answers for a call that was made, and a compensated effect must run again.
            plain.cache_policy = NO_CACHE
        plain.fn = around(guard, self.isgenerator, bound_to=self.fn)
        if guard.timeout is not None:
            plain.timeout_seconds = None  # left from a wrapped task, or from earlier options
        if prefects_backoff(self) != guard.retry.backoff:
            plain.retry_delay_seconds = delays_of(guard.retry) or None
        if not self.retries or self.retries != guard.retry.most_retries:
            plain.retries = guard.retrying.most_retries
        self._for_engine = answers_of(guard)

    def _plain_copy(self) -> Task[P, R]:
        """A plain Prefect copy: with its own function, retries and delays."""
        plain = copy(self)
        plain.fn = bound_like(self.fn, copy_of=self.guard.fn)
        ours = _letter_hooks(self.guard)
        plain.on_failure_hooks = [hook for hook in self.on_failure_hooks if hook not in ours]
        plain.retries = self.own_retries
        plain.retry_delay_seconds = self.own_retry_delay
        return plain

    if TYPE_CHECKING:

        def with_options(  # pyright: ignore[reportIncompatibleMethodOverride]
            self, **options: Unpack[ResilientTaskOptions]
        ) -> ResilientTask[P, R]: ...

    else:
        retries = AsWritten()
        retry_delay_seconds = AsWritten()
        retry_jitter_factor = AsWritten()
        retry_condition_fn = AsWritten()

        def __setattr__(self, name: str, value: Any) -> None:
            refuse_later_cache(self, name, value)
            super().__setattr__(name, value)

        def __call__(
            self, *args: Any, return_state: bool = False, wait_for: Any = None, **kwargs: Any
        ) -> Any:
            around = TaskRunContext.get()
            if around is not None and around.task.fn is self:
                raise ConfigurationError(_TASK_AROUND.format(self.name))
            # The run of a coroutine function begins when the coroutine does.
            with nullcontext() if self.isasync else context_of_calls():
                outcome = super().__call__(*args, return_state=return_state, wait_for=wait_for, **kwargs)
            if type(outcome) in PLAIN:
                return outcome
            if inspect.iscoroutine(outcome):
                return _await(outcome, return_state)
            if return_state:
                return outcome
            if inspect.isgenerator(outcome):
                return _with_value_returned(outcome)
            if inspect.isasyncgen(outcome):
                return in_one_task(outcome)
            return value_of(outcome)

        def submit(self, *args: Any, **kwargs: Any) -> Any:
            """As Prefect's own `submit`."""
            with _context_of_runs():
                return super(ResilientTask, with_outer_deadline(self)).submit(*args, **kwargs)

        def map(self, *args: Any, **kwargs: Any) -> Any:
            """As Prefect's own `map`."""
            with _context_of_runs():
                return super(ResilientTask, with_outer_deadline(self)).map(*args, **kwargs)

        @shows(ResilienceOptions, dict.fromkeys(DEFAULTS, UNSET), Task.with_options)
        def with_options(self, **options: Any) -> ResilientTask[P, R]:
            """A copy with other options, ours or Prefect's. Options that are not given stay the same."""
            written = {name: value for name, value in options.items() if value is not NotSet}
            ours, theirs = split(written, more_options(type(self), ResilientTask))
            plain = super(ResilientTask, self._plain_copy()).with_options(**theirs)
            return self._remade(plain, ours, theirs)

    def _remade(
        self, made: Task[P, R], ours: Mapping[str, Any], theirs: Mapping[str, Any]
    ) -> ResilientTask[P, R]:
        """A resilient copy of a task that Prefect made with other options."""
        bound_like(self, made, "task_key", "source_code")
        guard = self.guard
        retries = theirs.get("retries") is not None
        written = {**restarting(made, {**self._written, **ours}, asked=retries)}
        retry = prefects_own(made) if retries and "retry" not in written else guard.retry
        retry = as_policy(ours["retry"]) if "retry" in ours else retry_with(retry, made, theirs)
        if theirs.get("timeout_seconds") is not None:
            written["timeout"] = None
        return self._of(made, make_guard(guard.fn, guard.isasync, retry, written), written)


_TASK_AROUND = (
    "@task decorates {!r}, which @resilient_task has already made a task: remove @task, and write its "
    "options in @resilient_task(...)"
)


def around(guard: Guard, isgenerator: bool, bound_to: Callable[..., Any]) -> Callable[..., Any]:
    """The function that the engine calls once per attempt. It has the signature of the user's function.

    Outside a task run it only calls that function.
    """
    first = FirstAttempt(guard)
    if isgenerator and guard.isasync:

        def call_async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            return astream(guard, args, kwargs)

        wrapper: Callable[..., Any] = call_async_generator
    elif isgenerator:

        def call_generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            return (yield from stream(guard, args, kwargs))

        wrapper = call_generator
    elif guard.isasync:

        async def call_coroutine(*args: Any, **kwargs: Any) -> Any:
            run = surroundings_of(guard)
            if run is None:
                return await guard.fn(*args, **kwargs)
            with tag_again(run.task_run):
                return await run_async(first, run, args, kwargs)

        wrapper = call_coroutine
    else:

        def call_function(*args: Any, **kwargs: Any) -> Any:
            run = surroundings_of(guard)
            if run is None:
                return guard.fn(*args, **kwargs)
            with tag_again(run.task_run):
                return run_sync(first, run, args, kwargs)

        wrapper = call_function
    wrapper = functools.update_wrapper(wrapper, guard.fn)
    # The engine reads the signature twice per call, and reading it through the wrapper is slow.
    setattr(wrapper, "__signature__", inspect.signature(guard.fn))  # noqa: B010
    return bound_like(bound_to, copy_of=wrapper)


def _letter_hooks(guard: Guard) -> list[Callable[..., None]]:
    """The hook that keeps a call that failed for good, if the task asks for dead letters."""
    if not guard.dead_letter:
        return []
    from prefect_resilience.tasks.edge.run_hooks import keep_dead_letter  # imported late: it is large

    return [keep_dead_letter]


def _context_of_runs() -> AbstractContextManager[None]:
    """Where task runs are created: threads get their batch from the context, other processes from the tag."""
    context = FlowRunContext.get()
    threads = context is None or isinstance(context.task_runner, ThreadPoolTaskRunner)
    return context_of_calls(untag=threads)


async def _await(outcome: Coroutine[Any, Any, Any], return_state: bool) -> Any:
    with context_of_calls():
        value = await outcome
    return value if return_state or type(value) in PLAIN else value_of(value)


def _with_value_returned(outcome: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    return value_of((yield from outcome))


@overload
def resilient_task(fn: Callable[P, R], /) -> ResilientTask[P, R]: ...


@overload
def resilient_task(
    fn: None = None, /, **options: Unpack[ResilientTaskOptions]
) -> Callable[[Callable[P, R]], ResilientTask[P, R]]: ...


@shows(ResilienceOptions, DEFAULTS, task, Task)
def resilient_task(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a resilient Prefect task.

    retry: a `Retry`, a number of attempts, JSON, or None for no retries. Default: 3 attempts after
        transient errors, 1 s doubling to 30 s with 20 % jitter. With Prefect's own `retries`: plain
        Prefect retries after any error.
    circuit: a `CircuitBreaker`, or the name of one with the default policy. The name may be a template
        with the function's parameters, such as "llm:{provider}".
    limits: a `Bulkhead`, an `AdaptiveLimit`, a `RateLimit`, or several limits, acquired in their order.
    timeout: for one attempt: seconds, a `Timeout`, or the name of an operation of the settings.
    deadline: seconds for all attempts, delays and fallbacks together, and for everything called inside.
    hedge: a `Hedge`, for idempotent reads: starts a second call beside a slow one, within the timeout.
    fallback: the fallbacks, in order: functions, tasks, `Fallback`s.
    classify: rules of this task, applied before the others. Each takes the exception and returns a
        category, an `ErrorInfo`, or None.
    effect: its side effect: "external" (never sent twice), "conditional", "idempotent", or an `Effect`. An
        effect that is done is not repeated in its batch (default: the root flow run, in all its passes): the
        task run ends `Replayed`, with the recorded result.
    dead_letter: True keeps a call that failed for good, after its retries and fallbacks, as a dead letter
        with its parameters. `dead_letters.replay()` repeats the call once the cause is fixed.
    policy: the name of a `ResiliencePolicy` block. Its values override the options above, within 30 seconds
        of a change in the UI. Where it has no value, is missing or is invalid, the code's options apply.
    restart_stream: for generators: True lets a stream that broke after its first chunk be retried or replaced
        by a fallback; its reader then gets chunks from the beginning again. Default: False, or True with
        Prefect's own `retries`.
    expect: the expected output: a type of JSON ("array"), a JSON Schema, a pydantic model, a function that
        accepts or rejects it, or an `Expect`, which can have an invalid output repaired.
    decompose: a `Decompose`, or a splitter such as `split_text("document")`. Work that is too big (an error
        of the kind "resource") is split, each part runs as this same task, and the results are merged.
    error_budget: an `ErrorBudget`, or its objective such as 0.99: the share of the runs that must succeed.

    Every option of `prefect.task` works too. Raises ConfigurationError for invalid options.

    Example:
        >>> from prefect import flow
        >>> @resilient_task(retry=3, timeout=10, fallback=Fallback.value("unknown"))
        ... def label(drug: str) -> str:
        ...     raise ConnectionError("connection refused")
        >>> @flow
        ... def labels() -> str:
        ...     return label("aspirin")
        >>> labels()
        'unknown'
    """
    if fn is None:
        return functools.partial(resilient_task, **options)
    if isinstance(fn, Task):
        raise ConfigurationError(f"{fn.name!r} is already a task: write ResilientTask.wrap({fn.name}, ...)")
    return ResilientTask(fn, **options)
