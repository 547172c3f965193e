"""The state of a batch, from the ledger and from Prefect: for recoveries, and for operators."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import Any

from prefect_resilience.durable.batches.audit import Audit, AuditEntry, effects_in_archive
from prefect_resilience.durable.batches.batch import check_batch_id, run_id_of
from prefect_resilience.durable.batches.decisions import (
    FAILED_OR_CRASHED,
    ApiUnavailable,
    BatchRun,
    BatchSnapshot,
    RecoveryRequest,
    archive_in_words,
    hint_for,
)
from prefect_resilience.durable.batches.strategies import RecoveryHint, RecoveryPolicy, SeenEffect
from prefect_resilience.durable.effects.ledger import Ledger, open_ledger
from prefect_resilience.durable.effects.model import EffectDocument, EffectState
from prefect_resilience.durable.effects.opening import batch_document, lost
from prefect_resilience.durable.effects.policy import EffectKind, shown
from prefect_resilience.durable.sagas.compensations import compensation_of
from prefect_resilience.errors.exceptions import NotRecorded
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.stores.base import Store

# Where Prefect is asked, its modules are imported: a list of the store's batches needs none.


def look(ledger: Ledger, batch_id: str, run: BatchRun | None = None) -> BatchSnapshot:
    """The state of a batch. `run`: its flow run, if the caller has it; then only the run's mark shows whether
    the ledger has the batch's records."""
    from prefect_resilience.durable.batches.edge.flow_runs import find_run

    snapshot = snapshot_of(ledger, batch_id)
    by_name = snapshot.begun_at is None and batch_document(ledger, batch_id) is None
    listed, run = run is not None, run or find_run(batch_id, snapshot.flow_run_id, by_name=by_name)
    if run is None:
        return snapshot
    if snapshot.begun_at is None and run_id_of(batch_id) is not None and str(run.id) != batch_id:
        # A subflow run: its effects belong to its root.
        return look(ledger, str(run.id))
    return replace(snapshot, run=run, not_recorded=_not_recorded(ledger, snapshot, run, listed))


def check_recorded(ledger: Ledger, batch_id: str) -> None:
    """Raise NotRecorded if Prefect has records of a batch that the ledger does not have."""
    snapshot = look(ledger, batch_id)
    if snapshot.not_recorded is not None:
        raise NotRecorded(f"nothing was changed: {snapshot.not_recorded}")


def _not_recorded(ledger: Ledger, seen: BatchSnapshot, run: BatchRun, listed: bool) -> str | None:
    from prefect_resilience.durable.batches.edge.marks import PrefectMarks
    from prefect_resilience.durable.batches.edge.tags import store_name

    marks = PrefectMarks(seen.batch_id, (str(run.id), 2), store_name(ledger.store.url))
    why = lost(batch_document(ledger, seen.batch_id), marks.token_in(run.labels))
    if why is None and not listed and seen.archived is None:
        why = marks.missing_from(ledger)
    if why is None:
        return None
    return (
        f"the store {redact(ledger.store.url)} does not have the records of batch {seen.batch_id!r}: {why}; "
        "set PREFECT_RESILIENCE_STORE_URL to the store that its run used; if that store lost them, check the "
        f"receivers and continue with `prefect-resilience batches reopen {seen.batch_id}`"
    )


def hint_of(
    ledger: Ledger, batch_id: str, policy: RecoveryPolicy | None = None, *, run: BatchRun | None = None
) -> RecoveryHint | None:
    """How to recover a batch. While the Prefect API is unavailable, the effects alone decide.

    `run`: its flow run, if the caller has it.
    """
    request = RecoveryRequest(policy=policy)
    try:
        return hint_for(look(ledger, batch_id, run), request, 0.5)
    except ApiUnavailable:
        hint = hint_for(snapshot_of(ledger, batch_id), request, 0.5)
        unknown = "(the Prefect API is unavailable, so the end of its run is unknown)"
        return None if hint is None else hint.model_copy(update={"why": f"{hint.why} {unknown}"})


def snapshot_of(ledger: Ledger, batch_id: str) -> BatchSnapshot:
    """The state of a batch by its effects alone, which are not all in memory at a time."""
    effects: list[tuple[float, str, SeenEffect]] = []
    busy: list[tuple[float, str]] = []
    newest: EffectDocument | None = None
    for document, alive in ledger.each_effect(batch_id):
        undoes, place = "compensates" in document, (document["first_at"], document["key"])
        # Compensations count only if they are in doubt.
        if not undoes or state_of(document, alive) == "unknown":
            effects.append((*place, _effect_seen(document, alive)))
        if alive:
            busy.append(place)
        if not undoes and (newest is None or document["intended_at"] > newest["intended_at"]):
            newest = document
    effects.sort(key=itemgetter(0, 1))
    done = [] if newest is not None else effects_in_archive(ledger, batch_id)
    done = [entry for entry in done if entry["effect"]["state"] == "done"]
    return BatchSnapshot(
        batch_id,
        effects=tuple(effect for _, _, effect in effects),
        busy=tuple(key for _, key in sorted(busy)),
        run=None,
        log=Audit(ledger, batch_id).document(),
        now=ledger.store.now(),
        begun_at=None if newest is None else newest["intended_at"],
        flow_run_id=None if newest is None else newest.get("flow_run_id"),
        archived=archive_in_words(len(done), done[-1]["archived_at"]) if done else None,
    )


def _effect_seen(document: EffectDocument, alive: bool) -> SeenEffect:
    undo: dict[str, Any] = document.get("compensation") or {}
    return SeenEffect(
        key=document["key"],
        kind=document["kind"],
        state=state_of(document, alive),
        verify=bool(document.get("verify")),
        compensate=bool(undo) and not undo.get("given_up"),
        stuck=document["state"] == "compensating" and undo.get("error") is not None,
    )


def state_of(document: EffectDocument, busy: bool) -> EffectState:
    """The state to show: an intent of a dead owner is unknown."""
    return "unknown" if document["state"] == "intended" and not busy else document["state"]


# -- for operators

COUNTED: tuple[EffectState, ...] = ("intended", "unknown", "failed", "done", "compensated")


@dataclass(frozen=True, slots=True)
class EffectStatus:
    """One effect of a batch. Times are seconds since the epoch, by the store's clock.

    `state` is "intended" only while the effect is in progress; an intent of a dead owner is "unknown".
    `result` is JSON; it is None if the result is stored elsewhere. `attempts` counts the calls that were made
    or about to be made. `compensation` is the function that can compensate it, as "module:name".
    `compensates` is the key of the effect that this one compensated. An effect that was compensated and then
    done again has the next `generation`. `overdue_at`: since when its call runs although its attempt is over.
    """

    key: str
    kind: EffectKind
    state: EffectState
    result: Any
    external_id: str | None
    attempts: int
    error: str | None
    task: str | None
    task_run_id: str | None
    flow_run_id: str | None
    intended_at: float
    settled_at: float | None
    generation: int = 1
    compensation: str | None = None
    compensates: str | None = None
    overdue_at: float | None = None


@dataclass(frozen=True, slots=True)
class Archived:
    """When a batch was archived, by whom and why."""

    at: float
    by: str
    why: str


@dataclass(frozen=True)
class BatchStatus:
    """Every effect of a batch, in the order of their first intents.

    `archived`: None for the batch in the ledger; otherwise the status is that of the archive.
    """

    batch_id: str
    effects: tuple[EffectStatus, ...]
    _ledger: Ledger | None = field(default=None, repr=False, compare=False)
    archived: Archived | None = None

    @cached_property
    def hint(self) -> RecoveryHint | None:
        """How to continue the batch, and why; None if there is nothing to recover, or it is archived.

        It is computed at the first access and asks the Prefect API for the state of the run. Without the API,
        the effects alone decide. Raises StoreUnavailable.
        """
        if self._ledger is None or self.archived is not None:
            return None
        return hint_of(self._ledger, self.batch_id)

    @cached_property
    def _run(self) -> BatchRun | None:
        from prefect_resilience.durable.batches.edge.flow_runs import find_run

        if self._ledger is None or self.archived is not None:
            return None
        newest = max(self.effects, key=attrgetter("intended_at"), default=None)
        with suppress(ApiUnavailable):
            return find_run(self.batch_id, newest and newest.flow_run_id)
        return None

    @property
    def state(self) -> str | None:
        """The state of its flow run in the UI, such as "Crashed"; None if the API does not know it.

        `state`, `occurred_at` and `seconds_in_error` share one request to the Prefect API.
        """
        return None if self._run is None else self._run.state

    @property
    def occurred_at(self) -> float | None:
        """When its flow run failed or crashed, in seconds since the epoch; None in any other state."""
        return self._run.since if self._run is not None and self._run.type in FAILED_OR_CRASHED else None

    @property
    def seconds_in_error(self) -> float | None:
        """The seconds since its flow run failed or crashed; None in any other state."""
        if self.occurred_at is None or self._ledger is None:
            return None
        return max(self._ledger.store.now() - self.occurred_at, 0.0)

    @property
    def seconds_silent(self) -> float | None:
        """The seconds since the last heartbeat of its flow run; None if it is not running, or sent none."""
        from prefect_resilience.durable.batches.edge.closing import seconds_silent

        return None if self._run is None else seconds_silent(self._run)

    @cached_property
    def audit(self) -> tuple[AuditEntry, ...]:
        """All actions on the batch and who took them, the newest last. Raises StoreUnavailable."""
        return () if self._ledger is None else Audit(self._ledger, self.batch_id).entries()


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """The number of a batch's effects in each state. Times are seconds since the epoch.

    `unknown` includes effects whose compensation was cut off. Effects that compensate others are not counted.
    `abandoned_at` is None unless the batch was abandoned and no effect was begun in it since. `flow_run_id`
    is the flow run of the newest effect. `ended`: the state in which its flow run ended badly, such as
    "Crashed", if the API was asked for it. `uncounted`: it has more effects that ended; `done`, `compensated`
    and the times do not include them.

    Example:
        >>> day = BatchSummary("digest-7", intended=0, unknown=1, failed=0, done=3, compensated=0,
        ...                    first_at=1000.0, last_at=1060.0)
        >>> day.total, day.open
        (4, True)
    """

    batch_id: str
    intended: int = 0
    unknown: int = 0
    failed: int = 0
    done: int = 0
    compensated: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    abandoned_at: float | None = None
    flow_run_id: str | None = None
    ended: str | None = None
    uncounted: bool = False

    @property
    def total(self) -> int:
        """The number of effects that were begun in it."""
        return sum(getattr(self, state) for state in COUNTED)

    @property
    def open(self) -> bool:
        """Whether an effect in it is missing or in doubt, or its run ended badly after some were done."""
        if self.abandoned_at is not None:
            return False
        if self.intended + self.unknown + self.failed > 0:
            return True
        # A batch that was rolled back is finished, whatever the state of its run.
        return self.ended is not None and self.done > 0 and self.compensated == 0


def batch_status(batch_id: str, *, archived: bool = False, store: Store | str | None = None) -> BatchStatus:
    """The ledger's records of a batch: the id is that of a root flow run, or of a `with batch(...)`.

    `archived`: the archived effects instead, each in its last copy; `.archived` has the time, and is None if
    nothing was archived. `store` is a store or its URL; None: the configured one. A batch without effects is
    empty. Raises StoreUnavailable.

    Example:
        >>> batch_status("a-batch-without-effects").effects
        ()
    """
    ledger = open_ledger(store)
    if archived:
        return _status_in_archive(ledger, check_batch_id(batch_id))
    # A batch may have a million effects: their documents are ten times as large as what is kept of them.
    statuses = [
        (document["first_at"], document["key"], _status(document, busy))
        for document, busy in ledger.each_effect(check_batch_id(batch_id))
    ]
    statuses.sort(key=itemgetter(0, 1))
    return BatchStatus(batch_id, tuple(status for _, _, status in statuses), ledger)


def _status_in_archive(ledger: Ledger, batch_id: str) -> BatchStatus:
    copies = effects_in_archive(ledger, batch_id)
    if not copies:
        return BatchStatus(batch_id, (), ledger)
    archived = Archived(copies[-1]["archived_at"], copies[-1]["by"], copies[-1]["why"])
    effects = sorted(newest_copies(copies), key=lambda one: (one["first_at"], one["key"]))
    return BatchStatus(batch_id, tuple(_status(effect, False) for effect in effects), ledger, archived)


def newest_copies(kept: Iterable[dict[str, Any]]) -> list[EffectDocument]:
    """The latest copy of each effect: the archive has one for each call."""
    return list({entry["effect"]["key"]: entry["effect"] for entry in kept}.values())


def _status(document: EffectDocument, busy: bool) -> EffectStatus:
    undo: dict[str, Any] = document.get("compensation") or {}
    error: dict[str, Any] | None = document["error"] or undo.get("error")
    recorded: dict[str, Any] = {part.name: document.get(part.name) for part in fields(EffectStatus)}
    changes: dict[str, Any] = {
        "state": state_of(document, busy),
        "result": shown(document["result"]),
        "error": None if error is None else f"{error['code']}: {error['message']}",
        "generation": document.get("generation", 1),
        "overdue_at": document.get("overdue_at") if document["state"] == "intended" else None,
        "compensation": compensation_of(document),
    }
    return EffectStatus(**{**recorded, **changes})
