"""One attempt of a guarded call, and what follows it: another one, a fallback, or the error.

The order is fixed, outside in: fallback( retry( circuit( limits( timeout( function ))))). An effect that is
done is replayed before anything else is asked; its intention is written last, right before the call. Written
once, as sequences for the two drivers of `drive.py`; nothing here knows Prefect. What surrounds the call
(ids, log, events, where results are kept) comes in as `Surroundings`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from prefect_resilience import durable
from prefect_resilience.base.drive import Blocking, Invoke, Sequence
from prefect_resilience.calls.decomposing import decomposed
from prefect_resilience.calls.judging import RunRecord, annotate, caused_by, judged, replaced_message
from prefect_resilience.durable.effects.asking import EffectSurroundings, Replayed
from prefect_resilience.durable.effects.current import RunningCall
from prefect_resilience.durable.effects.names import NOWHERE, CodeSource
from prefect_resilience.errors.classify.classify import ErrorInfo, Rule, classify
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import InDoubt, add_note
from prefect_resilience.errors.secrets.scrub import learn_secrets, scrub_exception
from prefect_resilience.errors.taxonomy import ErrorKind
from prefect_resilience.guards import budgets, faults
from prefect_resilience.guards.circuits.guard import entering, leaving
from prefect_resilience.guards.decomposition.model import Decomposed
from prefect_resilience.guards.fallbacks.chain import Answer, Chain, Memory
from prefect_resilience.guards.fallbacks.model import Fallback, despite_doubt
from prefect_resilience.guards.limits.guarding import Limit, Ticket
from prefect_resilience.guards.limits.hedge import Hedge
from prefect_resilience.guards.limits.refusals import LimitRefused
from prefect_resilience.guards.retries.budget import bucket_of
from prefect_resilience.guards.retries.policy import Retry, Verdict
from prefect_resilience.guards.timeouts.process import acall_in_process, call_in_process
from prefect_resilience.guards.timeouts.threads import name_of
from prefect_resilience.guards.timeouts.timeout import Timeout, acall_with_deadline, call_within

if TYPE_CHECKING:
    from prefect_resilience.durable.effects.claim import Claim
    from prefect_resilience.durable.effects.policy import Effect
    from prefect_resilience.guards.budgets.policy import ErrorBudget
    from prefect_resilience.guards.circuits.breaker import CircuitBreaker
    from prefect_resilience.guards.circuits.permits import Permit
    from prefect_resilience.guards.decomposition.model import Decompose
    from prefect_resilience.guards.outputs.promise import Expect
    from prefect_resilience.guards.timeouts.process import Carriage

NO_RETRY = Retry(attempts=1)

Held = tuple[Limit, Ticket]
"""A limit that let the call in, and what is handed in when it leaves."""


@dataclass(frozen=True)
class Guard:
    """What stands around one function: small, frozen, and able to travel to another process."""

    fn: Callable[..., Any]
    isasync: bool
    retry: Retry = NO_RETRY
    circuit: CircuitBreaker | None = None
    limits: tuple[Limit, ...] = ()
    timeout: Timeout | None = None
    hedge: Hedge | None = None
    fallbacks: tuple[Fallback, ...] = ()
    rules: tuple[Rule, ...] = ()
    effect: Effect | None = None
    dead_letter: bool = False
    restart_stream: bool = False
    error_budget: ErrorBudget | None = None
    policy: str | None = None
    """The block whose options override these, as `blocks.live` knows it."""
    expect: Expect | None = None
    decompose: Decompose | None = None
    source: CodeSource = NOWHERE
    """Where the function is defined, found out where it is decorated: keys of effects name it."""

    @property
    def retrying(self) -> Retry:
        """The retries of the policy, and those that the repair of an output needs."""
        return self.retry if self.expect is None else self.expect.joined(self.retry)

    @property
    def remembers(self) -> bool:
        return bool(self.fallbacks) and any(fallback.recalls for fallback in self.fallbacks)

    def classified(self, error: BaseException) -> ErrorInfo | None:
        """What went wrong by this guard's rules; None for what is no Exception, such as a cancellation."""
        return classify(error, rules=self.rules) if isinstance(error, Exception) else None


class Surroundings(Memory, EffectSurroundings, Protocol):
    """Where a guarded call takes place. None of these may raise."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The call's arguments by name, those of a `**kwargs` beside the others."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """`node_id`, `task_run_id` and `flow_run_id`, as texts or None."""
        ...

    def known(self) -> RunRecord | None:
        """The record of this run, if something went wrong in it before."""
        ...

    def record(self, started: float) -> RunRecord:
        """The record of this run, made now if there is none."""
        ...

    def done(self) -> None:
        """The run is over: forget its record."""
        ...

    def may_retry(self, error: Exception) -> Sequence[bool]:
        """What the user's own condition says, where the policy would try again."""
        ...

    def went_well(self) -> None:
        """An attempt was made, and the function itself answered."""
        ...

    def leave_request(self, error: BaseException) -> None:
        """Keep on the error that ends this run what it had been asked to do."""
        ...

    def retrying(self, context: ErrorContext, verdict: Verdict) -> None: ...

    def replaced(self, context: ErrorContext, answer: Answer, error: BaseException) -> None: ...

    def recovered(self, record: RunRecord) -> None: ...

    def gave_up(self, context: ErrorContext, verdict: Verdict, error: BaseException) -> None: ...

    def carry_into_child(self) -> Carriage | None:
        """What the call takes along to a child process, so that it finds this run there."""
        ...


@dataclass(frozen=True, slots=True)
class Substitute:
    """The outcome of a run that a fallback answered."""

    answer: Answer
    context: ErrorContext
    message: str


def guarded(guard: Guard, here: Surroundings, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    """One attempt. Returns the value, or `Replayed`, `Decomposed` or a `Substitute`; raises the function's
    own error, noted.

    When another attempt is due, the error is raised with its verdict in the run's record, for the
    engine to wait and call again.
    """
    began = time.monotonic()
    effect = guard.effect
    claim: Claim | None = None
    if effect is not None:
        direct = guard.circuit is None and not guard.limits
        claim = durable.Claim(effect, guard.fn, guard.isasync, guard.source, here, direct)
    if guard.expect is not None and (before := here.known()) is not None:
        args, kwargs = guard.expect.told(guard.fn, args, kwargs, before.notes)
    try:
        if claim is None:
            value = yield from attempt(guard, here, args, kwargs)
        else:
            value = yield from claim.once(partial(attempt, guard, here, args, kwargs, claim))
        if guard.expect is not None:
            value = yield from as_promised(guard.expect, value)
    except Exception as error:
        outcome = yield from failed(guard, here, began, error, claim)
        if not isinstance(outcome, BaseException):
            return outcome
        if outcome is error:
            raise
        raise outcome from outcome.__cause__
    yield from succeeded(guard, here, value)
    return value


def attempt(
    guard: Guard,
    here: Surroundings,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    claim: Claim | None = None,
) -> Sequence[Any]:
    """Ask the circuit, make the call within its deadline, and tell the circuit how it went."""
    call = partial(called, guard, here, args, kwargs, claim)
    circuit = guard.circuit
    if circuit is None:
        return (yield from limited(guard, here, call))
    if circuit.fields:
        circuit = circuit.bind(here.parameters)
    permit = yield from entering(circuit)
    began = time.monotonic()
    try:
        value = yield from limited(guard, here, call)
    except BaseException as error:
        yield from told(circuit, permit, guard, began, error)
        raise
    yield from told(circuit, permit, guard, began, None)
    return value


def told(
    circuit: CircuitBreaker, permit: Permit, guard: Guard, began: float, error: BaseException | None
) -> Sequence[None]:
    """Tell the circuit how the call went; a limit of our own says nothing about the service."""
    if not isinstance(error, LimitRefused):
        info = None if error is None else guard.classified(error)
        yield from leaving(circuit, permit, error, began, info)
    elif circuit.release(permit):
        yield Blocking(circuit.flush)


def limited(guard: Guard, here: Surroundings, call: Callable[[], Sequence[Any]]) -> Sequence[Any]:
    """Make the call once every limit has let it in."""
    if not guard.limits:
        return (yield from call())
    held: list[Held] = []
    try:
        yield from let_in(guard, here, held)
        value = yield from call()
    except BaseException as error:
        yield from let_out(held, error)
        raise
    yield from let_out(held, None)
    return value


def let_in(guard: Guard, here: Surroundings, held: list[Held]) -> Sequence[None]:
    """Enter the limits in their order; what was entered is in `held`, whatever happens."""
    for limit in guard.limits:
        bound = limit.bind(here.parameters) if limit.fields else limit
        held.append((bound, (yield from bound.entered())))


def let_out(held: list[Held], error: BaseException | None) -> Sequence[None]:
    """Leave the limits, the last one first."""
    while held:
        limit, ticket = held.pop()
        yield from limit.left(ticket, error)


def called(
    guard: Guard,
    here: Surroundings,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    claim: Claim | None,
) -> Sequence[Any]:
    make = partial(the_call, guard, here, args, kwargs)
    if claim is None:
        return (yield make())
    return (yield from claim.called(make, guard.classified))


def the_call(
    guard: Guard,
    here: Surroundings,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    running: RunningCall | None = None,
) -> Invoke:
    """The user's function within its deadline, as a command. `running` is told when it begins and ends."""
    timeout = guard.timeout
    own = guard.fn if not faults.active else function_with_faults(guard, here)
    in_child = timeout is not None and timeout.total is not None and timeout.mode == "process"
    if running is not None and not in_child:
        own = running.watched(own, isasync=guard.isasync)
    fn = own if guard.hedge is None else guard.hedge.within(own, guard.limits, here.parameters)
    if timeout is None or timeout.total is None:
        return Invoke(fn, args, kwargs)
    if in_child:
        run = acall_in_process if guard.isasync else call_in_process
        begun = None if running is None else running.in_child()
        options = {"carriage": here.carry_into_child(), "begun": begun}
        return Invoke(run, (guard.fn, args, kwargs, timeout.total), options)
    if guard.isasync:
        made = partial(fn, *args, **kwargs)
        return Invoke(acall_with_deadline, (made, timeout.total), {"what": name_of(guard.fn)})
    return Invoke(call_within, (timeout, own, args, kwargs))


def function_with_faults(guard: Guard, here: Surroundings) -> Callable[..., Any]:
    """The user's function with what `testing.inject` does to it."""
    names = [str(here.identity["node_id"])]
    if guard.circuit is not None:
        names.append(guard.circuit.bind(here.parameters).name)
    return faults.with_faults(guard.fn, guard.isasync, *names)


def succeeded(guard: Guard, here: Surroundings, value: Any) -> Sequence[None]:
    record = here.known()
    if record is not None:
        if record.history:
            here.recovered(record)
        here.done()
    elif guard.retry.budget is not None:
        bucket_of(guard.retry.budget, time.monotonic()).earn()
    if not isinstance(value, Replayed):
        here.went_well()
    if guard.error_budget is not None:
        yield from counted(guard.error_budget, here, good=True)
    if guard.remembers and not isinstance(value, Replayed):
        yield Blocking(here.remember, (value,))


def failed(
    guard: Guard, here: Surroundings, began: float, error: Exception, claim: Claim | None = None
) -> Sequence[Substitute | Decomposed | Replayed | BaseException]:
    """What follows a failed attempt: what its parts came to, the answer of a fallback, or the error to raise,
    free of secrets.

    It is raised both for another attempt and for good; the run's record says which.
    """
    learn_secrets(here.parameters)
    clean = scrub_exception(error)
    context, verdict = yield from judged(guard, here, began, clean, claim)
    if verdict.retry:
        here.retrying(context, verdict)
        return clean
    may_repeat = claim is None or not claim.bars_fallbacks
    if guard.decompose is not None and context.kind is ErrorKind.RESOURCE and may_repeat:
        outcome = yield from decomposed(guard, cast("Any", here), context, cast("Exception", clean))
        if isinstance(outcome, Decomposed):
            yield from done_in_parts(guard, here, outcome)
            return outcome
        clean, context = outcome.error, outcome.context
    doubt: InDoubt | None = None
    if claim is not None and not isinstance(error, InDoubt):
        known = yield from claim.doubted()
        if isinstance(known, Replayed):
            here.done()
            if guard.error_budget is not None:
                yield from counted(guard.error_budget, here, good=True)
            return known
        doubt = known
    steps = guard.fallbacks if claim is None or not claim.bars_fallbacks else despite_doubt(guard.fallbacks)
    chain = Chain(steps, guard.fn, guard.isasync)
    answer = yield from chain.answer(here.parameters, context, here)
    here.done()
    if (budget := guard.error_budget) is not None:
        good = answer is not None and not (answer.fallback.degraded and budget.degraded_counts)
        yield from counted(budget, here, good)
    if answer is not None:
        here.replaced(context, answer, clean)
        return Substitute(answer, context, replaced_message(context, answer))
    raised = clean if doubt is None else caused_by(doubt, clean, context)
    annotate(raised, context, verdict, chain)
    if claim is not None and claim.overdue:
        add_note(
            raised, f"prefect-resilience: the call still runs, and the effect {claim.key!r} waits for its end"
        )
    here.gave_up(context, verdict, raised)
    here.leave_request(raised)
    return raised


def as_promised(expect: Expect, value: Any) -> Sequence[Any]:
    """The value, checked. An effect that is done stays done, whatever its result looks like."""
    if not isinstance(value, Replayed):
        return (yield from expect.checked(value))
    return replace(value, value=(yield from expect.checked(value.value)))


def done_in_parts(guard: Guard, here: Surroundings, outcome: Decomposed) -> Sequence[None]:
    here.done()
    if guard.error_budget is not None:
        good = not (outcome.degraded and guard.error_budget.degraded_counts)
        yield from counted(guard.error_budget, here, good)
    if guard.remembers and not outcome.replaced:
        yield Blocking(here.remember, (outcome.value,))


def counted(budget: ErrorBudget, here: Surroundings, good: bool) -> Sequence[None]:
    """Count a run that has ended in its error budget, and merge that into the store when it is due."""
    merge = budgets.count(budget, budget.name or str(here.identity["node_id"]), good)
    if merge is not None:
        yield Blocking(merge)
