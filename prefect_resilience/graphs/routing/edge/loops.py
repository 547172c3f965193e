"""`iterate`: rounds of a step until it is good enough, as in a director-evaluator loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext, TaskRunContext
from prefect.runtime import flow_run, task_run
from prefect.tasks import Task, task
from prefect.utilities.annotations import quote

from prefect_resilience.base.drive import Blocking, Invoke, Steps, adrive, drive
from prefect_resilience.base.plain import plain
from prefect_resilience.errors.classify.shapes import put
from prefect_resilience.errors.context import ErrorContext, attach_context
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.requests import attach_request, subtask_request
from prefect_resilience.errors.secrets.redact import add_note
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo
from prefect_resilience.graphs.conditions.model import Condition
from prefect_resilience.graphs.routing.edge.targets import (
    NOTHING,
    TargetCall,
    arguments,
    as_function,
    check_target,
    is_async,
    name_of,
)
from prefect_resilience.graphs.routing.edge.upstream import context_of, ending_of, value_of
from prefect_resilience.graphs.routing.rounds import (
    Iteration,
    NoProgress,
    Round,
    RoundsExhausted,
    history_details,
    same,
)
from prefect_resilience.guards.partials import partial_output
from prefect_resilience.tasks.edge.answers import request_of_step

E = TypeVar("E", NoProgress, RoundsExhausted)


def halted(name: str, error: E) -> E:
    """The error of a loop that ended early, with the rounds in its context."""
    context = context_of(error)
    rounds = {"rounds": error.rounds, "iteration_history": history_details(error.iteration_history)}
    changes = {
        "details": {**context.details, **rounds},
        "partial_output": partial_output(error.value),
        **place_of(name),
    }
    attach_context(error, context.model_copy(update=changes))
    return error


def place_of(name: str) -> dict[str, Any]:
    """The name of the loop, and the current run."""
    ids = {"task_run_id": task_run.get_id(), "flow_run_id": flow_run.get_id()}
    return {"node_id": name, **{name: str(value) for name, value in ids.items() if value}}


T = TypeVar("T")

Until = Condition | Callable[[Any], Any]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Loop:
    """The options of a loop."""

    steps: Mapping[str, Any]  # in their order, by name
    several: bool
    until: Until
    max_rounds: int
    progress: Callable[[Any], Any] | None
    patience: int
    start: Any
    in_threads: bool

    @property
    def name(self) -> str:
        return ", ".join(self.steps)

    def asked(
        self, name: str, number: int, previous: Any, given: Mapping[str, Any], history: list[Round[Any]]
    ) -> Arguments:
        """The arguments of one step of a round."""
        target = self.steps[name]
        named = {"round": number, "history": tuple(history), **given}
        try:
            return arguments(target, TargetCall(value=previous, named=named))
        except ConfigurationError:  # it takes an argument, and there is no value yet
            return arguments(target, TargetCall(value=None, named=named))

    def call(self, name: str, number: int, asked: Arguments) -> Invoke | Blocking:
        """One step of a round; inside a run it is a task run of its own."""
        args, kwargs = asked
        target = self.steps[name]
        step = self._shown(name, target, number)
        if isinstance(step, Task):
            args = tuple(quote(arg) for arg in args)
            kwargs = {name: quote(arg) for name, arg in kwargs.items()}
        kind = Blocking if self.in_threads and not is_async(target) else Invoke
        return kind(cast("Any", step), args, kwargs)

    def _shown(self, name: str, step: Any, number: int) -> Any:
        """The step, as a task named after this round if inside a run."""
        if not isinstance(step, Task):
            if FlowRunContext.get() is None and TaskRunContext.get() is None:
                return step
            step = task(name=name, retries=0, cache_policy=NO_CACHE)(as_function(step))
        if step.task_run_name is not None:
            return cast("Any", step)
        named = f"{name}[{number}]".replace("{", "{{").replace("}", "}}")
        return cast("Any", step.with_options(task_run_name=named))


def iterate(
    step: Callable[..., T] | Mapping[str, Callable[..., Any]],
    until: Until,
    max_rounds: int,
    progress: Callable[[T], Any] | None = None,
    *,
    patience: int = 2,
    start: Any = NOTHING,
) -> Iteration[T]:
    """Call `step` repeatedly, each time with its previous value, until `until` holds.

    step: a function or a task. If it takes an argument, it gets the previous round's value: in the first
        round `start`, else no argument, or None if it is required. The parameters `round` and `history`, if
        declared, get the number of the round, from 1, and the rounds so far. A round of several steps is a
        mapping of names to steps in order, such as `{"director": ..., "execution": ..., "evaluator": ...}`.
        Each step gets the value of the step before it, and by name the values of the other steps. The value
        of the round is that of the last step.
    until: a condition on the step's value, or a function that returns true or false.
    max_rounds: the maximum number of rounds.
    progress: a function that returns the part of the value that must change; by default all of it.
    patience: the number of rounds in a row without a change after which the loop ends.

    In a run each step is a task run, called `step[1]`, `step[2]`. Values are compared strictly.

    Raises `NoProgress` if rounds stop changing the value, and `RoundsExhausted` if `until` does not hold
    after the last round. Both have the last value as `value`; the loop never returns a value that does not
    meet `until`. An error inside a round ends the loop at once and is raised unchanged. Its ErrorContext has
    the category `subtask`, the original context as `cause`, and `failed_step` in its details: the step's name
    if there are several, else the round. All three have `iteration_history`, including the last round.

    Example:
        >>> def halve(value: float) -> float:
        ...     return value / 2
        >>> iterate(halve, until=lambda value: value < 1, max_rounds=10, start=8.0).rounds
        4
    """
    return drive(_rounds(_loop(step, until, max_rounds, progress, patience, start, isasync=False)))


async def aiterate(
    step: Callable[..., Any] | Mapping[str, Callable[..., Any]],
    until: Until,
    max_rounds: int,
    progress: Callable[[Any], Any] | None = None,
    *,
    patience: int = 2,
    start: Any = NOTHING,
) -> Iteration[Any]:
    """As `iterate`, for async steps, `until` and `progress`. Plain steps run in a thread."""
    loop = _loop(step, until, max_rounds, progress, patience, start, isasync=True)
    return await adrive(_rounds(loop))


def _loop(
    step: Any, until: Any, max_rounds: Any, progress: Any, patience: Any, start: Any, *, isasync: bool
) -> Loop:
    """Check the options."""
    function = "aiterate" if isasync else "iterate"
    steps = _steps(function, step)
    if isinstance(until, bool) or not (isinstance(until, Condition) or callable(until)):
        raise ConfigurationError(
            f"{function}(until={until!r}): write a condition, such as path('score') >= 0.9, or a function"
        )
    if progress is not None and not callable(progress):
        raise ConfigurationError(f"{function}(progress={progress!r}): write a function of the value, or None")
    for name, number in (("max_rounds", max_rounds), ("patience", patience)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ConfigurationError(f"{function}({name}={number!r}): write a whole number of at least 1")
    for name, option in (*(("step", fn) for fn in steps.values()), ("until", until), ("progress", progress)):
        if not isasync and is_async(option):
            raise ConfigurationError(f"iterate({name}={name_of(option)}) is async: write await aiterate(...)")
    several = isinstance(step, Mapping)
    return Loop(steps, several, until, max_rounds, progress, patience, start, in_threads=isasync)


def _steps(what: str, step: Any) -> dict[str, Any]:
    """The steps of a round by name."""
    steps: dict[Any, Any] = dict(cast("Any", step)) if isinstance(step, Mapping) else {name_of(step): step}
    if not steps:
        raise ConfigurationError(f'{what}(step={{}}): write the steps of a round, {{"director": ..., ...}}')
    for name, target in steps.items():
        shown = f"{what}(step[{name!r}])" if isinstance(step, Mapping) else f"{what}(step)"
        offered = ("round", "history", *(other for other in steps if other != name))
        check_target(shown, target, TargetCall(), offers=True, offered=offered)
    return steps


def _rounds(loop: Loop) -> Steps[Iteration[Any]]:
    """The loop, for sync and async callers."""
    history: list[Round[Any]] = []
    value, mark, still = loop.start, NOTHING, 0
    if loop.start is not NOTHING and loop.progress is None:
        mark = plain(loop.start)
    for number in range(1, loop.max_rounds + 1):
        began = time.monotonic()
        new_mark, answer, at = NOTHING, NOTHING, ""
        gave: dict[str, Any] = {}
        call_arguments: Arguments = (), {}
        try:
            for at in loop.steps:
                call_arguments = loop.asked(at, number, value if answer is NOTHING else answer, gave, history)
                answer = _value((yield loop.call(at, number, call_arguments)))
                gave[at] = answer
            at = "progress"
            new_mark = plain(answer if loop.progress is None else (yield Invoke(loop.progress, (answer,))))
            at = "until"
            if isinstance(loop.until, Condition):
                done = loop.until.evaluate(answer)
            else:
                done = bool((yield Invoke(loop.until, (answer,))))
        except Exception as error:  # noqa: BLE001 - it is raised again with its round
            last_value = None if value is NOTHING or value is loop.start else value
            failed = _round(loop, number, answer, new_mark, began, gave)
            _leave_request(loop, at, call_arguments, error)
            raise _failed_round(loop, error, at, failed, history, last_value) from error.__cause__
        history.append(_round(loop, number, answer, new_mark, began, gave))
        still = still + 1 if mark is not NOTHING and same(mark, new_mark) else 0
        value, mark = answer, new_mark
        if done:
            return Iteration(value, number, tuple(history))
        if still >= loop.patience:
            raise halted(loop.name, NoProgress(number, value, tuple(history), loop.patience))
    raise halted(loop.name, RoundsExhausted(loop.max_rounds, value, tuple(history)))


def _round(
    loop: Loop, number: int, value: Any, mark: Any, began: float, gave: Mapping[str, Any]
) -> Round[Any]:
    parts = [None if part is NOTHING else part for part in (value, mark)]
    steps = gave if loop.several else dict[str, Any]()
    return Round(number, parts[0], parts[1], time.monotonic() - began, steps=steps)


def _value(outcome: Any) -> Any:
    """The value of a step; the result if a task returned a state."""
    return value_of(ending_of(cast("Any", outcome))) if isinstance(outcome, State) else outcome


def _leave_request(loop: Loop, at: str, asked: Arguments, error: Exception) -> None:
    """Attach the step's request to its error, unless a run inside it has done so."""
    if at in loop.steps and subtask_request(error) is None:
        request = request_of_step(at, loop.steps[at], *asked)
        if request is not None:
            attach_request(error, request)


def _failed_round(
    loop: Loop, error: Exception, at: str, made: Round[Any], history: list[Round[Any]], left: Any
) -> Exception:
    """The error of a round, with the rounds so far and their last value in its context."""
    cause = context_of(error)
    rounds = (*history, replace(made, error=cause))
    place = f"{at} in round {made.number}" if loop.several else f"round {made.number} of {loop.name}"
    details: dict[str, Any] = {
        "failed_step": at if loop.several else made.number,
        "failed_round": made.number,
        "iteration_history": history_details(rounds),
    }
    request = subtask_request(error)
    if request is not None:
        details["subtask_request"] = request.as_data()
    info = ErrorInfo.of(
        ErrorCategory.SUBTASK,
        cause.code,
        kind=cause.kind,
        retryable=cause.retryable,
        message=f"{place} failed: {cause.summary()}",
        exception_type=cause.exception_type,
        details=details,
    )
    context = ErrorContext.from_info(
        info,
        timestamp=datetime.now(UTC),
        stack_trace=cause.stack_trace,
        retry_after=cause.retry_after,
        partial_output=partial_output(left if made.value is None else made.value) or cause.partial_output,
        cause=cause.deeper(),
        **place_of(loop.name),
    )
    attach_context(error, context)
    put(error, "iteration_history", rounds)
    add_note(error, f"prefect-resilience: this error ended the loop: {place}")
    return error
