"""An agent outside of runs: the same guard, without Prefect's API."""

from __future__ import annotations

import inspect
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from uuid import uuid4

from prefect.context import TaskRunContext
from prefect.utilities.callables import explode_variadic_parameter, parameters_to_args_kwargs
from prefect.utilities.hashing import hash_objects

from prefect_resilience.base.drive import Blocking, Steps, adrive, drive, slept
from prefect_resilience.base.process import setting
from prefect_resilience.calls.attempt import guarded
from prefect_resilience.calls.judging import retry_told
from prefect_resilience.calls.model import Guard, RunRecord, Substitute
from prefect_resilience.durable.effects.current import OutsideRuns
from prefect_resilience.durable.effects.ledger import Ledger, open_ledger
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.guards.decomposition.model import Decomposed, stood_in
from prefect_resilience.guards.fallbacks import Answer
from prefect_resilience.guards.partials import Carried, Notes, add_notes_source, carried
from prefect_resilience.guards.retries.backoff import pause
from prefect_resilience.guards.retries.policy import Verdict
from prefect_resilience.guards.timeouts.process import Carriage
from prefect_resilience.tasks.edge.answers import with_changes
from prefect_resilience.telemetry.edge.events import fallback_used, retry_scheduled, run_failed, run_recovered
from prefect_resilience.telemetry.metrics import attempt_succeeded

logger: logging.Logger = logging.getLogger("prefect_resilience.agents")

MOST_REMEMBERED = 1_000


class Memories:
    """The newest 1,000 good results of one chain in this process, by the call's arguments."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[float, Any]] = OrderedDict()

    def keep(self, key: str | None, value: Any) -> None:
        if key is None:
            return
        self._kept[key] = (time.monotonic(), value)
        self._kept.move_to_end(key)
        while len(self._kept) > MOST_REMEMBERED:
            self._kept.popitem(last=False)

    def find(self, key: str | None, max_age: float | None) -> Any:
        """Raises LookupError if there is none, or if it is too old."""
        if key is None or key not in self._kept:
            raise LookupError("no earlier result is kept for these arguments")
        at, value = self._kept[key]
        age = time.monotonic() - at
        if max_age is not None and age > max_age:
            raise LookupError(f"the last good result is {age:.0f} s old, and may be {max_age:g} s at most")
        return value


@dataclass(eq=False)
class Alone(OutsideRuns):
    """The context of an agent outside of runs (see `calls.model.RunContext`)."""

    name: str
    guard: Guard
    given: Mapping[str, Any]
    """The call's arguments; those of `**kwargs` are one mapping under its name."""
    memories: Memories
    _record: RunRecord | None = None
    _carried: Carried | None = None
    """The notes that a child process got."""
    _key: str = field(default_factory=lambda: uuid4().hex)

    @property
    def parameters(self) -> Mapping[str, Any]:
        return explode_variadic_parameter(self.guard.fn, dict(self.given))

    @property
    def identity(self) -> dict[str, Any]:
        return {"node_id": self.name, "task_run_id": None, "flow_run_id": None}

    def known(self) -> RunRecord | None:
        return self._record

    def record(self, started: float) -> RunRecord:
        self._record = self._record or RunRecord(started)
        if not self._record.history:  # nested code may have created it after the attempt began
            self._record.started = min(self._record.started, started)
        if self._carried is not None:
            self._carried.read(self._record.notes)
            self._carried = None
        return self._record

    def done(self) -> None:
        self._record = None

    def may_retry(self, error: Exception) -> Steps[bool]:
        return True
        yield  # makes it a generator

    def went_well(self) -> None:
        attempt_succeeded(self.name)

    def leave_request(self, error: BaseException) -> None:
        return

    def retrying(self, context: ErrorContext, verdict: Verdict) -> None:
        logger.warning("%s: %s", self.name, retry_told(cast(RunRecord, self.known()), context, verdict))
        retry_scheduled(self.name, context, verdict)

    def replaced(self, context: ErrorContext, answer: Answer, error: BaseException) -> None:
        stood_in(self.guard.fn, answer.fallback.name, answer.fallback.degraded)
        logger.warning(
            "%s answered instead of %s, after: %s", answer.fallback.name, self.name, context.summary()
        )
        fallback_used(self.name, context, answer.fallback)

    def recovered(self, record: RunRecord) -> None:
        logger.info("%s: Recovered at attempt %s", self.name, len(record.history) + 1)
        run_recovered(self.name, self.identity, record.history, time.monotonic() - record.started)

    def gave_up(self, context: ErrorContext, verdict: Verdict, error: BaseException) -> None:
        logger.error("%s: Giving up (%s): %s", self.name, verdict.why, context.summary())
        run_failed(self.name, context, verdict)

    def remember(self, value: Any) -> None:
        self.memories.keep(self._memory_key(), value)

    def recall(self, max_age: float | None) -> Any:
        return self.memories.find(self._memory_key(), max_age)

    def _memory_key(self) -> str | None:
        return hash_objects(self.name, dict(self.parameters))

    def carry_into_child(self) -> Carriage:
        self._carried = notes = carried(None if self._record is None else self._record.notes)

        def heard(kept: bytes) -> None:
            notes.left = kept

        return Carriage(_InChild(notes), heard)

    # Decomposition: each part calls the same agent again.

    def part(self, changes: Mapping[str, Any], label: str, without_tags: set[str]) -> Callable[[], Any]:
        args, kwargs = parameters_to_args_kwargs(
            self.guard.fn, with_changes(self.guard.fn, self.given, changes)
        )
        ask = partial(alone, f"{self.name}[{label}]", self.guard, self.memories, args, kwargs)
        if not self.guard.isasync:
            return lambda: _value(drive(ask()))

        async def aask() -> Any:
            return _value(await adrive(ask()))

        return aask

    def limited_tags(self) -> set[str]:
        return set()

    def dividing(self, context: ErrorContext, parts: int, depth: int, most: int) -> None:
        told = (self.name, parts, depth, most, context.summary())
        logger.warning("%s: Decomposing into %s parts at depth %s of at most %s, after: %s", *told)

    # Agents have no effects: their guard never asks for these.

    def batch_id(self) -> str:
        return self._key

    def ledger(self) -> Ledger:
        return open_ledger()

    def keep(self, reference: str, value: Any) -> str | None:
        return None


Source = Callable[[bool], Notes | None]

_source: ContextVar[Source | None] = ContextVar("prefect_resilience_alone", default=None)
"""The notes of the agent that runs here."""


def _notes_here(make: bool) -> Notes | None:
    source = _source.get()
    # A run inside an agent has notes of its own, or none.
    return None if source is None or TaskRunContext.get() is not None else source(make)


add_notes_source(_notes_here)


def _with_notes(here: Alone) -> AbstractContextManager[None]:
    def notes(make: bool) -> Notes | None:
        record = here.record(time.monotonic()) if make else here.known()
        return None if record is None else record.notes

    return setting(_source, notes)


@dataclass(frozen=True)
class _InChild:
    """Calls a function for an agent in a child process."""

    carried: Carried

    def __call__(self, call: Callable[[], Any], tell: Callable[[Any], None]) -> Any:
        notes = self.carried.unpacked(tell)
        _source.set(lambda make: notes)
        return call()


def alone(
    name: str, guard: Guard, memories: Memories, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Steps[Any]:
    """Call an agent with its retries, circuit, deadline and fallbacks: its value or `Substitute`.

    Raises the function's own error. In an event loop, a plain function runs in a thread.
    """
    bound = inspect.signature(guard.fn).bind(*args, **kwargs)
    bound.apply_defaults()
    here = Alone(name, guard, bound.arguments, memories)
    while True:
        try:
            with _with_notes(here):
                if guard.isasync:
                    return (yield from guarded(guard, here, args, kwargs))
                return (yield Blocking(_in_place, (guard, here, args, kwargs)))
        except Exception as error:
            record = here.known()
            if (
                record is None
                or record.error is not error
                or record.verdict is None
                or not record.verdict.retry
            ):
                raise
            delay = record.verdict.delay
        yield from slept(pause(delay))


def _value(outcome: Any) -> Any:
    """The value of a part, from the agent or a substitute."""
    if isinstance(outcome, Substitute):
        return outcome.answer.value
    return outcome.value if isinstance(outcome, Decomposed) else outcome


def _in_place(guard: Guard, here: Alone, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any | Substitute:
    return drive(guarded(guard, cast("Any", here), args, kwargs))
