"""A guarded call without a task run: its surroundings, and its attempts one after the other.

Inside a flow run it counts in the run's totals and logs to the run; its effects belong to the run's batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from functools import partial
from inspect import signature
from logging import WARNING
from typing import TYPE_CHECKING, Any, ClassVar

from prefect_resilience.base.drive import Blocking, Steps, adrive, drive, sleep_unless
from prefect_resilience.base.edge.current_settings import run_contexts
from prefect_resilience.base.naming import digest
from prefect_resilience.base.process import setting
from prefect_resilience.base.wrapping import by_name
from prefect_resilience.calls.attempt import make_attempt, next_verdict
from prefect_resilience.calls.edge.reports import ReportingRun, run_here, say
from prefect_resilience.calls.model import Decomposed, Guard, RunRecord, Substitute
from prefect_resilience.calls.spans import call_span
from prefect_resilience.durable.effects.current import Replayed
from prefect_resilience.errors.context import name_rejecting_guard
from prefect_resilience.errors.secrets.redact import add_note, redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.guards.fallbacks import Memories
from prefect_resilience.guards.partials import Carried, Notes, add_notes_source, carry
from prefect_resilience.guards.retries.backoff import pause
from prefect_resilience.guards.timeouts.threads import is_abandoned
from prefect_resilience.telemetry.metrics import attempt_succeeded, count
from prefect_resilience.telemetry.payloads import CallReport

if TYPE_CHECKING:
    from prefect.context import TaskRunContext

    from prefect_resilience.durable.effects.model import Pass
    from prefect_resilience.guards.timeouts.process_mode import Carriage
    from prefect_resilience.telemetry.edge.call_totals import CallTotals

_BY_LEDGER = frozenset({"RepeatedEffect", "EffectKeyReused", "EffectBusy", "NotRecorded"})
"""Errors with which an effect is not sent: the function was not called."""


LONGEST_ERROR = 200
"""The most characters of the last error in a function's totals."""


class LocalRun(ReportingRun):
    """The surroundings of one call (see `calls.model.RunContext`)."""

    __slots__ = (
        *("name", "guard", "args", "kwargs", "memories", "around"),
        *("carried", "span", "_record", "_given", "totals"),
    )

    may_go_on = True
    emit: ClassVar[staticmethod[..., None]] = staticmethod(count)

    def __init__(
        self,
        name: str,
        guard: Guard,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        memories: Memories | None = None,
    ) -> None:
        self.name: str = name
        self.guard: Guard = guard
        self.args = args
        self.kwargs = kwargs
        self.memories = memories
        flow, around = run_contexts()
        self.around: TaskRunContext | None = around
        self._record: RunRecord | None = None
        self._given: Mapping[str, Any] | None = None
        self.carried: Carried | None = None
        self.span: Any = None
        self.totals: CallTotals | None = _totals_here(name) if around or flow else None

    @property
    def given(self) -> Mapping[str, Any]:
        """The call's arguments with defaults; those of `**kwargs` are one mapping under its name."""
        if self._given is None:
            bound = self.guard.signature.bind(*self.args, **self.kwargs)
            bound.apply_defaults()
            self._given = bound.arguments
        return self._given

    @property
    def parameters(self) -> Mapping[str, Any]:
        return by_name(self.guard.signature, self.given)

    @property
    def identity(self) -> dict[str, Any]:
        task_run, flow_run = run_here()
        return {
            "node_id": self.name,
            "task_run_id": None if task_run is None else str(task_run),
            "flow_run_id": None if flow_run is None else str(flow_run),
        }

    def record_so_far(self) -> RunRecord | None:
        return self._record

    def record(self, started: float) -> RunRecord:
        self._record = self._record or RunRecord(started)
        return self.add_attempt_start(self._record, started)

    def close_record(self) -> None:
        self._record = None

    # The log, the metrics, and the totals of the flow run.

    def log(self, report: CallReport) -> None:
        # With one attempt only, an outer guard may still retry the call.
        single = report.failure is not None and report.failure.max_attempts == 1
        level = WARNING if single else report.level
        say(level, (self.name, *report.kind), f"{self.name}: {report.line}")

    def report(self, report: CallReport) -> None:
        super().report(report)
        if self.totals is None or (report.failure is None and not report.totals):
            return
        totals, error = [*report.totals], None
        if (context := report.failure) is not None:
            by = name_rejecting_guard(context.category, context.exception_type)
            rejected = by or str(context.exception_type).rpartition(".")[2] in _BY_LEDGER
            totals.append("rejected" if rejected else "attempts")
            error = bounded(redact(context.summary()), LONGEST_ERROR)
        self.totals.add(*totals, error=error)

    def went_well(self) -> None:
        self._record = None
        attempt_succeeded(self.name)
        if self.totals is not None:
            self.totals.good()

    # Results, notes and parts.

    def remember(self, value: Any) -> None:
        if self.memories is not None:
            self.memories.keep(self._memory_key(), value)

    def recall(self, max_age: float | None) -> Any:
        if self.memories is None:
            raise LookupError("no earlier result is stored")
        return self.memories.find(self._memory_key(), max_age)

    def _memory_key(self) -> str | None:
        """A digest of the arguments; None if they cannot be compared."""
        from prefect_resilience.durable.effects.keys import short_digest

        return short_digest(dict(self.parameters), digest)

    def carry_into_child(self) -> Carriage:
        from prefect_resilience.guards.timeouts.process_mode import Carriage

        self.carried = notes = carry(None if self._record is None else self._record.notes)
        return Carriage(partial(_call_in_child, notes), partial(setattr, notes, "packed"))

    def part(self, changes: Mapping[str, Any], label: str, without_tags: set[str]) -> Callable[[], Any]:
        args, kwargs = _change_arguments(self.guard.fn, self.args, self.kwargs, changes)
        part = LocalRun(f"{self.name}[{label}]", self.guard, args, kwargs, self.memories)
        driver: Callable[[Steps[Any]], Any] = adrive if self.guard.isasync else drive
        return lambda: driver(call_guarded(part))

    # The interface for effects.

    def batch_id(self) -> str:
        from prefect_resilience.durable.batches.edge.tags import current_batch

        return current_batch()

    def passed(self) -> Pass:
        from prefect_resilience.durable.batches.edge.tags import pass_here

        return pass_here()


def _change_arguments(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], changes: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with other values for some of them.

    Each is passed as it was: a function that wraps another one may accept them by name only.
    """
    changed, named = [*args], {**kwargs, **changes}
    for index, (name, own) in enumerate(signature(fn).parameters.items()):
        if name in changes and own.kind is own.VAR_POSITIONAL:
            changed[index:] = named.pop(name)
        elif name in changes and index < len(args) and name not in kwargs:
            changed[index] = named.pop(name)
    return tuple(changed), named


def _totals_here(function: str) -> CallTotals | None:
    from prefect_resilience.telemetry.edge.call_totals import totals_here

    return totals_here(function)


def call_guarded(run: LocalRun, first: Steps[Any] | None = None) -> Steps[Any]:
    """Call with all guards, attempt after attempt; the value. `first` ends a first attempt that failed."""
    return value_of((yield from outcome_of(run, first)))


def outcome_of(run: LocalRun, first: Steps[Any] | None = None, *, threaded: bool = False) -> Steps[Any]:
    """As `call_guarded`, but the outcome of `calls.attempt.make_attempt`. With `threaded`, a plain function
    runs in a thread under `adrive`."""
    guard = run.guard
    with call_span(run), setting(current_call, run):
        while True:
            try:
                if threaded and not guard.isasync:
                    return (yield Blocking(drive, (make_attempt(guard, run, run.args, run.kwargs),)))
                steps, first = first or make_attempt(guard, run, run.args, run.kwargs), None
                return (yield from steps)
            except Exception as error:
                if (delay := delay_after(run, error)) is None:
                    raise
                failure = error
            try:
                yield from pause_before_retry(run, delay, failure)
            finally:
                del failure  # see `calls.attempt.end_attempt`


def delay_after(run: LocalRun, error: BaseException) -> float | None:
    """Seconds until the next attempt; None if the error is final."""
    verdict = next_verdict(run, error)
    return None if verdict is None else verdict.delay


def pause_before_retry(run: LocalRun, delay: float, error: BaseException) -> Steps[None]:
    """Wait for the next attempt. Raises the error at once if the attempt around this call has been abandoned,
    because its result would not be read."""
    began = time.monotonic()
    going_on = yield from sleep_unless(pause(delay), is_abandoned)
    if run.totals is not None:
        run.totals.add(waited=time.monotonic() - began)
    if not going_on:
        add_note(error, "prefect-resilience: not retried, because the attempt around this call has ended")
        raise error


def value_of(outcome: Any) -> Any:
    """The value of a call, from the function itself, the ledger, its parts or a substitute."""
    if isinstance(outcome, Substitute):
        return outcome.answer.value
    return outcome.value if isinstance(outcome, Decomposed | Replayed) else outcome


# The notes of the current call, for `keep_partial` and `previous_partial`.

current_call: ContextVar[LocalRun | None] = ContextVar("prefect_resilience_local_run", default=None)
_notes_of_parent: ContextVar[Notes | None] = ContextVar("prefect_resilience_notes_of_parent", default=None)
"""In a child process: the notes of the call in its parent."""


def make_current(run: LocalRun) -> Token[LocalRun | None]:
    """Make this the current call. A function, because a decorated function that is pickled by value takes
    along what it refers to, and a context variable cannot be pickled."""
    return current_call.set(run)


def _notes_here(make: bool) -> Notes | None:
    run = current_call.get()
    if run is None:
        return _notes_of_parent.get()
    # A task run inside the call has notes of its own, or none.
    return run.notes(make) if run_contexts()[1] is run.around else None


add_notes_source(_notes_here, first=True)


def _call_in_child(carried: Carried, call: Callable[[], Any], tell: Callable[[Any], None]) -> Any:
    _notes_of_parent.set(carried.unpack(tell))
    return call()
