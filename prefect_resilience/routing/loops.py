"""`iterate`: rounds of a step until it is good enough, as in a director-evaluator loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeVar, cast

from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext, TaskRunContext
from prefect.runtime import flow_run, task_run
from prefect.tasks import Task
from prefect.utilities.annotations import quote

from prefect_resilience.conditions.model import Condition
from prefect_resilience.conditions.plain import plain
from prefect_resilience.drive import Blocking, Invoke, Sequence, adrive, drive
from prefect_resilience.errors.context import ErrorContext, attach_context
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.info import ErrorInfo
from prefect_resilience.errors.notes import add_note
from prefect_resilience.errors.redact import redact
from prefect_resilience.errors.shapes import put
from prefect_resilience.errors.taxonomy import ErrorCategory
from prefect_resilience.routing.exceptions import NoProgress, RoundsExhausted
from prefect_resilience.routing.nodes import value_of
from prefect_resilience.routing.rounds import History, Iteration, Round, history_details, partial_output
from prefect_resilience.routing.sameness import same
from prefect_resilience.routing.targets import (
    NOTHING,
    Request,
    arguments,
    as_function,
    check_target,
    is_async,
    name_of,
)
from prefect_resilience.routing.upstream import NeverRan, context_of, ending_of

T = TypeVar("T")

Until = Condition | Callable[[Any], Any]


@dataclass(frozen=True)
class Loop:
    """What a loop does and when it ends."""

    step: Any
    until: Until
    max_rounds: int
    progress: Callable[[Any], Any] | None
    patience: int
    start: Any
    in_threads: bool

    @property
    def name(self) -> str:
        return name_of(self.step)

    def call(self, number: int, previous: Any, history: History[Any]) -> Invoke | Blocking:
        """One round of the step, as a task run of its own if a run is going on."""
        named = {"round": number, "history": history.told()}
        request = Request(value=previous, named=named)
        if previous is NOTHING and not _can_begin(self.step, request):
            request = Request(value=None, named=named)
        args, kwargs = arguments(self.step, request)
        step = self._shown(number)
        if isinstance(step, Task):
            args, kwargs = (
                tuple(quote(arg) for arg in args),
                {name: quote(arg) for name, arg in kwargs.items()},
            )
        kind = Blocking if self.in_threads and not is_async(self.step) else Invoke
        return kind(cast("Any", step), args, kwargs)

    def _shown(self, number: int) -> Any:
        """The step under the name that the UI shows for this round."""
        step = self.step
        if not isinstance(step, Task):
            if FlowRunContext.get() is None and TaskRunContext.get() is None:
                return step
            step = Task(fn=as_function(step), name=self.name, retries=0, cache_policy=NO_CACHE)
        if step.task_run_name is not None:
            return cast("Any", step)
        named = f"{self.name}[{number}]".replace("{", "{{").replace("}", "}}")
        return cast("Any", step.with_options(task_run_name=named))


def iterate(
    step: Callable[..., T],
    until: Until,
    max_rounds: int,
    progress: Callable[[T], Any] | None = None,
    *,
    patience: int = 2,
    start: Any = NOTHING,
) -> Iteration[T]:
    """Call `step` again and again, each time with what it gave before, until `until` holds.

    step: a function or a task. It gets the value of the round before as its first argument if it takes one
        (in the first round `start`, or nothing, or None if it must get something), and the number of the
        round, from 1, and the rounds before if it declares `round` and `history`.
    until: a condition on the step's value, or a function that says yes or no.
    max_rounds: how many rounds may be made.
    progress: what must change from round to round, as a function of the value; by default all of it.
    patience: how many rounds in a row may change nothing before that is the end.

    In a run each round is a task run, called `step[1]`, `step[2]`. Values are compared strictly.

    Raises `NoProgress` when rounds stop changing anything, and `RoundsExhausted` when the last round is made
    and `until` does not hold: a loop never ends quietly with a value that is not good enough, but both have
    it as `value`. An error inside a round is raised as it is; its ErrorContext is of the category `subtask`
    with the error's own as `cause`. All of them have `iteration_history`, up to and with the last round.
    """
    return drive(_rounds(_loop("iterate", step, until, max_rounds, progress, patience, start, isasync=False)))


async def aiterate(
    step: Callable[..., Any],
    until: Until,
    max_rounds: int,
    progress: Callable[[Any], Any] | None = None,
    *,
    patience: int = 2,
    start: Any = NOTHING,
) -> Iteration[Any]:
    """As `iterate`, for a step (and `until`, and `progress`) that may be async; a plain step has a thread."""
    loop = _loop("aiterate", step, until, max_rounds, progress, patience, start, isasync=True)
    return await adrive(_rounds(loop))


def _loop(
    what: str,
    step: Any,
    until: Any,
    max_rounds: Any,
    progress: Any,
    patience: Any,
    start: Any,
    *,
    isasync: bool,
) -> Loop:
    """Check what was written."""
    check_target(f"{what}(step)", step, (), {}, offers=True, offered=("round", "history"))
    if isinstance(until, bool) or not (isinstance(until, Condition) or callable(until)):
        raise ConfigurationError(
            f"{what}(until={until!r}): write a condition, such as path('score') >= 0.9, or a function"
        )
    if progress is not None and not callable(progress):
        raise ConfigurationError(
            f"{what}(progress={progress!r}): write a function of the value, or leave it out"
        )
    for name, number in (("max_rounds", max_rounds), ("patience", patience)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ConfigurationError(f"{what}({name}={number!r}): write a whole number from 1")
    for name, given in (("step", step), ("until", until), ("progress", progress)):
        if not isasync and is_async(given):
            raise ConfigurationError(f"iterate({name}={name_of(given)}) is async: write await aiterate(...)")
    return Loop(step, until, max_rounds, progress, patience, start, in_threads=isasync)


def _can_begin(step: Any, request: Request) -> bool:
    try:
        arguments(step, request)
    except ConfigurationError:
        return False
    return True


def _rounds(loop: Loop) -> Sequence[Iteration[Any]]:
    """The loop itself, written once for both drivers."""
    history: History[Any] = History()
    value, mark, still = loop.start, NOTHING, 0
    if loop.start is not NOTHING and loop.progress is None:
        mark = plain(loop.start)
    for number in range(1, loop.max_rounds + 1):
        began = time.monotonic()
        made, given = NOTHING, NOTHING
        try:
            given = _value((yield loop.call(number, value, history)))
            made = plain(given if loop.progress is None else (yield Invoke(loop.progress, (given,))))
            done = yield from _done(loop.until, given)
        except Exception as error:  # noqa: BLE001 - it is raised on, with what it was about
            left = None if value is NOTHING or value is loop.start else value
            raise _failed_round(
                loop, error, _round(number, given, made, began), history, left
            ) from error.__cause__
        history.add(_round(number, given, made, began))
        still = still + 1 if mark is not NOTHING and same(mark, made) else 0
        value, mark = given, made
        if done:
            return Iteration(value, number, history.told())
        if still >= loop.patience:
            raise _halted(loop, NoProgress(number, value, history.told(), loop.patience))
    raise _halted(loop, RoundsExhausted(loop.max_rounds, value, history.told()))


def _round(number: int, value: Any, mark: Any, began: float) -> Round[Any]:
    kept = [None if part is NOTHING else part for part in (value, mark)]
    return Round(number, kept[0], kept[1], time.monotonic() - began)


def _value(outcome: Any) -> Any:
    """What a step gave; a state that a task returned is opened."""
    if not isinstance(outcome, State):
        return outcome
    ending = ending_of(cast("Any", outcome))
    if isinstance(ending, NeverRan):
        raise RuntimeError(f"the round's task run did not run: {ending.why}")
    return value_of(ending)


def _done(until: Until, value: Any) -> Sequence[bool]:
    if isinstance(until, Condition):
        return until.evaluate(value)
    return bool((yield Invoke(until, (value,))))


def _failed_round(
    loop: Loop, error: Exception, made: Round[Any], history: History[Any], left: Any
) -> Exception:
    """The error of a round, with the loop that it ended: the rounds so far, and what they had come to."""
    cause = context_of(error)
    history.add(Round(made.number, made.value, made.progress, made.duration, cause))
    told = history.told()
    info = ErrorInfo.of(
        ErrorCategory.SUBTASK,
        cause.code,
        kind=cause.kind,
        retryable=cause.retryable,
        message=f"round {made.number} of {loop.name} failed: {cause.summary()}",
        exception_type=cause.exception_type,
        details={"failed_step": made.number, "iteration_history": history_details(told)},
    )
    context = ErrorContext.from_info(
        info,
        timestamp=datetime.now(timezone.utc),
        stack_trace=cause.stack_trace,
        retry_after=cause.retry_after,
        partial_output=partial_output(left),
        cause=_deeper(cause),
        **_here(loop),
    )
    attach_context(error, context)
    put(error, "iteration_history", told)
    add_note(error, redact(f"prefect-resilience: it ended round {made.number} of {loop.name}"))
    return error


def _deeper(cause: ErrorContext) -> ErrorContext:
    """The context of a sub-step, one level further down than it knew."""
    inner = None if cause.cause is None else _deeper(cause.cause)
    return cause.model_copy(update={"nesting_depth": cause.nesting_depth + 1, "cause": inner})


def _halted(loop: Loop, error: NoProgress | RoundsExhausted) -> Exception:
    details = {"rounds": error.rounds, "iteration_history": history_details(error.iteration_history)}
    context = context_of(error).model_copy(
        update={"details": details, "partial_output": partial_output(error.value), **_here(loop)}
    )
    attach_context(error, context)
    return error


def _here(loop: Loop) -> dict[str, Any]:
    ids = {"task_run_id": task_run.get_id(), "flow_run_id": flow_run.get_id()}
    return {"node_id": loop.name, **{name: str(value) for name, value in ids.items() if value}}
