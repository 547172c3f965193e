"""Sagas: a rollback compensates the effects of a batch in reverse order, to its beginning or to a savepoint.

    try:
        book_flight(trip); savepoint("booked"); charge(trip)
    except Exception:
        rollback()          # or rollback(to="booked"); await arollback() in an async flow
        raise

Only one rollback of a batch runs at a time. If it is killed, the next one finishes it. The code serves both
drivers of `drive.py`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from time import monotonic
from typing import Any
from uuid import uuid4

from prefect_resilience.base.drive import Blocking, Steps, adrive, drive, sleep_for
from prefect_resilience.durable.batches.batch import batch, check_batch_id, explicit_batch
from prefect_resilience.durable.batches.edge.known import check_here
from prefect_resilience.durable.effects.current import in_progress
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.effects.model import EffectDocument
from prefect_resilience.durable.sagas import undo
from prefect_resilience.durable.sagas.compensations import (
    Compensation,
    RollbackReport,
    compensation_entry,
    why_in_doubt,
    why_it_stays,
)
from prefect_resilience.durable.sagas.edge.compensating import Compensating
from prefect_resilience.durable.sagas.undo import SagaLog
from prefect_resilience.errors.exceptions import ConfigurationError, EffectBusy
from prefect_resilience.stores.base import Store
from prefect_resilience.telemetry.edge.events import emit

SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
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
    end, and StoreUnavailable: then the next rollback() continues where this one stopped.

    Example:
        >>> with batch("a-batch-without-effects"):
        ...     rollback().complete
        True
    """
    work = _rollback(batch_id, to, store, max_wait, asynchronous=False)
    with batch(work.batch_id):
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
    with batch(work.batch_id):
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
    named = batch_id is not None and batch_id != explicit_batch()
    batch_id = _batch(batch_id)
    if now is not None and now.batch_id == batch_id:
        raise ConfigurationError(
            f"the effect {now.key!r} rolls back its own batch while it is in progress: "
            f"call rollback() in the flow"
        )
    return _Rollback(batch_id, to, store, max_wait, asynchronous, named)


def _batch(batch_id: str | None) -> str:
    if batch_id is not None:
        return check_batch_id(batch_id)
    # Imported here, because tags imports this package.
    from prefect_resilience.durable.batches.edge.tags import current_batch

    return current_batch()


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

    def run_steps(self) -> Steps[RollbackReport]:
        ledger = yield Blocking(open_ledger, (self.store,))
        if self.named:
            yield Blocking(check_here, (ledger, self.batch_id))
        log = SagaLog(ledger, self.batch_id)
        until, begun = monotonic() + self.max_wait, False
        try:
            since = yield from self._begin(log, until)
            begun = True
            yield from self._wait(log, since, until)
            yield from self._undo(log, since)
            report = RollbackReport(
                self.batch_id, self.to, **{how: tuple(effects) for how, effects in self.outcomes.items()}
            )
            yield Blocking(log.end, (self.claim, report))
        except BaseException as error:
            if begun or not isinstance(error, Exception):
                log.give_up(self.claim)
            raise
        _tell_of(report)
        return report

    def _begin(self, log: SagaLog, until: float) -> Steps[float | None]:
        pause, began = SHORTEST_PAUSE, monotonic()
        while True:
            try:
                return (yield Blocking(log.begin, (self.claim, self.to)))
            except EffectBusy:
                if monotonic() >= until:
                    raise EffectBusy("rollback", self.batch_id, monotonic() - began) from None
            yield from sleep_for(pause)
            pause = min(1.5 * pause, LONGEST_PAUSE)

    def _wait(self, log: SagaLog, since: float | None, until: float) -> Steps[None]:
        """Wait for effects in progress, and note the effects with an unknown outcome."""
        pause = SHORTEST_PAUSE
        while True:
            listed = yield Blocking(log.ledger.effects, (self.batch_id,))
            busy = {document["key"] for document, alive in listed if alive}
            unsettled = undo.to_undo((document for document, _ in listed), since).unsettled
            if monotonic() >= until or not any(effect["key"] in busy for effect in unsettled):
                break
            yield from sleep_for(pause)
            pause = min(1.5 * pause, LONGEST_PAUSE)
        for effect in unsettled:
            is_busy = effect["key"] in busy
            self._note(effect, "in_doubt", "it is still in progress" if is_busy else why_in_doubt(effect))

    def _undo(self, log: SagaLog, since: float | None) -> Steps[None]:
        compensating = Compensating(log, self.asynchronous)
        listed = yield Blocking(log.ledger.effects, (self.batch_id,))
        todo = undo.to_undo((document for document, _ in listed), since)
        for effect in todo.already:
            self._note(effect, "already")
        for effect in todo.skipped:
            self._note(effect, "skipped", why_it_stays(effect))
        fenced: list[EffectDocument] = []
        for effect in todo.effects:
            ours = yield Blocking(log.fence, (effect, self.claim))
            if ours is not None:
                fenced.append(ours)
        for effect in fenced:
            how, why = yield from compensating.undone(effect)
            self._note(effect, how, why)

    def _note(self, effect: EffectDocument, how: str, why: str = "") -> None:
        compensation = compensation_entry(effect, why)
        self.outcomes.setdefault(how, []).append(compensation)
        _tell(self.batch_id, compensation, how)


# -- logs and events

_TOLD = {
    "compensated": (logging.INFO, "Compensated", "effect.compensated"),
    "failed": (logging.ERROR, "Not compensated, a person must act", "effect.compensation-failed"),
    "in_doubt": (logging.ERROR, "In doubt, a person must act", "effect.in-doubt"),
}
"""For each outcome: the level and the beginning of the log line, and the event."""


def _tell(batch_id: str, one: Compensation, how: str) -> None:
    if how not in _TOLD:
        return
    level, beginning, event = _TOLD[how]
    why = f": {one.why}" if one.why else ""
    _logger().log(level, "%s: %r of batch %r by %s%s", beginning, one.key, batch_id, one.function, why)
    payload = {"batch_id": batch_id, "compensation": one.function}
    payload |= {name: getattr(one, name) for name in ("key", "generation", "external_id", "why")}
    emit(event, "effect", one.key, payload)


def _tell_of(report: RollbackReport) -> None:
    _logger().log(logging.INFO if report.complete else logging.ERROR, "%s", report)
    payload = {"to": report.to, "complete": report.complete, **report.counts}
    emit("batch.rolled-back", "batch", report.batch_id, payload)


def _logger() -> Any:
    """The run's logger, visible in the UI; outside of runs this package's logger."""
    from prefect.exceptions import MissingContextError
    from prefect.logging import get_run_logger

    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger("prefect_resilience.effects")
