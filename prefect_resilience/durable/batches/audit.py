"""The audit log of a batch, which is also the claim of its recoveries; and the archive of effects.

The log is one bounded document. Only one recovery at a time holds the claim. If its process dies, this is
noticed as for owners of effects: at once on the same machine, after the lease elsewhere. Its entry is then
marked as cut off.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Literal
from uuid import uuid4

from pydantic import BaseModel

from prefect_resilience.base.text import plural
from prefect_resilience.durable.batches.strategies import RecoveryTrail, Strategy
from prefect_resilience.durable.effects.aliases import remove_aliases
from prefect_resilience.durable.effects.ledger import YEAR, BatchLog, Ledger, place_of
from prefect_resilience.durable.effects.model import EffectDocument
from prefect_resilience.durable.effects.opening import change_batch, is_counted, note_removed_effects
from prefect_resilience.durable.sagas.undo import SAGAS
from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.stores.base import Document, change, scan_all

AUDITS = "effects-audit/"
KEPT = 100
"""The number of entries that are kept for a batch, the newest."""

NO_RECOVERIES: dict[str, Any] = {"automatic": 0, "automatic_at": None, "waits": 0, "waits_since": None}
TEXT = 500

RecoveryAction = Literal["rescheduled", "compensated", "abandoned", "told", "refused", "nothing"]
AuditOutcome = RecoveryAction | Literal["started", "cut_off", "settled", "pruned", "error"]


class AuditEntry(BaseModel, frozen=True):
    """One action on a batch, or an attempt at one.

    `at` and `next_at` are seconds since the epoch, by the store's clock. `asked` is the request: "auto", a
    strategy, "prune" or "settle"; `force`: with force. `by` is the user and host, or the flow run and the
    automation that created it. `why` is the reason of the package, `reason` the one that the caller gave.
    """

    id: str
    at: float
    by: str
    asked: str
    strategy: Strategy | None = None
    outcome: AuditOutcome = "started"
    why: str = ""
    reason: str | None = None
    flow_run_id: str | None = None
    next_at: float | None = None
    force: bool = False


def one_line(text: str | None) -> str | None:
    """A person's text for the log: one line, bounded, without secrets."""
    return None if text is None else bounded(redact(" ".join(text.split())), TEXT)


class Audit(BatchLog):
    """The audit log of one batch."""

    prefix: ClassVar[str] = AUDITS
    new: ClassVar[dict[str, Any]] = NO_RECOVERIES | {
        "total": 0,
        "entries": [],
        "claim": None,
        "abandoned_at": None,
    }

    def entries(self) -> tuple[AuditEntry, ...]:
        """All entries, the newest last."""
        return entries_of(self.document())

    # -- claiming

    def claim(self, by: str, asked: str, reason: str | None, **more: Any) -> AuditEntry | None:
        """Begin a recovery; None while another recovery runs. Both outcomes are recorded."""
        entry = self.entry(by, asked, reason, **more)
        owner = self.ledger.owner.hold(entry.id)
        try:
            taken = self.change(lambda document, _: self._claim_or_refuse(document, entry, owner))
        except BaseException:
            self.ledger.owner.give_up(entry.id)
            raise
        if not _holds(taken, entry):
            self.ledger.owner.drop(entry.id)
            return None
        return entry

    def is_claimed(self, document: dict[str, Any]) -> bool:
        """Whether a recovery is in progress."""
        claim = document["claim"]
        return claim is not None and self.ledger.owner.lives(claim["owner"], claim["name"])

    def _claim_or_refuse(self, document: dict[str, Any], entry: AuditEntry, owner: str) -> dict[str, Any]:
        claim = document["claim"]
        if self.is_claimed(document):
            refusal = f"{claim['by']} is recovering it"
            return _with(document, entry.model_copy(update={"outcome": "refused", "why": refusal}))
        if claim is not None:
            document = _mark(document, claim["name"], outcome="cut_off")
        return _with({**document, "claim": {"owner": owner, "name": entry.id, "by": entry.by}}, entry)

    def begin_restart(self, entry: AuditEntry, *, counts: bool = True) -> bool:
        """Record that the run is about to run again. Returns False if the claim was lost.

        An automatic recovery adds to the count of automatic ones, or with `counts=False` to those that
        waited; a requested one resets both. The batch is no longer abandoned.
        """

        def step(document: dict[str, Any], now: float) -> dict[str, Any]:
            if not _holds(document, entry):
                return document
            marked = _mark(document, entry.id, **entry.model_dump(exclude={"id"}))
            return {**marked, **_count(document, entry, counts, now), "abandoned_at": None}

        return _holds(self.change(step), entry)

    def finish(self, entry: AuditEntry) -> None:
        """Record the outcome, and release the claim."""
        end = partial(self.change, lambda document, now: _end(document, entry, now))
        try:
            end()
        except StoreUnavailable:
            # The work is done; the owner's thread records it when the store is available again.
            self.ledger.owner.later(end)
        finally:
            self.ledger.owner.drop(entry.id)

    def note(self, by: str, asked: str, reason: str | None = None, **more: Any) -> AuditEntry:
        """Record something that needs no claim. What is settled resets the count of automatic recoveries."""
        entry = self.entry(by, asked, reason, **more)
        reset = NO_RECOVERIES if entry.outcome == "settled" else {}
        self.change(lambda document, _: {**_with(document, entry), **reset})
        return entry

    def entry(self, by: str, asked: str, reason: str | None = None, **more: Any) -> AuditEntry:
        now = self.ledger.store.now()
        request = {"by": one_line(by) or "unknown", "asked": asked, "reason": one_line(reason)}
        return AuditEntry(id=uuid4().hex, at=now, **request, **more)


# -- the document


def entries_of(document: dict[str, Any]) -> tuple[AuditEntry, ...]:
    return tuple(AuditEntry.model_validate(entry) for entry in document["entries"])


def trail_of(document: dict[str, Any]) -> RecoveryTrail:
    trail: dict[str, Any] = {"abandoned_at": None, **NO_RECOVERIES, **document}  # version 0.2 writes no waits
    fields = ("automatic", "automatic_at", "abandoned_at", "waits", "waits_since")
    return RecoveryTrail(*(trail[field] for field in fields))


def _count(document: dict[str, Any], entry: AuditEntry, counts: bool, now: float) -> dict[str, Any]:
    if entry.asked != "auto":
        return NO_RECOVERIES
    if counts:
        return {"automatic": document["automatic"] + 1, "automatic_at": now}
    since, waits = document.get("waits_since") or now, document.get("waits", 0)
    return {"automatic_at": now, "waits": waits + 1, "waits_since": since}


def _with(document: dict[str, Any], entry: AuditEntry) -> dict[str, Any]:
    written = {**entry.model_dump(mode="json"), "ended": None}  # version 0.2 reads and sets it
    return {**document, "entries": [*document["entries"], written][-KEPT:], "total": document["total"] + 1}


def _mark(document: dict[str, Any], entry_id: str, **changes: Any) -> dict[str, Any]:
    entries = [{**entry, **changes} if entry["id"] == entry_id else entry for entry in document["entries"]]
    return {**document, "entries": entries}


def _holds(document: dict[str, Any], entry: AuditEntry) -> bool:
    return document["claim"] is not None and document["claim"]["name"] == entry.id


def _end(document: dict[str, Any], entry: AuditEntry, now: float) -> dict[str, Any]:
    after = _mark(document, entry.id, **entry.model_dump(mode="json", exclude={"id"}))
    if _holds(after, entry):
        after["claim"] = None
    if entry.outcome == "abandoned":
        after["abandoned_at"] = now
    return after


ARCHIVES = "effects-archive/"


def _archive(ledger: Ledger, batch_id: str, why: str, by: str) -> list[tuple[str, Document]]:
    """Archive every effect of a batch. Returns the effects and their places. A later copy replaces an earlier
    one of the same call."""
    effects = list(scan_all(ledger.store, place_of(batch_id)))
    for _, document in effects:
        place = place_of(batch_id, document.value["claim"], ARCHIVES)
        copy = {"archived_at": ledger.store.now(), "effect": document.value, "why": why, "by": by}
        change(ledger.store, place, lambda _, copy=copy: copy, YEAR)
    return effects


def effects_in_archive(ledger: Ledger, batch_id: str) -> list[dict[str, Any]]:
    """The archived effects of a batch: {"archived_at", "why", "by", "effect"}, the oldest first."""
    archived = [document.value for _, document in scan_all(ledger.store, place_of(batch_id, prefix=ARCHIVES))]
    return sorted(archived, key=lambda one: (one["archived_at"], one["effect"]["first_at"]))


def clear(ledger: Ledger, batch_id: str, *, why: str, by: str) -> str:
    """Archive every effect of a batch, then remove those that were certainly not done, or may be repeated.

    Effects that are done stay, so that they are not done again. External effects in doubt stay too. Returns
    what it did, in words. It may be killed and repeated.
    """
    removed, counted, doubts = 0, 0, list[str]()
    copies = _archive(ledger, batch_id, why, by)
    for place, document in copies:
        if _may_go(ledger, document.value):
            # An effect that has changed since is in use again, and stays.
            gone = ledger.store.delete(place, document.version)
            removed += gone
            counted += gone and is_counted(document.value)
        elif document.value["state"] in ("intended", "unknown", "compensating"):
            doubts.append(document.value["key"])
    note_removed_effects(ledger, batch_id, counted)
    rest = "another run of the batch does the effects that are missing"
    if doubts:
        rest = f"still in doubt: {', '.join(map(repr, doubts))}"
    return f"{plural(len(copies), 'effect')} archived, {removed} of them removed; {rest}"


def _may_go(ledger: Ledger, document: EffectDocument) -> bool:
    if document["state"] not in ("intended", "unknown", "failed") or ledger.is_busy(document):
        return False
    return document["state"] == "failed" or document["kind"] != "external"


def remove(ledger: Ledger, batch_id: str, *, why: str, by: str) -> int:
    """Archive the effects of a batch, then remove them and its savepoints; the number of effects."""
    effects = _archive(ledger, batch_id, why, by)
    removed = sum(ledger.store.delete(place, document.version) for place, document in effects)
    remove_aliases(ledger.store, batch_id)
    # While the archive exists, a later run of the batch is refused: its records are not in the ledger.
    change_batch(ledger, batch_id, lambda document: document and {**document}, YEAR)
    place = place_of(batch_id, prefix=SAGAS)[:-1]
    saga = ledger.store.load(place)
    if saga is not None:
        ledger.store.delete(place, saga.version)
    return removed
