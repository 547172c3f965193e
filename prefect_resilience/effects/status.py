"""What an operator sees of a batch, and of all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from prefect_resilience.effects.archive import scanned
from prefect_resilience.effects.audit import AUDITS, Audit, AuditEntry
from prefect_resilience.effects.batch import check_batch_id
from prefect_resilience.effects.compensations import compensation_of
from prefect_resilience.effects.ledger import PREFIX, Ledger, open_ledger
from prefect_resilience.effects.model import EffectDocument, EffectState
from prefect_resilience.effects.policy import EffectKind
from prefect_resilience.effects.results import shown
from prefect_resilience.effects.strategies import RecoveryHint
from prefect_resilience.stores.base import Store


@dataclass(frozen=True, slots=True)
class EffectStatus:
    """One effect of a batch. Times are seconds since the epoch, by the store's clock.

    `state` is "intended" only while somebody is at it; an intention whose owner died is "unknown". `result`
    is JSON; None too where it is kept elsewhere. `attempts` counts the calls that were made or about to be.
    `compensation` is what can undo it, as "module:name"; `compensates` the key of the effect that this one
    undid; an effect that was compensated and is done again is of the next `generation`.
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


@dataclass(frozen=True)
class BatchStatus:
    """Every effect of a batch, in the order in which they were first intended."""

    batch_id: str
    effects: tuple[EffectStatus, ...]
    _ledger: Ledger | None = field(default=None, repr=False, compare=False)

    @cached_property
    def hint(self) -> RecoveryHint | None:
        """How to go on with the batch, and why; None when there is nothing to recover.

        Found out when it is first asked for: the Prefect API knows how the run stands. Where that cannot be
        asked, the effects alone say. Raises StoreUnavailable.
        """
        if self._ledger is None:
            return None
        # Only now: what is asked here is Prefect.
        from prefect_resilience.effects.recovery import hint_of

        return hint_of(self._ledger, self.batch_id)

    @cached_property
    def audit(self) -> tuple[AuditEntry, ...]:
        """What was done to the batch and who did it, the newest last. Raises StoreUnavailable."""
        return () if self._ledger is None else Audit(self._ledger, self.batch_id).entries()


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """How many effects of a batch are in which state; times are seconds since the epoch.

    `unknown` counts also those whose compensation was cut off; those that only undo others do not count.
    `abandoned_at` is None unless the batch was abandoned, and nothing was begun in it since.

    Example:
        >>> day = BatchSummary("digest-7", intended=0, unknown=1, failed=0, done=3, compensated=0,
        ...                    first_at=1000.0, last_at=1060.0)
        >>> day.total, day.open
        (4, True)
    """

    batch_id: str
    intended: int
    unknown: int
    failed: int
    done: int
    compensated: int
    first_at: float
    last_at: float
    abandoned_at: float | None = None

    @property
    def total(self) -> int:
        """How many effects were begun in it."""
        return self.intended + self.unknown + self.failed + self.done + self.compensated

    @property
    def open(self) -> bool:
        """Whether something in it is neither done nor given up."""
        return self.abandoned_at is None and self.intended + self.unknown + self.failed > 0


def batch_status(batch_id: str, *, store: Store | str | None = None) -> BatchStatus:
    """What the ledger knows of a batch: the id of a root flow run, or that of a `with batch(...)`.

    `store` is a store or its URL; None: the configured one. A batch without effects is empty. Raises
    StoreUnavailable.

    Example:
        >>> batch_status("a-batch-without-effects").effects
        ()
    """
    ledger = open_ledger(store)
    found = ledger.effects(check_batch_id(batch_id))
    found.sort(key=lambda one: (one[0]["first_at"], one[0]["key"]))
    return BatchStatus(batch_id, tuple(_status(document, busy) for document, busy in found), ledger)


def list_batches(*, store: Store | str | None = None) -> list[BatchSummary]:
    """Every batch of the ledger: first those in doubt, then others that are open, then the rest; of each
    group the one in which something happened last comes first. Raises StoreUnavailable.
    """
    ledger = open_ledger(store)
    batches: dict[str, list[EffectDocument]] = {}
    for _, found in scanned(ledger.store, PREFIX):
        if "compensates" in found.value:
            continue
        batches.setdefault(found.value["batch"], []).append(found.value)
    audits = {found.value["batch"]: found.value for _, found in scanned(ledger.store, AUDITS)}
    listed = [
        _summary(batch_id, [(one, _busy(ledger, one)) for one in documents], audits)
        for batch_id, documents in batches.items()
    ]
    return sorted(listed, key=lambda one: (not one.open or not one.unknown, not one.open, -one.last_at))


def state_of(document: EffectDocument, busy: bool) -> EffectState:
    """The state as it is to be seen: what a dead owner intended is unknown."""
    return "unknown" if document["state"] == "intended" and not busy else document["state"]


def _busy(ledger: Ledger, document: EffectDocument) -> bool:
    held: dict[str, Any] = document["compensation"] if document["state"] == "compensating" else document
    if document["state"] not in ("intended", "compensating") or not held["owner"]:
        return False
    return ledger.owner.lives(held["owner"], held["claim"])


def _summary(
    batch_id: str, found: Iterable[tuple[EffectDocument, bool]], audits: dict[str, Any]
) -> BatchSummary:
    found = list(found)
    states = [_counted(document, busy) for document, busy in found]
    last = max(document["settled_at"] or document["intended_at"] for document, _ in found)
    begun = max(document["intended_at"] for document, _ in found)
    abandoned = audits[batch_id]["abandoned_at"] if batch_id in audits else None
    return BatchSummary(
        batch_id=batch_id,
        intended=states.count("intended"),
        unknown=states.count("unknown"),
        failed=states.count("failed"),
        done=states.count("done"),
        compensated=states.count("compensated"),
        first_at=min(document["first_at"] for document, _ in found),
        last_at=last,
        abandoned_at=abandoned if abandoned is not None and abandoned >= begun else None,
    )


def _counted(document: EffectDocument, busy: bool) -> EffectState:
    state = state_of(document, busy)
    if state == "compensating":
        return "intended" if busy else "unknown"
    return state


def _status(document: EffectDocument, busy: bool) -> EffectStatus:
    undo: dict[str, Any] = document.get("compensation") or {}
    error: dict[str, Any] | None = document["error"] or undo.get("error")
    return EffectStatus(
        key=document["key"],
        kind=document["kind"],
        state=state_of(document, busy),
        result=shown(document["result"]),
        external_id=document["external_id"],
        attempts=document["attempts"],
        error=None if error is None else f"{error['code']}: {error['message']}",
        task=document.get("task"),
        task_run_id=document.get("task_run_id"),
        flow_run_id=document.get("flow_run_id"),
        intended_at=document["intended_at"],
        settled_at=document["settled_at"],
        generation=document.get("generation", 1),
        compensation=compensation_of(document),
        compensates=document.get("compensates"),
    )
