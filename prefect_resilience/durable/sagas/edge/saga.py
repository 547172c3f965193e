"""Sagas: a rollback compensates the effects of a batch in reverse order, to its beginning or to a savepoint.

    try:
        book_flight(trip); savepoint("booked"); charge(trip)
    except Exception:
        rollback()          # or rollback(to="booked"); await arollback() in an async flow
        raise

Only one rollback of a batch runs at a time. If it is killed, the next one finishes it. The code serves both
drivers of `drive.py`.

A compensation is found by its path and called once, as an effect of its own. A `ResilientTask` records the
call itself: it gets the compensation's key, and keeps its own retries, kind and `verify`. Any other function
is called here once, within a claim.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from prefect_resilience.base.deadlines import current_deadline
from prefect_resilience.base.drive import Blocking, Command, Invoke, Steps, adrive, drive, sleep_for
from prefect_resilience.base.edge.current_settings import is_enabled
from prefect_resilience.base.process import setting
from prefect_resilience.durable.batches.batch import batch, check_batch_id
from prefect_resilience.durable.batches.edge.known import check_here
from prefect_resilience.durable.batches.edge.tags import batch_named_around, current_batch
from prefect_resilience.durable.effects.claim import EffectClaim
from prefect_resilience.durable.effects.current import OutsideRuns, in_progress
from prefect_resilience.durable.effects.keys import effect_key
from prefect_resilience.durable.effects.ledger import Ledger, open_ledger
from prefect_resilience.durable.effects.model import EffectDocument
from prefect_resilience.durable.effects.policy import Effect
from prefect_resilience.durable.effects.recipes import CodeSource
from prefect_resilience.durable.sagas import undo
from prefect_resilience.durable.sagas.compensations import (
    Compensation,
    RollbackReport,
    compensation_arguments,
    compensation_entry,
    why_in_doubt,
    why_it_stays,
)
from prefect_resilience.durable.sagas.undo import SagaLog
from prefect_resilience.errors.classify.classify import ErrorInfo, classify
from prefect_resilience.errors.exceptions import ConfigurationError, EffectBusy, InDoubt, StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.stores.base import Store
from prefect_resilience.telemetry.edge.events import emit

if TYPE_CHECKING:
    from prefect_resilience.durable.letters.kinds import Finder

PAUSE = 0.25
MAX_WAIT = 300.0


def rollback(
    batch_id: str | None = None,
    to: str | None = None,
    *,
    store: Store | str | None = None,
    max_wait: float = MAX_WAIT,
) -> RollbackReport:
    """Compensate the effects of a batch, the last one first; with `to`, only those since that savepoint, or
    since the end of another batch.

    `batch_id`: None means the batch of the current run or of the `with batch(...)` around it. The rollback
    waits for effects in progress and for another rollback of the batch, `max_wait` seconds at most. A failed
    compensation is in the report, for a person; the other compensations still run. Another rollback retries
    a failed one if it certainly did nothing. A compensated effect may be done again in the batch: as a new
    effect, with a new key.

    Raises ConfigurationError for an unknown batch or savepoint, EffectBusy when another rollback does not
    end, and StoreUnavailable: then the next rollback() continues where this one stopped. A deadline around it
    does not count.

    Example:
        >>> with batch("a-batch-without-effects"):
        ...     rollback().complete
        True
    """
    work = _rollback(batch_id, to, store, max_wait, asynchronous=False)
    with batch(work.batch_id), setting(current_deadline, None):
        return drive(work.run_steps())


async def arollback(
    batch_id: str | None = None,
    to: str | None = None,
    *,
    store: Store | str | None = None,
    max_wait: float = MAX_WAIT,
) -> RollbackReport:
    """`rollback` for async code: it does not block the event loop."""
    work = _rollback(batch_id, to, store, max_wait, asynchronous=True)
    with batch(work.batch_id), setting(current_deadline, None):
        return await adrive(work.run_steps())


def savepoint(name: str, *, batch_id: str | None = None, store: Store | str | None = None) -> float:
    """Set a savepoint of a batch: `rollback(to=name)` compensates the effects that are done after it.

    If another run of the batch sets it again, it stays where it was. A rollback to an earlier point removes
    it. Returns its time, in seconds since the epoch by the store's clock. Raises InDoubt if a rollback of the
    batch was interrupted: rollback() finishes it. Raises EffectBusy while a rollback is running.

    Example:
        >>> savepoint("before-payment", batch_id="invoices") > 0
        True
    """
    batch_id = _batch(batch_id)
    if not isinstance(name, str) or not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f'a savepoint needs a name, such as savepoint("booked"), not {name!r:.60}')
    return SagaLog(open_ledger(store), batch_id).mark(name)


def _rollback(
    batch_id: str | None, to: str | None, store: Any, max_wait: float, *, asynchronous: bool
) -> _Rollback:
    now = in_progress.get()
    named = batch_id is not None and batch_id != batch_named_around()
    batch_id = _batch(batch_id)
    if now is not None and now.batch_id == batch_id:
        raise ConfigurationError(
            f"the effect {now.key!r} rolls back its own batch while it is in progress: "
            f"call rollback() in the flow"
        )
    return _Rollback(batch_id, to, store, max_wait, asynchronous, named)


def _batch(batch_id: str | None) -> str:
    return current_batch() if batch_id is None else check_batch_id(batch_id)


@dataclass(slots=True)
class _Rollback:
    """One rollback, from the beginning to its report."""

    batch_id: str
    to: str | None
    store: Store | str | None
    max_wait: float
    asynchronous: bool
    named: bool
    """Whether the caller named the batch. Then it is checked that the batch exists."""
    claim: str = field(default_factory=lambda: uuid4().hex)
    outcomes: dict[str, list[Compensation]] = field(default_factory=dict[str, list[Compensation]])
    log: SagaLog = field(init=False)
    finder: Finder = field(init=False)

    def run_steps(self) -> Steps[RollbackReport]:
        ledger = yield Blocking(open_ledger, (self.store,))
        if self.named:
            yield Blocking(check_here, (ledger, self.batch_id))
        self.log = SagaLog(ledger, self.batch_id)
        until, begun = monotonic() + self.max_wait, False
        try:
            since = yield from self._begin(until)
            begun = True
            yield from self._wait(since, until)
            yield from self._undo(since)
            report = RollbackReport(
                self.batch_id, self.to, **{how: tuple(effects) for how, effects in self.outcomes.items()}
            )
            yield Blocking(self.log.end, (self.claim, report))
        except BaseException as error:
            if begun or not isinstance(error, Exception):
                self.log.give_up(self.claim)
            raise
        _logger().log(logging.INFO if report.complete else logging.ERROR, "%s", report)
        payload = {"to": report.to, "complete": report.complete, **report.counts}
        emit("batch.rolled-back", "batch", self.batch_id, payload)
        return report

    def _begin(self, until: float) -> Steps[float | None]:
        began = monotonic()
        while True:
            try:
                return (yield Blocking(self.log.begin, (self.claim, self.to)))
            except EffectBusy:
                if monotonic() >= until:
                    raise EffectBusy("rollback", self.batch_id, monotonic() - began) from None
            yield from sleep_for(PAUSE)

    def _wait(self, since: float | None, until: float) -> Steps[None]:
        """Wait for effects in progress, and note the effects with an unknown outcome."""
        while True:
            listed = yield Blocking(self.log.ledger.effects, (self.batch_id,))
            busy = {document["key"] for document, alive in listed if alive}
            unsettled = undo.to_undo((document for document, _ in listed), since).unsettled
            if monotonic() >= until or not any(effect["key"] in busy for effect in unsettled):
                break
            yield from sleep_for(PAUSE)
        for effect in unsettled:
            is_busy = effect["key"] in busy
            self._note(effect, "in_doubt", "it is still in progress" if is_busy else why_in_doubt(effect))

    def _undo(self, since: float | None) -> Steps[None]:
        from prefect.utilities.importtools import load_script_as_module

        from prefect_resilience.durable.letters.kinds import Finder

        self.finder = Finder(load_script_as_module)
        listed = yield Blocking(self.log.ledger.effects, (self.batch_id,))
        todo = undo.to_undo((document for document, _ in listed), since)
        for effect in todo.already:
            self._note(effect, "already")
        for effect in todo.skipped:
            self._note(effect, "skipped", why_it_stays(effect))
        fenced: list[EffectDocument] = []
        for effect in todo.effects:
            ours = yield Blocking(self.log.fence, (effect, self.claim))
            if ours is not None:
                fenced.append(ours)
        for effect in fenced:
            how, why = yield from self._compensate(effect)
            self._note(effect, how, why)

    def _note(self, effect: EffectDocument, how: str, why: str = "") -> None:
        compensation = compensation_entry(effect, why)
        self.outcomes.setdefault(how, []).append(compensation)
        if how not in _LOGGED:
            return
        level, beginning, event = _LOGGED[how]
        by = f"{compensation.function}: {compensation.why}" if compensation.why else compensation.function
        _logger().log(level, "%s: %r of batch %r by %s", beginning, compensation.key, self.batch_id, by)
        payload = {"batch_id": self.batch_id, "compensation": compensation.function}
        payload |= {name: getattr(compensation, name) for name in ("key", "generation", "external_id", "why")}
        emit(event, "effect", compensation.key, payload)

    def _compensate(self, effect: EffectDocument) -> Steps[tuple[str, str]]:
        """Compensate one fenced effect; its field of the report, and a reason or a note."""
        key = key_of_undoing(effect, self.log.batch_id)
        own: EffectDocument | None = yield Blocking(self.log.effect, (key,))
        if own is not None and own["state"] == "done":
            yield self._end(effect, "compensated")
            return "already", "by an interrupted rollback"
        try:
            yield from self._call(effect)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - the other effects must still be undone
            return (yield from self._record_failure(effect, key, error))
        yield self._end(effect, "compensated")
        return "compensated", ""

    def _end(self, effect: EffectDocument, state: str, error: dict[str, Any] | None = None) -> Command:
        """The command that records the end of a compensation."""
        step = partial(undo.end_compensation, state=state, error=error)
        return Blocking(self.log.change_effect, (effect, step))

    def _call(self, effect: EffectDocument) -> Steps[None]:
        from prefect.cache_policies import NO_CACHE

        from prefect_resilience.durable.letters.codec import Reader
        from prefect_resilience.durable.letters.kinds import Source

        source = Source(**effect["compensation"]["call"])
        function: Any = self.finder.subject(source, "")
        reader = Reader(find_module=partial(self.finder.module, source=source))
        arguments = compensation_arguments(effect, function, reader)
        guard = getattr(function, "guard", None)
        if guard is not None and is_enabled():
            own = _effect_for(effect, guard.effect)
            yield self._command(function.with_options(effect=own, cache_policy=NO_CACHE), arguments)
            return
        if hasattr(function, "task_key") and hasattr(function, "with_options"):
            # A plain Prefect task: its retries would repeat the call even if its outcome is unknown.
            function = function.with_options(retries=0, cache_policy=NO_CACHE)
        name = str(source)
        surroundings = _Here(self.log.ledger, self.log.batch_id, {"node_id": name})
        own = _effect_for(effect, None)
        claim = EffectClaim(own, function, self.asynchronous, CodeSource(name), surroundings, watchable=False)
        yield from claim.once(lambda: claim.call(lambda _: self._command(function, arguments), _classify))

    def _command(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Command:
        """The command of a call: it does not block an event loop, and runs coroutines also without a loop."""
        if not _is_async(function):
            return (Blocking if self.asynchronous else Invoke)(function, (), arguments)
        if self.asynchronous:
            return Invoke(function, (), arguments)
        return Invoke(_run_to_its_end, (function, arguments))

    def _record_failure(self, effect: EffectDocument, key: str, error: Exception) -> Steps[tuple[str, str]]:
        own: EffectDocument | None = yield Blocking(self.log.effect, (key,))
        state, brief = "failed" if own is None else own["state"], _brief(error)
        if state == "done":
            yield self._end(effect, "compensated")
            return "compensated", f"but then: {brief}"
        cause = {"code": classify(error).code, "message": brief}
        yield self._end(effect, "done" if state == "failed" else "compensating", cause)
        if state == "failed":
            return "failed", f"{brief}; the effect is not compensated"
        if isinstance(error, InDoubt):
            return "in_doubt", error.why
        return "failed", f"{brief}; whether the effect is compensated is unknown"


def key_of_undoing(effect: EffectDocument, batch_id: str) -> str:
    """The ledger's key for the compensation of an effect, which is an effect of its own."""
    return effect_key(_effect_for(effect, None), "", {}, batch_id, hasher=str).key


def _effect_for(effect: EffectDocument, own: Effect | None) -> Effect:
    """The compensation as an effect: with its own kind and `verify`, and a key for this call."""
    key = undo.compensation_key(effect).replace("{", "{{").replace("}", "}}")
    return (own or Effect()).model_copy(
        update={"key": key, "compensates": effect["key"], "compensate": None, "scope": ""}
    )


def _classify(error: BaseException) -> ErrorInfo | None:
    return classify(error) if isinstance(error, Exception) else None


def _brief(error: BaseException) -> str:
    lines = redact(str(error)).strip().splitlines()
    return f"{type(error).__name__}: {bounded(lines[0], 200)}" if lines else type(error).__name__


@dataclass(frozen=True, slots=True)
class _Here(OutsideRuns):
    """A compensation's surroundings (see `EffectSurroundings`): the rollback reports its outcome."""

    opened: Ledger
    batch: str
    identity: dict[str, Any]

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {}

    def batch_id(self) -> str:
        return self.batch

    def ledger(self) -> Ledger:
        return self.opened


# -- Prefect, for compensations and parameters that need it


def _is_async(function: Callable[..., Any]) -> bool:
    mark = getattr(function, "isasync", None)  # Prefect tasks have it
    return inspect.iscoroutinefunction(function) if mark is None else bool(mark)


def _run_to_its_end(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    from prefect.utilities.asyncutils import run_coro_as_sync

    return run_coro_as_sync(function(**arguments))


# -- logs and events

_LOGGED = {
    "compensated": (logging.INFO, "Compensated", "effect.compensated"),
    "failed": (logging.ERROR, "Not compensated, a person must act", "effect.compensation-failed"),
    "in_doubt": (logging.ERROR, "In doubt, a person must act", "effect.in-doubt"),
}
"""For each outcome: the level and the beginning of the log line, and the event."""


def _logger() -> Any:
    """The run's logger, visible in the UI; outside of runs this package's logger."""
    from prefect.exceptions import MissingContextError
    from prefect.logging import get_run_logger

    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger("prefect_resilience.effects")
