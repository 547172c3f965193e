"""One attempt of a guarded call, and the step after it: a retry, a fallback, or the error.

The order is fixed, from the outside in: fallback( retry( circuit( limits( timeout( function ))))). A finished
effect is replayed first; the intent of a new one is recorded last, right before the call. Sync and async
calls share these generators; `base/drive.py` has a driver for each. Nothing here imports Prefect. Ids, log,
events and result storage come from the `RunContext`.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial
from sys import modules
from typing import TYPE_CHECKING, Any, cast

from prefect_resilience.base.deadlines import current_deadline, limit_steps
from prefect_resilience.base.drive import Blocking, Invoke, Steps
from prefect_resilience.base.outcomes import (
    UnawaitedResult,
    is_cancellation,
    is_state,
    mask_state,
    result_data,
    settling,
    take_returned,
)
from prefect_resilience.calls.judging import (
    annotate,
    chain_doubt,
    fallback_message,
    judge_attempt,
    report_failure,
    report_fallback,
    report_recovery,
    report_retry,
)
from prefect_resilience.calls.model import Decomposed, Guard, RunContext, Substitute, deadline_of
from prefect_resilience.calls.spans import SDK, OpenSpan, begin_attempt
from prefect_resilience.durable.effects.current import Replayed, RunningCall
from prefect_resilience.errors.exceptions import InDoubt
from prefect_resilience.errors.secrets.redact import add_note, learn_secrets
from prefect_resilience.errors.secrets.scrub import scrub_exception
from prefect_resilience.errors.taxonomy import ErrorKind
from prefect_resilience.guards import faults
from prefect_resilience.guards.fallbacks import Chain, despite_doubt
from prefect_resilience.guards.retries.policy import Verdict, bucket_of
from prefect_resilience.guards.timeouts.timeout import with_deadline, within_deadline

if TYPE_CHECKING:
    from prefect_resilience.durable.effects.claim import EffectClaim
    from prefect_resilience.guards.budgets.policy import ErrorBudget
    from prefect_resilience.guards.circuits.breaker import CircuitBreaker
    from prefect_resilience.guards.outputs.promise import Expect

Held = list[tuple[Any, Any]]
"""The acquired guards, each with its ticket."""


def make_attempt(guard: Guard, run: RunContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps[Any]:
    """One attempt, within the call's deadline. Returns the value, or `Replayed`, `Decomposed` or a
    `Substitute`; raises the function's own error with added notes.

    For a retry the error is raised, too. Its verdict is then in the run's record, and the engine waits and
    starts the next attempt.
    """
    if guard.deadline is not None or run.outer_deadline is not None:
        limit = deadline_of(guard, run)
        if limit is not None and limit is not current_deadline.get():
            return (yield from limit_steps(limit, make_attempt(guard, run, args, kwargs)))
    began = time.monotonic()
    effect = guard.effect
    claim: EffectClaim | None = None
    if effect is not None:
        direct = guard.circuit is None and not guard.limits
        from prefect_resilience.durable.effects.claim import EffectClaim

        claim = EffectClaim(effect, guard.fn, guard.isasync, guard.source, run, direct)
    if guard.expect is not None and (before := run.record_so_far()) is not None:
        args, kwargs = guard.expect.with_hints(guard.fn, args, kwargs, before.notes)
    try:
        if claim is None:
            value = yield from attempt(guard, run, args, kwargs)
        else:
            value = yield from claim.once(partial(attempt, guard, run, args, kwargs, claim))
        if guard.expect is not None:
            value = yield from as_promised(guard.expect, value)
            if claim is not None:
                claim.note_changes()
    except Exception as error:  # noqa: BLE001 - `end_attempt` raises it again, or a fallback answers
        return (yield from end_attempt(guard, run, began, error, claim))
    yield from record_success(guard, run, value)
    return value


def end_attempt(
    guard: Guard,
    run: RunContext,
    began: float,
    error: Exception,
    claim: EffectClaim | None = None,
    held: Held | None = None,
) -> Steps[Any]:
    """The end of an attempt that failed. Releases the guards that it holds, and raises the outcome of
    `handle_result` if that is an error."""
    outcome: Any = error
    try:
        if held:
            yield from leave(guard, held, error)
        if not isinstance(error, UnawaitedResult):
            outcome = yield from handle_result(guard, run, began, error, claim)
            if claim is not None:
                claim.note_changes()
        elif not run.may_go_on:  # a mistake in the code, which no fallback may hide
            error.close()
        if outcome is error:
            raise error
        if isinstance(outcome, BaseException):
            raise outcome from outcome.__cause__
        return outcome
    finally:
        del error, outcome  # an error's traceback has this frame, and would wait with it for the collector


def attempt(
    guard: Guard,
    run: RunContext,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    claim: EffectClaim | None = None,
) -> Steps[Any]:
    """Acquire the circuit and the limits, make the call, and release them."""
    held: Held = []
    try:
        yield from enter(guard, run, held, "" if claim is None else claim.key)
        command = partial(the_call, guard, run, args, kwargs)
        if claim is None:
            value = yield command()
        else:
            value = yield from claim.call(command, guard.classify_error)
        for guarding, ticket in held:
            if guarding.metered:
                ticket.see(value)
        yield from leave(guard, held, None)
        return value
    except BaseException as error:
        yield from leave(guard, held, error)
        raise
    finally:
        if held:  # Ctrl-C struck during their release
            yield from leave(guard, held, KeyboardInterrupt())


def enter(
    guard: Guard, run: RunContext, held: Held, key: str = "", is_current: bool = True
) -> Steps[OpenSpan | None]:
    """Acquire the circuit, then the limits. `held` has the acquired ones, also when one of them raises.

    Returns the span of the attempt, with the effect's `key`, if spans are recorded; it ends with the guards.
    Raises `NotBegun` after the deadline.
    """
    if (limit := current_deadline.get()) is not None:
        limit.check()
    for guarding in guard.entered_in_order:
        binds = guarding.fields or guarding.metered
        bound = guarding.bind(run.parameters) if binds else guarding
        patient = guarding is guard.circuit and guard.retrying.most_retries > 0
        entering = cast("CircuitBreaker", bound).acquire(patience(guard, run)) if patient else bound.acquire()
        held.append((bound, (yield from entering)))
    return begin_attempt(guard, run, held, key, is_current) if SDK in modules else None


def patience(guard: Guard, run: RunContext) -> float:
    """Seconds that the call may wait for another call's probe: until `max_elapsed`, if it is retried."""
    limit, record = guard.retrying.max_elapsed, run.record_so_far()
    if limit is None:
        return math.inf
    return limit if record is None else record.started + limit - time.monotonic()


def leave(guard: Guard, held: Held, error: BaseException | None, took: float | None = None) -> Steps[None]:
    """Release the acquired guards, the last one first; `took` as in `Guarding.finish`.

    If a release fails, the other guards are still released, and its error is raised. After Ctrl-C `held` has
    the guards whose release is not complete.
    """
    info = None if error is None or not held else guard.classify_error(error)
    while held:
        guarding, ticket = held[-1]
        try:
            yield from guarding.finish(ticket, error, info=info, took=took)
        except BaseException as failure:
            if not isinstance(failure, Exception | GeneratorExit) and not is_cancellation(failure):
                raise
            held.pop()
            # After a cancellation nothing may be awaited, so the other guards get the cancellation.
            yield from leave(guard, held, error if isinstance(failure, Exception) else failure, took)
            raise
        held.pop()


def the_call(
    guard: Guard,
    run: RunContext,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    running: RunningCall | None = None,
) -> Invoke:
    """The function as a command, wrapped in the injected faults, the effect that watches it, the hedge, and
    the timeout outermost. `running` records when the function begins and ends."""
    call, timeout = Invoke(guard.fn, args, kwargs), guard.timeout
    if current_deadline.get() is not None:
        timeout = within_deadline(timeout)
    if timeout is not None and timeout.total is not None and timeout.mode == "process":
        from prefect_resilience.guards.timeouts import process_mode

        begun = None if running is None else running.in_child()
        child = process_mode.ChildCall(guard.fn, args, kwargs, run.carry_into_child(), begun)
        call = Invoke(child.acall if guard.isasync else child.call, (timeout.total,))
        call.fn = settling(call.fn, guard.isasync, guard.fn, running is not None)
        return call
    if faults.active:
        names = [circuit.bind(run.parameters).name for circuit in (guard.circuit,) if circuit is not None]
        call = faults.around(call, guard.isasync, str(run.identity["node_id"]), *names)
    call.fn = settling(call.fn, guard.isasync, guard.fn, running is not None)
    if running is not None:
        call.fn = running.watched(call.fn, isasync=guard.isasync)
    if guard.hedge is not None:
        call.fn = guard.hedge.within(call.fn, guard.limits, run.parameters)
    if timeout is not None:
        call.fn = with_deadline(timeout, call.fn, guard.isasync, guard.fn)
    return call


def record_success(guard: Guard, run: RunContext, value: Any) -> Steps[None]:
    record = run.record_so_far()
    if record is not None and record.history:
        report_recovery(run, record)
    elif guard.retry.budget is not None:
        bucket_of(guard.retry.budget, time.monotonic()).earn()
    if isinstance(value, Replayed):
        run.close_record()
    else:
        run.went_well()
    if guard.error_budget is not None:
        yield from count_run(guard.error_budget, run, good=True)
    if guard.remembers and not isinstance(value, Replayed):
        yield Blocking(run.remember, (result_data(value),))


def handle_result(
    guard: Guard, run: RunContext, began: float, error: Exception, claim: EffectClaim | None = None
) -> Steps[Any]:
    """As `handle_failure`, but a failed state that the function returned is returned, not raised."""
    state = take_returned(guard.fn, error)
    outcome = yield from handle_failure(guard, run, began, error, claim)
    if state is None or not isinstance(outcome, BaseException) or next_verdict(run, outcome) is not None:
        return outcome
    is_doubt = isinstance(outcome, InDoubt) and outcome is not error
    return outcome if is_doubt else mask_state(state, error, outcome)


def next_verdict(run: RunContext, error: BaseException) -> Verdict | None:
    """The verdict by which another attempt follows the one that this error ended; None if none does."""
    record = run.record_so_far()
    verdict = None if record is None or record.error is not error else record.verdict
    return verdict if verdict is not None and verdict.retry else None


def handle_failure(
    guard: Guard, run: RunContext, began: float, error: Exception, claim: EffectClaim | None = None
) -> Steps[Substitute | Decomposed | Replayed | BaseException]:
    """The outcome of a failed attempt: the merged result of its parts, the answer of a fallback, or the error
    to raise, without secrets.

    The error is raised both for a retry and to give up; the run's record has the decision.
    """
    learn_secrets(run.parameters)
    clean = scrub_exception(error)
    context, verdict = yield from judge_attempt(guard, run, began, clean, claim)
    if verdict.retry:
        if run.parking is None or not (yield from run.parks(context, verdict)):
            report_retry(run, context, verdict)
        return clean
    may_repeat = claim is None or not claim.bars_fallbacks
    if guard.decompose is not None and context.kind is ErrorKind.RESOURCE and may_repeat:
        from prefect_resilience.calls.decomposing import decompose

        outcome = yield from decompose(guard, run, context, cast("Exception", clean))
        if isinstance(outcome, Decomposed):
            yield from finish_in_parts(guard, run, outcome)
            return outcome
        clean, context = outcome.error, outcome.context
    doubt: InDoubt | None = None
    if claim is not None and not isinstance(error, InDoubt):
        resolved = yield from claim.settle_doubt()
        if isinstance(resolved, Replayed):
            run.close_record()
            if guard.error_budget is not None:
                yield from count_run(guard.error_budget, run, good=True)
            return resolved
        doubt = resolved
    steps = guard.fallbacks if claim is None or not claim.bars_fallbacks else despite_doubt(guard.fallbacks)
    chain = Chain(steps, guard.fn, guard.isasync)
    answer = (yield from chain.answer(run.parameters, context, run, clean)) if steps else None
    may_park = run.parking is not None and answer is None and doubt is None
    if may_park and (yield from run.parks(context, verdict)):
        return clean
    run.close_record()
    if (budget := guard.error_budget) is not None:
        good = answer is not None and not (answer.fallback.degraded and budget.degraded_counts)
        yield from count_run(budget, run, good)
    if answer is not None:
        report_fallback(run, context, answer, clean)
        return Substitute(answer, context, fallback_message(context, answer))
    raised = clean if doubt is None else chain_doubt(doubt, clean, context)
    annotate(raised, context, verdict, chain)
    if claim is not None and claim.overdue:
        add_note(
            raised,
            f"prefect-resilience: the abandoned call is still running; the outcome of effect {claim.key!r} "
            "is recorded when it ends",
        )
    report_failure(run, context, verdict, raised)
    run.leave_request(raised)
    return raised


def as_promised(expect: Expect, value: Any) -> Steps[Any]:
    """The checked value. A finished effect stays finished even if its result is malformed."""
    if is_state(value):
        yield from expect.check(result_data(value))
        return value
    if not isinstance(value, Replayed):
        return (yield from expect.check(value))
    return replace(value, value=(yield from expect.check(value.value)))


def finish_in_parts(guard: Guard, run: RunContext, outcome: Decomposed) -> Steps[None]:
    run.close_record()
    if guard.error_budget is not None:
        good = not (outcome.degraded and guard.error_budget.degraded_counts)
        yield from count_run(guard.error_budget, run, good)
    if guard.remembers and not outcome.replaced:
        yield Blocking(run.remember, (outcome.value,))


def count_run(budget: ErrorBudget, run: RunContext, good: bool) -> Steps[None]:
    """Count a finished run in its error budget, and merge the budget into the store when that is due."""
    from prefect_resilience.guards.budgets.policy import count

    merge = count(budget, budget.name or str(run.identity["node_id"]), good)
    if merge is not None:
        yield Blocking(merge)
