"""Recovers a batch whose run failed or crashed: the same flow run runs again, without repeating done effects.

    claim ──> look ──> decide ──> record ──> act ──> record the outcome
      └─ another recovery has it: rejected

If the process dies in between, the next recovery takes the claim and looks again. A run that already waits
for a worker is not scheduled a second time.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Any

from prefect_resilience.base.policy import nearest
from prefect_resilience.durable.batches.audit import Audit, AuditEntry, clear, entries_of, one_line
from prefect_resilience.durable.batches.batch import check_batch_id
from prefect_resilience.durable.batches.decisions import (
    ASKED,
    AUTO,
    RESTART,
    BatchSnapshot,
    RecoveryReport,
    RecoveryRequest,
    decide,
    decided,
    with_rollback,
)
from prefect_resilience.durable.batches.edge.closing import close_after_recovery
from prefect_resilience.durable.batches.edge.flow_runs import run_again, wait_for_worker, who
from prefect_resilience.durable.batches.edge.known import check_known
from prefect_resilience.durable.batches.edge.status import look
from prefect_resilience.durable.batches.run_passes import RECOVERED
from prefect_resilience.durable.batches.strategies import RESTARTS, RecoveryPolicy
from prefect_resilience.durable.effects.ledger import Ledger, open_ledger
from prefect_resilience.durable.effects.owner import LEASE_SECONDS, QUIET_SECONDS
from prefect_resilience.durable.sagas.edge.saga import rollback
from prefect_resilience.durable.sagas.undo import SagaLog
from prefect_resilience.errors.exceptions import ConfigurationError, NotRecorded
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.stores.base import Store
from prefect_resilience.telemetry.edge.events import emit

logger: logging.Logger = logging.getLogger("prefect_resilience.effects")

CRASH_SETTLES = 20.0
"""A crash must be this old, in seconds, before its run is rescheduled, unless its worker has told that it
released the run. Prefect's process worker reports a crash twice, and the second report would end the new
schedule. The worker sends it after it has written the run's summary, for which it waits up to 15 s."""

OWNER_SETTLES = LEASE_SECONDS + QUIET_SECONDS + 5.0
"""The seconds after a failure or crash of its run in which an effect may be, or seem, in progress. A crash on
another machine is noticed only when the lease expires, and an overdue call runs until its process ends."""

BUSY_PAUSE = 0.5
CLAIMED = "another recovery of it is in progress"


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
    progress: Callable[[str], None] | None = None,
    store: Store | str | None = None,
) -> RecoveryReport:
    """Continue a batch whose run ended badly: the same flow run runs again, without repeating done effects.

    Args:
        batch_id: The id of a flow run (for a subflow run, its root is used), or of a `with batch(...)`.
        strategy: "auto" follows the batch's hint, as far and as often as `policy` allows. A named strategy is
            applied at once: "restart", or one of the hint's strategies.
        reason: Why, for the audit log.
        dry_run: Only report the action; nothing is written anywhere.
        to: With "compensate": the savepoint, or the other batch, after which everything is rolled back;
            default: everything.
        force: Recover even if the run seems to be running (its process is certainly gone), waits for its
            scheduled time (it must run at once), or if the store does not have its records (the worker has
            another one). The audit log says so.
        by: Who recovers it; default: the user and host, or the flow run.
        policy: The limits of "auto"; default: those of the run's flow (`recovery=`), else the default policy.
        progress: Called with a sentence before a wait.

    A run without a deployment cannot be run again from here; `why` then explains what to do. A restart waits
    until the worker of the run has released it, at most 5 minutes after its end; if no worker tells, until a
    crash is 20 seconds old. Without `force`, it waits while an effect seems to be in progress, until a crash
    or a failure is 125 seconds old.

    Raises NotRecorded if Prefect has records of the batch that the store does not have: the run uses another
    store. Raises StoreUnavailable, ApiUnavailable, and ConfigurationError for invalid arguments, such as an
    unknown batch; then nothing is written.
    """
    if strategy not in ASKED:
        raise ConfigurationError(f"unknown strategy {strategy!r}{nearest(str(strategy), ASKED)}")
    asked = RecoveryRequest(strategy, to, force, policy=policy)
    ledger = open_ledger(store)
    snapshot = look(ledger, check_batch_id(batch_id))
    if not snapshot.effects and snapshot.run is None:
        check_known(ledger, batch_id)
    if snapshot.not_recorded is not None and not asked.force:
        raise NotRecorded(f"nothing was changed: {snapshot.not_recorded}")
    audit = Audit(ledger, snapshot.batch_id)
    if dry_run:
        report = decide(snapshot, asked, random.random())
        if audit.is_claimed(snapshot.log):
            return _final(decided(snapshot, None, "refused", CLAIMED), entries_of(snapshot.log), dry_run=True)
        if report.action == "compensated":
            report = with_rollback(report, SagaLog(ledger, snapshot.batch_id).plan(asked.to), planned=True)
        return _final(report, entries_of(snapshot.log), dry_run=True)
    entry = audit.claim(by or who(), asked.strategy, reason, force=asked.force)
    if entry is None:
        return _final(decided(snapshot, None, "refused", CLAIMED), audit.entries())
    try:
        snapshot, waited = _wait_until_settled(ledger, snapshot.batch_id, asked, progress or logger.info)
        report = _carry_out(ledger, audit, entry, snapshot, asked)
        if waited:
            why = f"{report.why}; waited {waited:.0f} s until its worker had released it"
            report = report.model_copy(update={"why": why})
    except BaseException as error:
        why = one_line(f"{type(error).__name__}: {error}") or ""
        audit.finish(entry.model_copy(update={"outcome": "error", "why": why}))
        raise
    audit.finish(_entry(entry, report))
    if report.action == "rescheduled" and snapshot.run is not None and not snapshot.busy:
        close_after_recovery(snapshot.run.id)
    report = _final(report, audit.entries())
    payload = report.model_dump(mode="json", exclude={"audit"})
    emit("batch.recovered", "batch", snapshot.batch_id, {**payload, "by": entry.by})
    return report


def abandon(
    batch_id: str,
    *,
    reason: str | None = None,
    dry_run: bool = False,
    force: bool = False,
    by: str | None = None,
    store: Store | str | None = None,
) -> RecoveryReport:
    """Give up a batch: archive its effects, then remove those that were never done from the ledger.

    Effects that are done stay, so that no later run repeats them. External effects in doubt stay too: settle
    them first if a later run may repeat them. Afterwards `recover` with "auto" skips the batch until
    a strategy is named or one of its effects is begun again. Everything else is as in `recover`.
    """
    return recover(batch_id, "abandon", reason=reason, dry_run=dry_run, force=force, by=by, store=store)


# -- one recovery


def _carry_out(
    ledger: Ledger, audit: Audit, entry: AuditEntry, seen: BatchSnapshot, asked: RecoveryRequest
) -> RecoveryReport:
    """Act on the decision. Returns the report."""
    report = decide(seen, asked, random.random())
    if report.action == "rescheduled":
        assert seen.run is not None
        started = _entry(entry, report, outcome="started")
        if not audit.begin_restart(started, counts=not report.waits):
            return decided(seen, report.strategy, "refused", "another recovery has taken over")
        message = RECOVERED.format(by=entry.by, why=report.why)
        refusal = run_again(seen.run.id, report.next_at, message)
        return report if refusal is None else decided(seen, report.strategy, "refused", refusal)
    if report.action == "compensated":
        return with_rollback(report, rollback(seen.batch_id, to=asked.to, store=ledger.store))
    if report.action == "abandoned":
        cleared = clear(ledger, seen.batch_id, why=entry.reason or report.why, by=entry.by)
        return decided(seen, report.strategy, "abandoned", f"{report.why}; {cleared}")
    return report


def _wait_until_settled(
    ledger: Ledger, batch_id: str, asked: RecoveryRequest, say: Callable[[str], None]
) -> tuple[BatchSnapshot, float]:
    """The state of the batch, after waiting until its worker has released the run and no effect seems to be
    in progress; and the seconds waited for the worker. To refuse instead would leave the batch unrecovered,
    because its end is not reported again."""
    snapshot = look(ledger, batch_id)
    run, waited = snapshot.run, 0.0
    if run is None or not (run.ended_badly or asked.force):
        return snapshot, waited
    # The time waited is added, because the API's clock may differ from this machine's.
    age = max(0.0, time.time() - run.since)
    if run.deployed and asked.strategy in (AUTO, RESTART, *RESTARTS):
        hold, waited = wait_for_worker(run, say)
        rest = CRASH_SETTLES - age - waited
        if (
            hold in ("gone", "unknown")
            and (run.type == "CRASHED" or run.pool)
            and rest > 0
            and not asked.force
        ):
            say(f"Waiting {rest:.0f} s: the worker may report the end of flow run {run.name!r} again")
            time.sleep(rest)
            waited += rest + wait_for_worker(run, say)[1]
        age, snapshot = age + waited, look(ledger, batch_id) if waited else snapshot
    while snapshot.busy and age < OWNER_SETTLES and not asked.force and _has_ended_badly(snapshot):
        time.sleep(BUSY_PAUSE)
        age, snapshot = age + BUSY_PAUSE, look(ledger, batch_id)
    return snapshot, waited


def _has_ended_badly(seen: BatchSnapshot) -> bool:
    return seen.run is not None and seen.run.ended_badly


# -- reporting


def _entry(entry: AuditEntry, report: RecoveryReport, **more: Any) -> AuditEntry:
    copied = report.model_dump(include={"strategy", "flow_run_id", "next_at"})
    update = {**copied, "outcome": report.action, "why": one_line(report.why) or "", **more}
    return entry.model_copy(update=update)


def _final(report: RecoveryReport, audit: tuple[AuditEntry, ...], *, dry_run: bool = False) -> RecoveryReport:
    return report.model_copy(update={"why": redact(report.why), "audit": audit, "dry_run": dry_run})
