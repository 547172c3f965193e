"""A flow run that parks: its long waits are collected, and after the flow function has ended the run parks.

A task with a long wait ends as `Cancelled`, named Parked, and tasks that do not need its result go on.
`RunParks` is no `Exception`, so that no handler of the user takes it for a failure.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import Pause
from prefect.logging.loggers import flow_run_logger
from prefect.results import should_persist_result
from prefect.states import Cancelled
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.tasks import Task

from prefect_resilience.base.deadlines import CallDeadline
from prefect_resilience.base.process import setting
from prefect_resilience.base.text import utc_text
from prefect_resilience.durable.batches.parked import LEAD, PARKED, ParkedRun
from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.errors.context import ErrorContext, attached_context
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.errors.taxonomy import ErrorCategory
from prefect_resilience.guards.retries.policy import Retry, Verdict
from prefect_resilience.guards.timeouts.threads import overdue_calls
from prefect_resilience.tasks.edge.seams import wait_for_submitted
from prefect_resilience.telemetry.edge.call_totals import send_totals

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

    from prefect_resilience.guards.circuits.breaker import CircuitBreaker

SOON = 1.0
"""Seconds until a half-open circuit has the result of its probe."""
NO_DEPLOYMENT = (
    "park_after needs a deployment and a worker (or serve), which run the flow again after the wait: deploy "
    "the flow, or leave out park_after"
)
NO_THREADS = "park_after needs the ThreadPoolTaskRunner: tasks in other processes cannot be waited for"
RUN_AGAIN = (
    "If this run parks, these tasks run again, because they have neither an effect nor a stored result: %s. "
    "Write persist_result=True or effect="
)


class RunParks(Pause):
    """Ends the flow function, and the functions around the call, because the run parks."""


@dataclass(frozen=True, slots=True)
class LongWait:
    """A wait of one call: until when, and why. `by_service`: a service said when it will be back."""

    until: float
    why: str
    circuit: str | None = None
    by_service: bool = False


class Opening(NamedTuple):
    """A circuit that rejects calls, and for how many seconds."""

    circuit: str | None
    rest: float


@dataclass(eq=False)
class Parking:
    """The long waits in one pass of a flow run. `latest`: the run waits until then at most. `outer`: those of
    the flow around a subflow. `limit`: the deadline around the flow function."""

    policy: Retry | None
    latest: float
    earlier: ParkedRun | None = None
    outer: Parking | None = None
    limit: CallDeadline | None = None
    waits: list[LongWait] = field(default_factory=list[LongWait])

    @property
    def parks(self) -> int:
        """How often the run was parked."""
        return 0 if self.earlier is None else self.earlier.parks

    def wait_of(
        self, name: str, context: ErrorContext, verdict: Verdict | None, opening: Opening | None = None
    ) -> LongWait | None:
        """The wait by which this failure parks the run; None if it does not. `opening`: the circuit that
        would reject a further attempt."""
        assert self.policy is not None
        assert self.policy.park_after is not None
        if context.category is ErrorCategory.CIRCUIT_OPEN:
            opening = Opening(context.circuit, context.retry_after or 0.0)
        if verdict is not None and verdict.retry:
            seconds, long = verdict.delay, verdict.delay > max(self.policy.park_after, LEAD)
        else:
            seconds = max(context.retry_after or 0.0, 0.0 if opening is None else opening.rest)
            long = seconds > 0 if opening else context.retryable and seconds > self.policy.park_after
        if not long or time.time() + seconds > self.latest:
            return None
        by_service = context.category is not ErrorCategory.CIRCUIT_OPEN and context.retry_after is not None
        circuit = None if opening is None else opening.circuit
        wait = LongWait(time.time() + seconds, f"{name}: {context.summary()}", circuit, by_service)
        self.waits.append(wait)
        return wait

    def note_failure(self, name: str, error: Exception) -> None:
        """The flow fails with an error of its own code. A task has decided about its own errors."""
        context = attached_context(error)
        if context is None or context.task_run_id is None:
            self.wait_of(name, ErrorContext.from_info(classify(error), timestamp=datetime.now(UTC)), None)


current_parking: ContextVar[Parking | None] = ContextVar("prefect_resilience_parking", default=None)
"""The long waits of the flow run around this code."""


def opening_of(circuit: CircuitBreaker) -> Opening | None:
    """The rest of the time for which a circuit rejects calls; None if it makes them. Asks the store."""
    shown = circuit.snapshot()
    if shown.state == "half_open":
        return Opening(shown.name, SOON)
    if shown.state != "open" or shown.retry_at is None:
        return None
    return Opening(shown.name, max(shown.retry_at - time.time(), SOON))


def state_while_parked(wait: LongWait | None, error: BaseException) -> State[Any] | None:
    """The state of a task run that waits for its flow run to go on; None after any other error."""
    if wait is None and not isinstance(error, RunParks):
        return None
    when = "" if wait is None else f" until {utc_text(wait.until)}: {wait.why}"
    return Cancelled(name=PARKED, message=f"Its flow run parks{when}")


def raise_if_parked(outcome: Any) -> None:
    """Raise RunParks if the outcome of a task's call is the state of a parked task run."""
    if isinstance(outcome, State) and outcome.name == PARKED and outcome.is_cancelled():
        raise RunParks(outcome.message)


def begin_parking(policy: Retry | None, context: FlowRunContext, fn: Callable[..., Any]) -> Parking:
    """The waits of the pass that begins. Without a policy, only SIGTERM parks the run. May block."""
    outer, run = current_parking.get(), context.flow_run
    assert run is not None
    if outer is not None:
        return Parking(outer.policy, outer.latest, outer=outer)
    if policy is None:
        return Parking(None, 0.0, note_return(run) if run.run_count > 1 else None)
    if run.deployment_id is None:
        raise ConfigurationError(NO_DEPLOYMENT)
    if not isinstance(context.task_runner, ThreadPoolTaskRunner):
        raise ConfigurationError(NO_THREADS)
    if run.run_count <= 1 and (names := [*tasks_that_run_again(fn)]):
        flow_run_logger(flow_run=run).warning(RUN_AGAIN, ", ".join(map(repr, names)))
    earlier = note_return(run)
    since = time.time() if earlier is None else earlier.since
    return Parking(policy, since + policy.max_parked, earlier)


def note_return(run: FlowRun) -> ParkedRun | None:
    """A pass of the run begins: what the store keeps of its parking. May block."""
    from prefect_resilience.durable.batches.decisions import ApiUnavailable
    from prefect_resilience.durable.batches.edge import parking

    log, earlier = flow_run_logger(flow_run=run), None
    try:
        earlier = parking.read_parked(str(run.id))
        if earlier is not None and earlier.is_open:
            parking.begin_pass(earlier)
            log.info("Goes on after it was parked at %s: %s", utc_text(earlier.at), earlier.why)
    except (StoreUnavailable, ApiUnavailable) as failure:
        log.warning("Whether this run, and those behind it, were parked is unknown: %s", failure)
    return earlier


def tasks_that_run_again(fn: Callable[..., Any]) -> Iterator[str]:
    """The names of the tasks in a flow's code that a later pass runs again, though they are done."""
    plain: Any = inspect.unwrap(fn)
    by_default = should_persist_result()
    names, codes = set[str](), [plain.__code__]
    while codes:
        code: CodeType = codes.pop()
        names |= {*code.co_names}
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    scope: dict[str, Any] = {**plain.__globals__, **inspect.getclosurevars(plain).nonlocals}
    for name in sorted(names | {*plain.__code__.co_freevars}):
        task: Any = scope.get(name)
        if not isinstance(task, Task) or getattr(getattr(cast("Any", task), "guard", None), "effect", None):
            continue
        persists = by_default if task.persist_result is None else task.persist_result
        if not persists or task.cache_policy in (None, NO_CACHE):
            yield task.name


@contextmanager
def parking_around(parking: Parking | None, context: FlowRunContext) -> Generator[None, None, None]:
    """Park the run at the end of the block if a call in it has a long wait."""
    if parking is None or parking.policy is None:
        yield
        return
    run = context.flow_run
    assert run is not None
    with setting(current_parking, parking):
        try:
            yield
        except BaseException as error:
            if isinstance(error, Exception):
                parking.note_failure(run.name, error)
            if not parking.waits or not _ends_the_function(error):
                raise
    if not parking.waits:
        return
    wait_for_submitted(context)
    if parking.outer is not None:
        parking.outer.waits += parking.waits
        raise RunParks("its flow run parks")
    send_totals(ended=run.id)
    raise RunParks(state=park_run(parking, context))


def _ends_the_function(error: BaseException) -> bool:
    """Whether the function has ended by itself, and not because its run is cancelled or its process ends."""
    if isinstance(error, BaseExceptionGroup):
        members = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return all(_ends_the_function(member) for member in members)
    return isinstance(error, Exception | RunParks)


def park_run(parking: Parking, context: FlowRunContext) -> State[Any] | None:
    """Set the run to Parked; None if the API rejected that, as for a cancelled run."""
    from prefect_resilience.durable.batches.edge.parking import park_when_possible

    run, earlier = context.flow_run, parking.earlier
    assert run is not None
    longest = max(parking.waits, key=lambda wait: wait.until)
    while overdue_calls() and time.time() < longest.until - LEAD:
        time.sleep(0.5)  # the call of a task that timed out still runs in its thread
    now = time.time()
    parked = ParkedRun(
        flow_run_id=str(run.id),
        name=run.name,
        flow=context.flow.name if context.flow is not None else "",
        why=longest.why,
        until=longest.until,
        at=now,
        since=now if earlier is None else earlier.since,
        parks=parking.parks + 1,
        circuit=longest.circuit,
        not_before=max((wait.until for wait in parking.waits if wait.by_service), default=None),
    )
    return park_when_possible(parked, parking.latest, parking.limit, flow_run_logger(flow_run=run))
