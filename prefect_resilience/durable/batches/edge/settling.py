"""Records a person's answer about an effect in doubt, or about one that could not be compensated."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from prefect_resilience.base.policy import nearest
from prefect_resilience.durable.batches.audit import Audit, one_line
from prefect_resilience.durable.batches.batch import check_batch_id
from prefect_resilience.durable.batches.edge.flow_runs import who
from prefect_resilience.durable.batches.edge.known import check_here
from prefect_resilience.durable.batches.edge.status import EffectStatus, batch_status
from prefect_resilience.durable.effects.aliases import key_of_alias
from prefect_resilience.durable.effects.ledger import Ledger, open_ledger
from prefect_resilience.durable.effects.model import (
    AlreadyDone,
    Ask,
    EffectDocument,
    InProgress,
    LedgerDecision,
    Undoing,
    Verified,
)
from prefect_resilience.durable.effects.policy import Done, NotDone, pack_told
from prefect_resilience.durable.sagas import undo
from prefect_resilience.durable.sagas.edge.saga import key_of_undoing
from prefect_resilience.durable.sagas.undo import SagaLog
from prefect_resilience.errors.exceptions import ConfigurationError, EffectBusy
from prefect_resilience.stores.base import Store
from prefect_resilience.telemetry.edge.events import emit

Answer = Literal["done", "not_done", "undone", "kept"]
KEYS_SHOWN = 5
PERSON = "person: "

ANSWERS = {
    "done": "was done",
    "not_done": "was not done",
    "undone": "was compensated by a person",
    "kept": "stays done, and is not compensated",
}


def settle(
    batch_id: str,
    key: str,
    answer: Answer,
    result: Any = None,
    external_id: str | None = None,
    *,
    by: str | None = None,
    reason: str | None = None,
    force: bool = False,
    store: Store | str | None = None,
) -> EffectStatus:
    """Record the outcome of an effect in doubt, for the batch's next run. Returns the effect's new status.

    Args:
        answer: "done": it took place, and is not repeated; a repeated "done" may replace its result. For an
            effect that is recorded as done, but whose task was renamed or removed, "done" lets later runs
            continue. "not_done": it did not take place, and may be done. For an effect that a rollback could
            not compensate, or must not: `undone`: a person compensated it, and a later run may repeat it;
            "kept": it stays done, and no rollback tries to compensate it any more.
        result: With "done": the value that the task returns from now on, as JSON. The task's return type
            converts it; None is returned as it is.
        external_id: With "done": its id at the receiver.
        by: Who settles it; default: the user and host, or the flow run.
        reason: How they know, for the audit log.
        force: Also while the effect seems to be in progress: its process hangs, and you have ended it.

    Raises ConfigurationError if there is no such batch or effect, or nothing to settle; EffectBusy while the
    effect is in progress; StoreUnavailable.

    Example: settle("invoices-2026-11", "invoice:7", "done", external_id="msg-4711")
    """
    _check(answer, result, external_id)
    ledger = open_ledger(store)
    log = SagaLog(ledger, check_batch_id(batch_id))
    effect = log.effect(key) or log.effect(key_of_alias(ledger.store, batch_id, key))
    if effect is None:
        raise ConfigurationError(_no_such(ledger, batch_id, key))
    key = effect["key"]
    person = one_line(by) or who()
    if answer in ("undone", "kept"):
        _end_undoing(log, effect, answer, person, force)
    else:
        verdict = Done(pack_told(result), external_id) if answer == "done" else NotDone()
        _end_doubt(log, effect, verdict, person, force)
    why = one_line(f"{key!r} {ANSWERS[answer]}") or ""
    Audit(ledger, batch_id).note(person, "settle", reason, outcome="settled", why=why, force=force)
    payload = {"batch_id": batch_id, "key": key, "answer": answer, "flow_run_id": effect.get("flow_run_id")}
    emit("effect.settled", "effect", key, {**payload, "by": person, "reason": one_line(reason)})
    return next(status for status in batch_status(batch_id, store=ledger.store).effects if status.key == key)


def _check(answer: str, result: Any, external_id: str | None) -> None:
    if answer not in ANSWERS:
        raise ConfigurationError(f"unknown answer {answer!r}{nearest(str(answer), ANSWERS)}")
    if answer != "done" and (result is not None or external_id is not None):
        raise ConfigurationError("a result and an external_id are only for the answer 'done': leave them out")
    if pack_told(result) is None:
        raise ConfigurationError(
            f"result={result!r:.60} must be plain JSON of at most a million bytes, as in {{'id': 'm-1'}}"
        )


def _end_doubt(
    log: SagaLog, effect: EffectDocument, answer: Done | NotDone, person: str, force: bool
) -> None:
    """Record whether the effect took place."""
    stands, by = _standing(log, effect, force), PERSON + person
    if isinstance(stands, AlreadyDone) and isinstance(answer, Done):
        more = _changes_of_repeat(effect, answer, by)
        if more is None:
            raise ConfigurationError(_nothing_to_settle(log, effect["key"]))
        _change(log, effect, lambda document, _: {**document, **more})
        return
    if not isinstance(stands, Ask):
        raise ConfigurationError(_nothing_to_settle(log, effect["key"]))
    event = Verified(stands.claim, answer, by=by, forced=force)
    after = log.ledger.verified(log.place_of(effect), event)
    if isinstance(after, Ask | InProgress):
        raise EffectBusy(effect["key"], log.batch_id, 0.0)


def _standing(log: SagaLog, effect: EffectDocument, force: bool) -> LedgerDecision:
    """The state of the effect. Raises EffectBusy while it is in progress, unless `force` ends that."""
    stands = log.ledger.look(log.place_of(effect))
    if not isinstance(stands, InProgress):
        return stands
    if not force:
        raise EffectBusy(effect["key"], log.batch_id, 0.0)
    if effect["state"] == "compensating":
        return Undoing("a person has ended it")
    return Ask(effect["claim"], None)


def _change(
    log: SagaLog, effect: EffectDocument, change: Callable[[EffectDocument, float], EffectDocument]
) -> None:
    if log.change_effect(effect, change) is None:
        raise EffectBusy(effect["key"], log.batch_id, 0.0)


def _changes_of_repeat(effect: EffectDocument, answer: Done, by: str) -> dict[str, Any] | None:
    """The changes for a "done" about an effect that is done already; None: nothing to change."""
    if not str(effect.get("verified_by") or "").startswith(PERSON):
        # A person confirms that it is done, so a pass of changed code without this effect may continue.
        return {"acknowledged": by}
    if answer.result["value"] is None and answer.external_id is None:
        return None
    # A person replaces a result that a person gave, for example because it did not fit.
    return {"result": answer.result, "external_id": answer.external_id, "verified_by": by}


def _end_undoing(log: SagaLog, effect: EffectDocument, answer: str, person: str, force: bool) -> None:
    """Record whether the effect was compensated. Settles its compensation too, if that is in doubt."""
    key = effect["key"]
    if (
        not isinstance(_standing(log, effect, force), Undoing | AlreadyDone)
        or effect.get("compensation") is None
    ):
        raise ConfigurationError(
            f"the effect {key!r} of batch {log.batch_id!r} has no compensation: {answer!r} is only for "
            f"an effect that is done and can be compensated"
        )
    own = log.effect(key_of_undoing(effect, log.batch_id))
    if own is not None:
        _settle_compensation(log, own, answer, person, force)
    state, error = "compensated", None
    if answer == "kept":
        state, error = "done", effect["compensation"].get("error")
    _change(log, effect, partial(undo.end_compensation, state=state, error=error, by=PERSON + person))


def _settle_compensation(log: SagaLog, own: EffectDocument, answer: str, person: str, force: bool) -> None:
    stands = _standing(log, own, force)
    if isinstance(stands, AlreadyDone) and answer == "kept":
        raise ConfigurationError(f"{own['key']!r} took place: call rollback(), which records it")
    if isinstance(stands, Ask):
        verdict = Done(pack_told(None)) if answer == "undone" else NotDone()
        log.ledger.verified(
            log.place_of(own), Verified(stands.claim, verdict, by=PERSON + person, forced=force)
        )


def _nothing_to_settle(log: SagaLog, key: str) -> str:
    document = log.effect(key)
    state = "gone" if document is None else document["state"]
    say = "answer `undone` or `kept`" if state == "compensating" else "there is nothing to settle"
    return f"the effect {key!r} of batch {log.batch_id!r} is {state} and not in doubt: {say}"


def _no_such(ledger: Ledger, batch_id: str, key: str) -> str:
    keys = [document["key"] for document, _ in ledger.effects(batch_id)]
    if not keys:
        check_here(ledger, batch_id)
        gone = batch_status(batch_id, archived=True, store=ledger.store).archived
        return f"batch {batch_id!r} has no effects" + (" in the ledger: it was archived" if gone else "")
    close = difflib.get_close_matches(key, keys, n=1) or sorted(keys)[:KEYS_SHOWN]
    return f"there is no effect {key!r} in batch {batch_id!r}{nearest(key, close)}"
