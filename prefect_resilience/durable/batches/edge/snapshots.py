"""The state of a batch: its effects, its run and its earlier recoveries; and whether the store has all of its
records."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from typing import Any, NamedTuple

from prefect_resilience.durable.batches.audit import Audit, archived_effects
from prefect_resilience.durable.batches.decisions import (
    ArchivedEffects,
    BatchSnapshot,
    RecoveryRequest,
    hint_for,
)
from prefect_resilience.durable.batches.edge.closing import last_beat
from prefect_resilience.durable.batches.edge.flow_runs import ApiUnavailable, BatchRun, find_run
from prefect_resilience.durable.batches.edge.marks import PrefectMarks, run_id_of
from prefect_resilience.durable.batches.edge.tags import store_name
from prefect_resilience.durable.batches.strategies import RecoveryHint, RecoveryPolicy, SeenEffect
from prefect_resilience.durable.effects.ledger import Ledger
from prefect_resilience.durable.effects.model import EffectDocument, EffectState
from prefect_resilience.durable.effects.opening import batch_document, lost
from prefect_resilience.durable.effects.owner import PREFIX as OWNERS
from prefect_resilience.errors.exceptions import ConfigurationError, NotRecorded
from prefect_resilience.errors.secrets.redact import redact

_UNKNOWN_END = "the Prefect API is unavailable, so the end of its run is unknown"


def look(ledger: Ledger, batch_id: str, run: BatchRun | None = None) -> BatchSnapshot:
    """The state of a batch. `run`: its flow run, if the caller has it; then only the run's mark shows whether
    the ledger has the batch's records."""
    found = effects_seen(ledger, batch_id)
    newest = () if found.newest is None else (found.newest,)
    by_name = batch_document(ledger, batch_id) is None
    listed, run = run is not None, run or find_run(batch_id, newest, by_name=by_name)
    if run is not None and not newest and run_id_of(batch_id) and str(run.id) != batch_id:
        # A subflow run: its effects belong to its root.
        return look(ledger, str(run.id))
    seen = snapshot_with(ledger, batch_id, found, run)
    if run is None:
        return seen
    why, beat = _not_recorded(ledger, seen, run, listed), None
    if run.type == "RUNNING" and any(effect.state == "unknown" for effect in seen.effects):
        with suppress(Exception):  # it is only shown
            beat = last_beat(run.id, run.since)
    return replace(seen, not_recorded=why, beat=beat)


def check_recorded(ledger: Ledger, batch_id: str) -> None:
    """Raise NotRecorded if Prefect has records of a batch that the ledger does not have."""
    seen = look(ledger, batch_id)
    if seen.not_recorded is not None:
        raise not_recorded(seen)


class BatchElsewhere(NotRecorded, ConfigurationError):
    """Prefect knows a batch with this name, and the ledger does not."""


def not_recorded(seen: BatchSnapshot) -> NotRecorded:
    """The error for a batch with records that the ledger does not have."""
    if seen.named_after_run or seen.effects:
        return NotRecorded(f"nothing was changed: {seen.not_recorded}")
    known = f"No batch or flow run {seen.batch_id!r} in this store, but Prefect knows it"
    return BatchElsewhere(f"{known}; nothing was changed: {seen.not_recorded}")


def _not_recorded(ledger: Ledger, seen: BatchSnapshot, run: BatchRun, listed: bool) -> str | None:
    def marks(name: str) -> PrefectMarks:
        return PrefectMarks(name, (str(run.id), 2), store_name(ledger.store.url))

    own = marks(seen.batch_id)
    token = own.token_in(run.labels)
    why, name = lost(batch_document(ledger, seen.batch_id), token), seen.batch_id
    if why is None and not listed and seen.archived is None:
        inside = own.named_inside() - {seen.batch_id} if seen.named_after_run else ()
        found = ((marks(name).missing_from(ledger), name) for name in (seen.batch_id, *sorted(inside)))
        why, name = next((one for one in found if one[0] is not None), (None, name))
    if why is None:
        return None
    return (
        f"the store {redact(ledger.store.url)} does not have the records of batch {name!r}: {why}; set "
        f"PREFECT_RESILIENCE_STORE_URL to the store that its run used; if that store lost them, check the "
        f"receivers and continue with `prefect-resilience batches reopen {name}`"
    )


def hint_of(
    ledger: Ledger, batch_id: str, policy: RecoveryPolicy | None = None, *, run: BatchRun | None = None
) -> RecoveryHint | None:
    """How to recover a batch. While the Prefect API is unavailable, the effects alone decide.

    `run`: its flow run, if the caller has it.
    """
    asked = RecoveryRequest(policy=policy)
    try:
        return hint_for(look(ledger, batch_id, run), asked, 0.5)
    except ApiUnavailable:
        hint = hint_for(snapshot_with(ledger, batch_id, effects_seen(ledger, batch_id), None), asked, 0.5)
        return None if hint is None else hint.model_copy(update={"why": f"{hint.why} ({_UNKNOWN_END})"})


def run_of(ledger: Ledger, batch_id: str) -> BatchRun | None:
    """The flow run of a batch; None if there is none, or the Prefect API is unavailable."""
    try:
        return find_run(batch_id, (document for document, _ in ledger.each_effect(batch_id)))
    except ApiUnavailable:
        return None


class _EffectsSeen(NamedTuple):
    """What a recovery needs to know of the effects of a batch, without their documents."""

    effects: tuple[SeenEffect, ...]
    busy: tuple[str, ...]
    begun_at: float | None
    newest: EffectDocument | None
    busy_in: str


def effects_seen(ledger: Ledger, batch_id: str) -> _EffectsSeen:
    effects: list[tuple[float, str, SeenEffect]] = []
    busy: list[tuple[float, str, str]] = []
    newest: EffectDocument | None = None
    begun_at: float | None = None
    for document, alive in ledger.each_effect(batch_id):
        undoes, place = "compensates" in document, (document["first_at"], document["key"])
        # Compensations count only if they are in doubt.
        if not undoes or state_of(document, alive) == "unknown":
            effects.append((*place, _effect_seen(document, alive)))
        if alive:
            held: Any = document["compensation"] if document["state"] == "compensating" else document
            busy.append((*place, held["owner"]))
        if not undoes and (begun_at is None or document["intended_at"] > begun_at):
            begun_at = document["intended_at"]
        if newest is None or document["intended_at"] > newest["intended_at"]:
            newest = document
    effects.sort(key=itemgetter(0, 1))
    seen = tuple(one for _, _, one in effects)
    keys = tuple(key for _, key, _ in sorted(busy))
    return _EffectsSeen(seen, keys, begun_at, newest, _process_of(ledger, min(busy)[2]) if busy else "")


def _process_of(ledger: Ledger, owner: str) -> str:
    """The process of an owner, and how old its last heartbeat is, as the end of a sentence."""
    lease = ledger.store.load(OWNERS + owner)
    if lease is None:
        return ""
    pid, host, beat = (lease.value.get(name) for name in ("pid", "host", "renewed_at"))
    age = "" if beat is None else f", which sent its last heartbeat {ledger.store.now() - beat:.0f} s ago"
    return f" in process {pid} on {host}{age}; if it hangs, end it, or settle the effect with force"


def snapshot_with(ledger: Ledger, batch_id: str, found: _EffectsSeen, run: BatchRun | None) -> BatchSnapshot:
    done = [] if found.newest is not None else archived_effects(ledger, batch_id)
    done = [one for one in done if one["effect"]["state"] == "done"]
    return BatchSnapshot(
        batch_id,
        effects=found.effects,
        busy=found.busy,
        busy_in=found.busy_in,
        run=run,
        named_after_run=run_id_of(batch_id) is not None,
        log=Audit(ledger, batch_id).document(),
        now=ledger.store.now(),
        begun_at=found.begun_at,
        archived=ArchivedEffects(len(done), done[-1]["archived_at"]) if done else None,
    )


def _effect_seen(document: EffectDocument, alive: bool) -> SeenEffect:
    undo: dict[str, Any] = document.get("compensation") or {}
    return SeenEffect(
        key=document["key"],
        kind=document["kind"],
        state=state_of(document, alive),
        verify=bool(document.get("verify") or undo.get("verify")),
        compensate=bool(undo) and not undo.get("given_up"),
        stuck=document["state"] == "compensating" and undo.get("error") is not None,
    )


def state_of(document: EffectDocument, busy: bool) -> EffectState:
    """The state to show: an intent of a dead owner is unknown."""
    return "unknown" if document["state"] == "intended" and not busy else document["state"]
