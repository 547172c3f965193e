"""Recovery as flows: operators deploy them, and automations run them when a flow run fails or crashes."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Annotated, Any, Literal

from prefect import flow
from prefect.logging import get_run_logger
from pydantic import Field

from prefect_resilience.durable.batches.edge import closing, known, recovery, settling
from prefect_resilience.durable.batches.edge.flow_runs import asks_for_recovery, run_of
from prefect_resilience.durable.batches.strategies import RecoveryPolicy, Strategy
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.errors.exceptions import ConfigurationError

BatchId = Annotated[str, Field(min_length=1)]


WORKER_LETS_GO = 15.0
"""Seconds from the end of a failed run until its process, which writes its summary, is gone. Its worker keeps
a place for it: one that was started with --limit breaks down if the run is scheduled again meanwhile."""


@flow(name="recover-batch", flow_run_name="recover {batch_id}")
def recover_batch(
    batch_id: BatchId,
    strategy: Literal["auto", "restart"] | Strategy = "auto",
    reason: str | None = None,
    to: str | None = None,
    dry_run: bool = False,
    force: bool = False,
    policy: RecoveryPolicy | None = None,
    only_if_asked: bool = False,
) -> dict[str, Any]:
    """Go on with a batch whose run ended badly: the same flow run runs again, and what is done stays done.

    Args:
        batch_id: The id of a flow run, or of a batch with a name. In an automation: {{ flow_run.id }}.
        strategy: auto does what the batch's hint says, as far as the policy lets it. restart runs it again
            whatever the hint says; compensate undoes what was done; abandon gives it up.
        reason: Why, for the audit log.
        to: With compensate: the savepoint, or the other batch, since which everything is undone.
        dry_run: Only say what would be done.
        force: Also while the run is said to be going on: its process is gone for sure.
        policy: How often auto recovers in a row, with which pauses, and what it does about permanent errors.
        only_if_asked: Only a run whose flow says recovery="auto", or whose deployment has the tag
            recovery:auto; what an automation for every crash asks.
    """
    if only_if_asked and not asks_for_recovery(batch_id):
        why = "neither its flow nor its deployment says that it may be recovered by itself"
        get_run_logger().info("Batch %r: nothing: %s", batch_id, why)
        return {"batch_id": batch_id, "action": "nothing", "why": why}
    if only_if_asked:
        _let_go(batch_id)
    report = recovery.recover(
        batch_id, strategy, reason=reason, to=to, dry_run=dry_run, force=force, policy=policy
    )
    _told(report)
    return report.model_dump(mode="json")


def _let_go(batch_id: str) -> None:
    """Wait until the worker of a run that has just failed is done with it."""
    run = run_of(open_ledger(), batch_id)
    if run is not None and run.type == "FAILED":
        age = max(0.0, time.time() - run.since)
        time.sleep(max(0.0, WORKER_LETS_GO - age))


@flow(name="abandon-batch", flow_run_name="abandon {batch_id}")
def abandon_batch(
    batch_id: BatchId, reason: str | None = None, dry_run: bool = False, forget_doubts: bool = False
) -> dict[str, Any]:
    """Give a batch up: its effects are archived, and what was never done leaves the ledger.

    Args:
        batch_id: The id of a flow run, or of a batch with a name.
        reason: Why, for the audit log.
        dry_run: Only say what would be done.
        forget_doubts: Also what is in doubt; a later run of the batch may then do it a second time.
    """
    report = recovery.abandon(batch_id, reason=reason, dry_run=dry_run, forget_doubts=forget_doubts)
    _told(report)
    return report.model_dump(mode="json")


@flow(name="settle-effect", flow_run_name="settle {key}: {answer}")
def settle_effect(
    batch_id: BatchId,
    key: str,
    answer: settling.Answer,
    result: Any = None,
    external_id: str | None = None,
    reason: str | None = None,
) -> str:
    """Say what became of an effect that is in doubt, or could not be undone; the next run goes by it.

    Args:
        batch_id: The id of a flow run, or of a batch with a name.
        key: The effect, as `prefect-resilience batches show` writes it.
        answer: done: it took place, and is not done again. not_done: it did not, and may be done. Of one that
            a rollback could not undo: undone: it is, as somebody saw to it. kept: it stays done, and no
            rollback tries to undo it any more.
        result: With done: what its task is to return from now on.
        external_id: With done: how the receiver calls it.
        reason: How you know, for the audit log.
    """
    after = settling.settle(batch_id, key, answer, result, external_id, reason=reason)
    get_run_logger().info("%r of batch %r is %s now", key, batch_id, after.state)
    return after.state


@flow(name="prune-batches")
def prune_batches(older_than_days: float = 180.0, dry_run: bool = False) -> list[str]:
    """Archive batches in which nothing has happened for long, and take them out of the ledger; their ids.

    Args:
        older_than_days: How long; longer than any flow run is ever run again.
        dry_run: Only say which they are.
    """
    if older_than_days < 0:
        raise ConfigurationError(f"older_than_days={older_than_days} must be 0 or more")
    gone = known.prune(timedelta(days=older_than_days), dry_run=dry_run)
    get_run_logger().info("Batches %s: %d", "to be archived" if dry_run else "archived", len(gone))
    return [one.batch_id for one in gone]


@flow(name="close-task-runs")
def close_task_runs(
    older_than_minutes: Annotated[float, Field(ge=1)] = 10.0,
    limit: Annotated[int, Field(ge=1)] = 2_000,
    dry_run: bool = False,
) -> int:
    """Close task runs as Crashed that a killed process left Running or Pending; how many.

    Only flow runs that are over are looked at. A task run that may still go on is left as it is: its process
    gave a sign of life after the end of its flow run, or it waits for a task worker. A recovery does the same
    for the run that it recovers.

    Args:
        older_than_minutes: For how long the flow run must be over, and its task runs must not have moved.
        limit: At most so many unfinished task runs are looked at.
        dry_run: Only say how many there are.
    """
    done = closing.close_all(timedelta(minutes=older_than_minutes), limit, dry_run=dry_run)
    log = get_run_logger()
    for flow_run_id, one in done.items():
        log.info("Flow run %s: %d task runs closed, %d remain", flow_run_id, one.closed, one.remaining)
    return sum(one.remaining if dry_run else one.closed for one in done.values())


@flow(name="crash-silent-runs")
def crash_silent_runs(silent_minutes: Annotated[float, Field(ge=1)] = 10.0, dry_run: bool = False) -> int:
    """Set flow runs to Crashed that are Running and stopped sending heartbeats; how many.

    A worker that died with its runs reports nothing. Once they are Crashed they are recovered like every
    other crash. A run that never sent a heartbeat is left as it is.

    Args:
        silent_minutes: How long ago the last heartbeat must be. Prefect sends one every three minutes
            (PREFECT_FLOWS_HEARTBEAT_FREQUENCY): more than twice that.
        dry_run: Only say how many there are.
    """
    found = closing.crash_silent(timedelta(minutes=silent_minutes), dry_run=dry_run)
    for one in found:
        get_run_logger().warning("Flow run %r (%s) sends no heartbeats any more", one.name, one.id)
    return len(found)


def _told(report: recovery.RecoveryReport) -> None:
    get_run_logger().info("Batch %r: %s: %s", report.batch_id, report.action, report.why)
