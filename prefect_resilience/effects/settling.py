"""settle: a person says what became of an effect that is in doubt."""

from __future__ import annotations

import difflib
from typing import Any, Literal

from prefect_resilience.configuration import nearest
from prefect_resilience.effects.audit import Audit, said
from prefect_resilience.effects.batch import check_batch_id
from prefect_resilience.effects.ledger import Ledger, open_ledger, place_of
from prefect_resilience.effects.model import Ask, Verified, Wait
from prefect_resilience.effects.policy import Done, NotDone
from prefect_resilience.effects.recovery import who
from prefect_resilience.effects.results import pack
from prefect_resilience.effects.status import EffectStatus, batch_status
from prefect_resilience.errors.exceptions import ConfigurationError, EffectBusy
from prefect_resilience.stores.base import Store

Answer = Literal["done", "not_done"]
ANSWERS: tuple[str, ...] = ("done", "not_done")
KEYS_SHOWN = 5


def settle(
    batch_id: str,
    key: str,
    answer: Answer,
    result: Any = None,
    external_id: str | None = None,
    *,
    by: str | None = None,
    reason: str | None = None,
    store: Store | str | None = None,
) -> EffectStatus:
    """Say what became of an effect in doubt: the next run of the batch goes by it. The effect as it then is.

    Args:
        answer: "done": it took place, and is not done again. "not_done": it did not, and may be done.
        result: With "done": what the task is to return from now on, as JSON.
        external_id: With "done": how the receiver calls it.
        by: Who says so; the user and host, or the flow run, when left out.
        reason: How they know, for the audit log.

    Raises ConfigurationError when there is no such effect, or nothing in doubt about it; EffectBusy while
    somebody is still at it; StoreUnavailable.
    """
    _check(answer, result, external_id)
    ledger = open_ledger(store)
    place = place_of(check_batch_id(batch_id), key)
    if ledger.store.load(place) is None:
        raise ConfigurationError(_no_such(ledger, batch_id, key))
    stands = ledger.look(place)
    if isinstance(stands, Wait):
        raise EffectBusy(key, batch_id, 0.0)
    if not isinstance(stands, Ask):
        raise ConfigurationError(_nothing_to_settle(ledger, batch_id, key))
    person = said(by) or who()
    given = Done(pack(result), external_id) if answer == "done" else NotDone()
    after = ledger.verified(place, Verified(stands.claim, given, by=f"person: {person}"))
    if isinstance(after, Ask | Wait):
        raise EffectBusy(key, batch_id, 0.0)
    audit = Audit(ledger, batch_id)
    why = f"{key!r} {'was done' if answer == 'done' else 'was not done'}"
    audit.settled(audit.entry(person, "settle", reason, outcome="settled", why=said(why) or ""))
    return next(one for one in batch_status(batch_id, store=ledger.store).effects if one.key == key)


def _check(answer: str, result: Any, external_id: str | None) -> None:
    if answer not in ANSWERS:
        raise ConfigurationError(f"answer={answer!r} settles nothing{nearest(str(answer), ANSWERS)}")
    if answer == "not_done" and (result is not None or external_id is not None):
        raise ConfigurationError("a result and an external_id go with 'done' alone: leave them out")
    if pack(result) is None:
        raise ConfigurationError(
            f"result={result!r:.60} must be plain JSON of at most a million bytes, as in {{'id': 'm-1'}}"
        )


def _nothing_to_settle(ledger: Ledger, batch_id: str, key: str) -> str:
    status = batch_status(batch_id, store=ledger.store)
    known = next((one.state for one in status.effects if one.key == key), "gone")
    return f"the effect {key!r} of batch {batch_id!r} is {known} and not in doubt: there is nothing to settle"


def _no_such(ledger: Ledger, batch_id: str, key: str) -> str:
    keys = [document["key"] for document, _ in ledger.effects(batch_id)]
    if not keys:
        return f"there is no batch {batch_id!r} in the ledger"
    close = difflib.get_close_matches(key, keys, n=1) or sorted(keys)[:KEYS_SHOWN]
    return f"there is no effect {key!r} in batch {batch_id!r}{nearest(key, close)}"
