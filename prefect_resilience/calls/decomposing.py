"""Splits work that is too big, makes each part a separate run, and merges the results."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from logging import WARNING
from types import MappingProxyType
from typing import Any, cast

from prefect_resilience.base.drive import Blocking, Invoke, Steps
from prefect_resilience.base.outcomes import settling
from prefect_resilience.base.process import setting
from prefect_resilience.calls.model import Decomposed, Guard, RunContext, Standing, answers, stood_in
from prefect_resilience.errors.context import ErrorContext, attach_context, attached_context
from prefect_resilience.errors.secrets.redact import add_note, redact
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorKind, FailureReason, bounded
from prefect_resilience.guards.decomposition import MOST_PARTS, TOGETHER, Decompose, Split, arguments_for
from prefect_resilience.guards.partials import partial_output, partial_results
from prefect_resilience.telemetry.payloads import CallEvent, CallReport, error_payload

NOT_RUN: Any = object()
"""The outcome of a call that was not started."""


@dataclass(frozen=True, slots=True)
class Raised:
    """The outcome of a call that failed."""

    error: Exception


def together(calls: Sequence[Callable[[], Any]], parallel: int | None) -> list[Any]:
    """The outcomes in the order of the calls: the returned value, `Raised` with the error, or NOT_RUN.

    After a failure no further call is started. With `parallel=1` all calls run in this thread.
    `KeyboardInterrupt` and `SystemExit` are raised.
    """
    stop = threading.Event()

    def run_part(call: Callable[[], Any]) -> Any:
        if stop.is_set():
            return NOT_RUN
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - it is the outcome
            stop.set()
            return Raised(error)
        except BaseException:
            stop.set()
            raise

    if parallel == 1 or len(calls) == 1:
        return [run_part(call) for call in calls]
    with ThreadPoolExecutor(min(parallel or len(calls), len(calls)), "part") as pool:
        running = [pool.submit(copy_context().run, run_part, call) for call in calls]
        try:
            return [future.result() for future in running]
        except BaseException:
            stop.set()
            raise


async def atogether(calls: Sequence[Callable[[], Awaitable[Any]]], parallel: int) -> list[Any]:
    """As `together`, on the event loop. A cancellation also cancels the running calls."""
    room = asyncio.Semaphore(parallel)
    failed = False

    async def run_part(call: Callable[[], Awaitable[Any]]) -> Any:
        nonlocal failed
        async with room:
            if failed:
                return NOT_RUN
            try:
                return await call()
            except Exception as error:  # noqa: BLE001 - it is the outcome
                failed = True
                return Raised(error)

    tasks = [asyncio.ensure_future(run_part(call)) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


_depths: ContextVar[Mapping[Callable[..., Any], int]] = ContextVar(
    "prefect_resilience_depths",
    default=MappingProxyType({}),  # pyright: ignore
)
"""The depth of decomposition of each function in this context."""

_in_turns: ContextVar[bool] = ContextVar("prefect_resilience_in_turns", default=False)
"""Whether the parts run one after the other, because the whole run holds a slot of a tag's limit."""


@dataclass(frozen=True, slots=True)
class Undone:
    """The decomposition failed, too: the error to raise, and its context."""

    error: Exception
    context: ErrorContext


def decompose(
    guard: Guard, here: RunContext, context: ErrorContext, error: Exception
) -> Steps[Decomposed | Undone]:
    """Split the work that failed with `error`, run the parts, and merge their results."""
    plan = cast(Decompose, guard.decompose)
    depth = _depths.get().get(guard.fn, 0)
    place = {"depth": depth, "max_depth": plan.max_depth}
    if depth >= plan.max_depth:
        return _undone(error, context, place, f"not split again: max_depth={plan.max_depth} is reached")
    with _at(guard.fn, depth + 1) as standing:
        try:
            parts = yield from _split(plan, here, context, depth)
        except Exception as failure:  # noqa: BLE001 - the error of the work is raised instead
            return _undone(error, context, place, f"split failed: {failure!r}")
        if len(parts) < 2:
            return _undone(error, context, place, "the work cannot be split into smaller parts")
        place = {"depth": depth + 1, "max_depth": plan.max_depth, "parts": len(parts)}
        _report(here, context, place)
        outcomes = yield from _run(plan, here, parts, guard.isasync)
        if any(isinstance(outcome, Raised) for outcome in outcomes):
            undone = _step_failed(error, context, place, outcomes)
            outcomes.clear()  # the drivers, which are in the errors' tracebacks, hold this list
            return undone
        try:
            value = yield from _merge(plan, here, context, outcomes, depth)
            if guard.expect is not None:
                value = yield from guard.expect.check(value)
        except Exception as failure:  # noqa: BLE001 - it is raised with the results so far
            return _step_failed(error, context, place, outcomes, failure)
    answered = f", some by {', '.join(standing.used)}" if standing.used else ""
    message = f"merged from {len(parts)} parts at depth {depth + 1}{answered}, after: {context.summary()}"
    for name, lesser in standing.used.items():
        stood_in(guard.fn, name, lesser)
    return Decomposed(value, message, context, bool(standing.used), any(standing.used.values()))


def _report(here: RunContext, context: ErrorContext, place: dict[str, int]) -> None:
    number, depth = place["parts"], place["depth"]
    line = f"Decomposing into {number} parts (depth {depth} of at most {place['max_depth']})"
    payload = {**error_payload(context), **place}
    kind, line = ("decompose", depth), f"{line}, after: {context.summary()}"
    event = CallEvent("run.decomposed", "task", here.identity["node_id"], payload)
    here.report(CallReport(WARNING, kind, line, events=[event]))


@contextmanager
def _at(fn: Callable[..., Any], depth: int) -> Generator[Standing]:
    standing = Standing(fn, {})
    with setting(_depths, {**_depths.get(), fn: depth}), setting(answers, standing):
        yield standing


def _split(
    plan: Decompose, here: RunContext, context: ErrorContext, depth: int
) -> Steps[list[Mapping[str, Any]]]:
    """The arguments that are different in each part."""
    parameters = here.parameters
    if isinstance(plan.split, Split):
        name = plan.split.parameter
        pieces = plan.split.of(parameters[name])
        return [{name: value} for value in pieces]
    split = cast("Callable[..., Any]", plan.split)
    args, kwargs = arguments_for(split, {**parameters, "error": context, "depth": depth})
    pieces = list((yield Invoke(split, tuple(args), kwargs)))
    if len(pieces) > MOST_PARTS:
        raise ValueError(f"the split returned {len(pieces)} parts; at most {MOST_PARTS} are allowed")
    return [_changes(part, plan.parts_named, parameters) for part in pieces]


def _changes(part: Any, name: str | None, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments that are different in this part."""
    written: Mapping[str, Any] = cast("Any", part) if isinstance(part, Mapping) else {}
    if written and all(key in parameters for key in written):
        return written
    if name is None:
        raise TypeError(
            f"a part must be a mapping of the changed arguments, not {part!r:.100}, "
            "because the split changes several parameters"
        )
    return {name: part}


def _run(
    plan: Decompose, here: RunContext, parts: list[Mapping[str, Any]], isasync: bool
) -> Steps[list[Any]]:
    """The outcomes of the parts, in their order."""
    limited: set[str] = yield Blocking(here.tags_with_limit)
    turns = bool(limited) or _in_turns.get()
    with setting(_in_turns, turns):
        calls = [
            settling(here.part(changes, f"{number}/{len(parts)}", limited), isasync)
            for number, changes in enumerate(parts, 1)
        ]
        if isasync:
            return (yield Invoke(atogether, (calls, 1 if turns else plan.parallel or TOGETHER)))
        parallel = 1 if turns else plan.parallel or (1 if in_main_thread() else TOGETHER)
        return (yield Invoke(together, (calls, parallel)))


def _merge(
    plan: Decompose, here: RunContext, context: ErrorContext, outcomes: list[Any], depth: int
) -> Steps[Any]:
    merger = plan.merger
    offered = {**here.parameters, "error": context, "depth": depth}
    args, kwargs = arguments_for(merger, offered, (list(outcomes),))
    return (yield Invoke(merger, tuple(args), kwargs))


# The error of a decomposition that failed.


def _undone(error: Exception, context: ErrorContext, place: dict[str, Any], why: str) -> Undone:
    """No part was run."""
    why = redact(why)
    details: dict[str, Any] = {
        **context.details,
        "decomposition": {**place, "why": why},
        "partial_results": [],
    }
    return _with(error, context, why, details=details, message=bounded(f"{context.message} ({why})"))


def _step_failed(
    error: Exception,
    context: ErrorContext,
    place: dict[str, Any],
    outcomes: list[Any],
    of_merge: Exception | None = None,
) -> Undone:
    """The failure of the merge, else of the first part that failed, with the results so far.

    If the part is too big, the error of the whole is raised instead.
    """
    step, failure = ("merge", of_merge) if of_merge is not None else _first_failure(outcomes)
    cause, done = _cause(failure, context), _results(outcomes)
    changes = _as_caused_by(cause)
    parts = f"{len(outcomes)} parts"
    message = f"all {parts} are done, but merging their results failed: {cause.summary()}"
    if of_merge is None:
        depth = f"depth {place['depth']} of at most {place['max_depth']}"
        ended = f"{len(done)} done; part {step} failed: {cause.summary()}"
        message = f"decomposed into {parts} ({depth}), {ended}"
        if cause.kind is ErrorKind.RESOURCE:
            failure, changes = error, {}
        else:
            part = f"part {step} of the call that failed with {context.summary()}"
            add_note(failure, f"prefect-resilience: this was {part}")
    results = [*((str(at), value) for at, value in done), *_results_below(step, cause)]
    details = {
        **context.details,
        "decomposition": {**place, "done": len(done)},
        "failed_step": step,
        "partial_results": partial_results(sorted(results, key=_place), named="part"),
    }
    output = partial_output([value for _, value in done] or None) or context.partial_output
    return _with(failure, context, message, cause, details=details, partial_output=output, **changes)


def _first_failure(outcomes: list[Any]) -> tuple[int, Exception]:
    return next((number, end.error) for number, end in enumerate(outcomes, 1) if isinstance(end, Raised))


def _as_caused_by(cause: ErrorContext) -> dict[str, Any]:
    """A failed subtask keeps the kind, code and retryability of its cause."""
    same = ("kind", "code", "retryable", "retry_after", "exception_type")
    return {
        "category": ErrorCategory.SUBTASK,
        "reason": FailureReason.SUBTASK_FAILURE,
        **{name: getattr(cause, name) for name in same},
    }


def _cause(failure: Exception, context: ErrorContext) -> ErrorContext:
    return attached_context(failure) or ErrorContext.from_exception(failure, timestamp=context.timestamp)


def _with(
    error: Exception, context: ErrorContext, told: str, cause: ErrorContext | None = None, **changes: Any
) -> Undone:
    """The error with `told` as a note, and its context with these changes."""
    add_note(error, f"prefect-resilience: {told}")
    if cause is not None:
        below = cause.model_copy(update={"stack_trace": None}).deeper()
        changes |= {"message": bounded(told), "cause": below}
    changed = context.model_copy(update=changes)
    attach_context(error, changed)
    return Undone(error, changed)


def _results(outcomes: list[Any]) -> list[tuple[int, Any]]:
    return [
        (number, outcome)
        for number, outcome in enumerate(outcomes, 1)
        if outcome is not NOT_RUN and not isinstance(outcome, Raised)
    ]


def _results_below(step: int | str, cause: ErrorContext) -> list[tuple[str, Any]]:
    """The results inside the part that failed: "2.1" is the first part of the second part."""
    if step == "merge" or "decomposition" not in cause.details:
        return []
    return [(f"{step}.{result['part']}", result["value"]) for result in cause.details["partial_results"]]


def _place(found: tuple[str, Any]) -> list[int]:
    return [int(step) for step in found[0].split(".")]


def with_changes(
    fn: Callable[..., Any], parameters: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """The parameters of a call, in Prefect's form, with other values for some of them."""
    accepted = inspect.signature(fn).parameters
    rest = next((name for name, own in accepted.items() if own.kind is own.VAR_KEYWORD), None)
    changed = dict(parameters)
    for name, value in changes.items():
        if name in accepted or rest is None:
            changed[name] = value
        else:
            changed[rest] = {**changed.get(rest, {}), name: value}
    return changed
