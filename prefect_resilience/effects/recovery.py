"""recover: go on with a batch whose run ended badly. The same flow run runs again; what is done stays done.

    claim ──> look ──> decide ──> write down ──> do ──> say what came of it
      └─ somebody else has it: refused

Killed anywhere in between, the claim falls to the next who asks, and that one looks again: a run that waits
for a worker already is not scheduled a second time.
"""

from __future__ import annotations

import getpass
import random
import socket
import time
from functools import partial
from typing import Any, ClassVar

from prefect.context import FlowRunContext
from pydantic import BaseModel, ConfigDict

from prefect_resilience.configuration import nearest
from prefect_resilience.effects.archive import clear
from prefect_resilience.effects.audit import Audit, AuditEntry, entries_of, said
from prefect_resilience.effects.batch import check_batch_id
from prefect_resilience.effects.decisions import ASKED, AUTO, Action, Asked, Decision, Seen, decide, hint_for
from prefect_resilience.effects.flow_runs import ApiUnavailable, find_run, run_again, run_id_of
from prefect_resilience.effects.ledger import Ledger, open_ledger
from prefect_resilience.effects.model import EffectDocument
from prefect_resilience.effects.owner import LEASE_SECONDS
from prefect_resilience.effects.saga import rollback
from prefect_resilience.effects.status import state_of
from prefect_resilience.effects.strategies import RecoveryHint, RecoveryPolicy, SeenEffect, Strategy
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.redact import redact
from prefect_resilience.events import emit
from prefect_resilience.stores.base import Store

CRASH_SETTLES = 10.0
"""So old, in seconds, is a crash before its run is scheduled again. Prefect's process worker reports it
twice, and the second report would end what was scheduled in between."""

OWNER_SETTLES = LEASE_SECONDS + 5.0
"""So long, in seconds, after a crash somebody may seem to be at an effect who died in it: on another machine
only the end of a lease tells."""

BUSY_PAUSE = 0.5

_UNKNOWN_END = "the Prefect API could not be asked how its run ended"


class RecoveryReport(BaseModel):
    """What a recovery did, or with `dry_run` what it would have done.

    `action`: "rescheduled" (a worker runs the same flow run again, from `next_at` on), "compensated",
    "abandoned"; "told" (a person must act, as `why` says), "refused" (not now, as `why` says), "nothing"
    (there is nothing to recover). `next_at` is in seconds since the epoch. `audit` is the batch's audit log,
    the newest last.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    batch_id: str
    strategy: Strategy | None
    why: str
    action: Action
    flow_run_id: str | None = None
    next_at: float | None = None
    dry_run: bool = False
    audit: tuple[AuditEntry, ...] = ()


def recover(
    batch_id: str,
    strategy: str = AUTO,
    *,
    reason: str | None = None,
    dry_run: bool = False,
    to: str | None = None,
    force: bool = False,
    by: str | None = None,
    policy: RecoveryPolicy | None = None,
    store: Store | str | None = None,
) -> RecoveryReport:
    """Go on with a batch whose run ended badly: the same flow run runs again, and what is done stays done.

    Args:
        batch_id: The id of a flow run (of a subflow run: its root counts), or that of a `with batch(...)`.
        strategy: "auto" does what the batch's hint says, as far and as often as `policy` lets it. What a
            person names is done at once: "restart", or one of the hint's strategies.
        reason: Why, for the audit log.
        dry_run: Only say what would be done; nothing is written anywhere.
        to: With "compensate": the savepoint down to which everything is undone; all of it when left out.
        force: Also while the run is said to be going on, or waits for its time: its process is gone for sure,
            or it is to run at once. Even where that is wrong, no effect is done twice.
        by: Who; the user and host, or the flow run, when left out.
        policy: How far "auto" goes; what the run's flow says (`recovery=`), else the default, when left out.

    A run without a deployment cannot be run again from here: then `why` says what to do. A crash of the last
    10 seconds is waited for to settle, without `force`; one of the last 35, while somebody who may have died
    in it seems to be at an effect. Raises StoreUnavailable, ApiUnavailable, and ConfigurationError for what
    cannot be meant.
    """
    return _recover(
        batch_id,
        Asked(_known(strategy), to, force, policy=policy),
        reason,
        dry_run,
        by,
        store,
    )


def abandon(
    batch_id: str,
    *,
    reason: str | None = None,
    dry_run: bool = False,
    forget_doubts: bool = False,
    force: bool = False,
    by: str | None = None,
    store: Store | str | None = None,
) -> RecoveryReport:
    """Give a batch up: its effects are archived, then what was never done leaves the ledger.

    What is done stays, so that no later run does it again. An external effect in doubt stays in doubt, unless
    `forget_doubts`: then a later run may do it a second time. Everything else is as for `recover`.
    """
    asked = Asked("abandon", None, force, forget_doubts)
    return _recover(batch_id, asked, reason, dry_run, by, store)


def hint_of(ledger: Ledger, batch_id: str, policy: RecoveryPolicy | None = None) -> RecoveryHint | None:
    """How to go on with a batch; from its effects alone while the Prefect API cannot be asked."""
    asked = Asked(policy=policy)
    try:
        return hint_for(_look(ledger, batch_id), asked, 0.5)
    except ApiUnavailable:
        found = _in_order(ledger.effects(batch_id))
        log = Audit(ledger, batch_id).document()
        seen = Seen(batch_id, _effects(found), (), None, False, log, 0.0)
        hint = hint_for(seen, asked, 0.5)
        return None if hint is None else hint.model_copy(update={"why": f"{hint.why} ({_UNKNOWN_END})"})


def who() -> str:
    """Whoever is doing this: the flow run that is going on, else the user of this host."""
    context = FlowRunContext.get()
    run = context.flow_run if context is not None else None
    if run is not None:
        creator = run.created_by.display_value if run.created_by else None
        return f"flow run {run.name!r}" + (f" of {creator}" if creator else "")
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container's user may have no name
        return f"somebody@{socket.gethostname()}"


# -- one recovery


def _recover(
    batch_id: str, asked: Asked, reason: str | None, dry_run: bool, by: str | None, store: Store | str | None
) -> RecoveryReport:
    ledger = open_ledger(store)
    seen = _look(ledger, check_batch_id(batch_id))
    if dry_run:
        return _report(seen, decide(seen, asked, random.random()), entries_of(seen.log), dry_run=True)
    audit = Audit(ledger, seen.batch_id)
    entry = audit.claim(by or who(), asked.strategy, reason)
    if entry is None:
        why = "somebody else is recovering it at this moment"
        return _report(seen, Decision(None, "refused", why), audit.entries())
    try:
        seen = _settled(ledger, seen.batch_id, asked)
        decision = _carry_out(ledger, audit, entry, seen, asked)
    except BaseException as error:
        why = said(f"{type(error).__name__}: {error}") or ""
        audit.finish(entry.model_copy(update={"outcome": "error", "why": why}))
        raise
    audit.finish(_entry(entry, seen, decision))
    report = _report(seen, decision, audit.entries())
    payload = report.model_dump(mode="json", exclude={"audit"})
    emit("batch.recovered", "batch", seen.batch_id, {**payload, "by": entry.by})
    return report


def _carry_out(ledger: Ledger, audit: Audit, entry: AuditEntry, seen: Seen, asked: Asked) -> Decision:
    """Do what is decided; the decision as it then came out."""
    if seen.run is not None:
        audit.ended(seen.run.state)
    decision = decide(seen, asked, random.random())
    if decision.action == "rescheduled":
        assert seen.run is not None
        if not audit.begin_restart(_entry(entry, seen, decision, outcome="started")):
            return Decision(decision.strategy, "refused", "somebody else took over the recovery")
        refused = run_again(seen.run.id, decision.next_at, f"Recovered by {entry.by}: {decision.why}")
        return decision if refused is None else Decision(decision.strategy, "refused", refused)
    if decision.action == "compensated":
        return _compensated(ledger, seen, asked, decision)
    if decision.action == "abandoned":
        clearing = partial(clear, ledger, seen.batch_id, why=entry.reason or decision.why, by=entry.by)
        removed, doubts = clearing(forget_doubts=asked.forget_doubts)
        kept = f"; still in doubt: {', '.join(map(repr, doubts))}" if doubts else ""
        why = f"{decision.why}; {removed} of {len(seen.effects)} effects were archived and cleared{kept}"
        return Decision(decision.strategy, "abandoned", why)
    return decision


def _compensated(ledger: Ledger, seen: Seen, asked: Asked, decision: Decision) -> Decision:
    report = rollback(seen.batch_id, to=asked.to, store=ledger.store)
    left = "" if report.complete else "; the rest waits for a person"
    return Decision(decision.strategy, "compensated", f"{decision.why}: {report}{left}")


def _look(ledger: Ledger, batch_id: str) -> Seen:
    found = ledger.effects(batch_id)
    run = find_run(batch_id, (document for document, _ in found))
    if run is not None and not found and run_id_of(batch_id) and str(run.id) != batch_id:
        # A subflow run: its effects belong to its root.
        return _look(ledger, str(run.id))
    found = _in_order(found)
    busy = tuple(document["key"] for document, alive in found if alive)
    log = Audit(ledger, batch_id).document()
    named_after_run = run_id_of(batch_id) is not None
    return Seen(batch_id, _effects(found), busy, run, named_after_run, log, ledger.store.now())


def _in_order(found: list[tuple[EffectDocument, bool]]) -> list[tuple[EffectDocument, bool]]:
    return sorted(found, key=lambda one: (one[0]["first_at"], one[0]["key"]))


def _settled(ledger: Ledger, batch_id: str, asked: Asked) -> Seen:
    """How the batch stands, once nobody will report an earlier crash of its run any more, and whoever died
    in it is known to be dead. Refusing instead would leave it lying: nothing reports the crash again."""
    seen = _look(ledger, batch_id)
    if asked.force or seen.run is None or seen.run.type != "CRASHED":
        return seen
    # What was waited counts where the API's clock is not this machine's.
    age = max(0.0, time.time() - seen.run.since)
    if age < CRASH_SETTLES:
        time.sleep(CRASH_SETTLES - age)
        age, seen = CRASH_SETTLES, _look(ledger, batch_id)
    while seen.busy and age < OWNER_SETTLES and seen.run is not None and seen.run.type == "CRASHED":
        time.sleep(BUSY_PAUSE)
        age, seen = age + BUSY_PAUSE, _look(ledger, batch_id)
    return seen


def _effects(found: list[tuple[EffectDocument, bool]]) -> tuple[SeenEffect, ...]:
    """What counts of the effects; of those that only undo others, what is in doubt."""
    seen = [(document, _effect(document, alive)) for document, alive in found]
    return tuple(one for document, one in seen if "compensates" not in document or one.state == "unknown")


def _effect(document: EffectDocument, alive: bool) -> SeenEffect:
    undo: dict[str, Any] = document.get("compensation") or {}
    return SeenEffect(
        key=document["key"],
        kind=document["kind"],
        state=state_of(document, alive),
        verify=bool(document.get("verify") or undo.get("verify")),
        compensate=bool(undo) and not undo.get("given_up"),
        stuck=document["state"] == "compensating" and undo.get("error") is not None,
    )


# -- telling


def _entry(entry: AuditEntry, seen: Seen, decision: Decision, outcome: str | None = None) -> AuditEntry:
    return entry.model_copy(
        update={
            "strategy": decision.strategy,
            "outcome": outcome or decision.action,
            "why": said(decision.why) or "",
            "flow_run_id": None if seen.run is None else str(seen.run.id),
            "next_at": decision.next_at,
        }
    )


def _report(
    seen: Seen, decision: Decision, audit: tuple[AuditEntry, ...], *, dry_run: bool = False
) -> RecoveryReport:
    return RecoveryReport(
        batch_id=seen.batch_id,
        strategy=decision.strategy,
        why=redact(decision.why),
        action=decision.action,
        flow_run_id=None if seen.run is None else str(seen.run.id),
        next_at=decision.next_at,
        dry_run=dry_run,
        audit=audit,
    )


def _known(strategy: str) -> str:
    if strategy not in ASKED:
        raise ConfigurationError(f"strategy={strategy!r} is no way to recover{nearest(str(strategy), ASKED)}")
    return strategy
