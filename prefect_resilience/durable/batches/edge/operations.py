"""Recovery as flows, which operators deploy. Automations run them when a flow run fails or crashes."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from prefect import flow
from prefect.logging import get_run_logger
from pydantic import Field

from prefect_resilience.durable.batches.edge import closing, known, recovery, settling
from prefect_resilience.durable.batches.edge.flow_runs import asks_for_recovery
from prefect_resilience.durable.batches.strategies import RecoveryPolicy, Strategy
from prefect_resilience.errors.exceptions import ConfigurationError

BatchId = Annotated[str, Field(min_length=1)]


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
    """Continue a batch whose run ended badly: the same flow run runs again, without repeating done effects.

    Args:
        batch_id: The id of a flow run, or of a batch with a name. In an automation: {{ flow_run.id }}.
        strategy: auto follows the batch's hint, as far as the policy allows. restart runs it again whatever
            the hint is; compensate rolls back the done effects; abandon gives it up.
        reason: Why, for the audit log.
        to: With compensate: the savepoint, or the other batch, after which everything is rolled back.
        dry_run: Only report the action.
        force: Recover even if the run seems to be running. Use it only if its process is certainly gone.
        policy: How often auto recovers in a row, with which delays, and its action after permanent errors.
        only_if_asked: Only recover a run whose flow has recovery="auto", or whose deployment has the tag
            recovery:auto. The automation for crashes uses it.
    """
    if only_if_asked and not asks_for_recovery(batch_id):
        why = (
            'automatic recovery is off: its flow has no recovery="auto", its deployment no tag recovery:auto'
        )
        get_run_logger().info("Batch %r: nothing: %s", batch_id, why)
        return {"batch_id": batch_id, "action": "nothing", "why": why}
    report = recovery.recover(
        batch_id,
        strategy,
        reason=reason,
        to=to,
        dry_run=dry_run,
        force=force,
        policy=policy,
        progress=get_run_logger().info,
    )
    _log(report)
    return report.model_dump(mode="json")


@flow(name="abandon-batch", flow_run_name="abandon {batch_id}")
def abandon_batch(
    batch_id: BatchId, reason: str | None = None, dry_run: bool = False, forget_doubts: bool = False
) -> dict[str, Any]:
    """Give up a batch: archive its effects, and remove those that were never done from the ledger.

    Args:
        batch_id: The id of a flow run, or of a batch with a name.
        reason: Why, for the audit log.
        dry_run: Only report the action.
        forget_doubts: Remove effects in doubt too; a later run of the batch may then repeat them.
    """
    report = recovery.abandon(batch_id, reason=reason, dry_run=dry_run, forget_doubts=forget_doubts)
    _log(report)
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
    """Record the outcome of an effect that is in doubt, or could not be compensated. The next run uses it.

    Args:
        batch_id: The id of a flow run, or of a batch with a name.
        key: The effect, as `prefect-resilience batches show` prints it.
        answer: done: it took place, and is not repeated. not_done: it did not, and may be done. For an effect
            that a rollback could not compensate: `undone`: a person compensated it. kept: it stays done, and
            no rollback tries to compensate it any more.
        result: With done: the value that its task returns from now on.
        external_id: With done: its id at the receiver.
        reason: How you know, for the audit log.
    """
    after = settling.settle(batch_id, key, answer, result, external_id, reason=reason)
    get_run_logger().info("Effect %r in batch %r is now %s", key, batch_id, after.state)
    return after.state


@flow(name="prune-batches")
def prune_batches(older_than_days: float = 180.0, dry_run: bool = False) -> list[str]:
    """Archive batches that had no activity for long, and remove them from the ledger. Returns their ids.

    Args:
        older_than_days: How many days; more than the time within which any flow run may be run again.
        dry_run: Only report the batches.
    """
    if older_than_days < 0:
        raise ConfigurationError(f"older_than_days={older_than_days} must be 0 or more")
    gone = known.prune(timedelta(days=older_than_days), dry_run=dry_run)
    get_run_logger().info("Batches %s: %d", "to be archived" if dry_run else "archived", len(gone))
    return [batch.batch_id for batch in gone]


@flow(name="close-task-runs")
def close_task_runs(
    older_than_minutes: Annotated[float, Field(ge=1)] = 10.0,
    limit: Annotated[int, Field(ge=1)] = 2_000,
    dry_run: bool = False,
) -> int:
    """Set task runs to Crashed that a killed process left Running or Pending. Returns how many.

    Only flow runs that have ended are read. A task run that may still be running is left as it is: its
    process sent a sign of life after the end of its flow run, or it waits for a task worker. The end of a
    resilient flow's next pass does the same for its run.

    Args:
        older_than_minutes: How long ago the flow run must have ended, and its task runs have changed.
        limit: The most unfinished task runs that are read.
        dry_run: Only report how many there are.
    """
    done = closing.close_all(timedelta(minutes=older_than_minutes), limit, dry_run=dry_run)
    log = get_run_logger()
    for flow_run_id, count in done.items():
        log.info(
            "Flow run %s: %d task runs set to Crashed, %d remain", flow_run_id, count.closed, count.remaining
        )
    return sum(count.remaining if dry_run else count.closed for count in done.values())


@flow(name="crash-silent-runs")
def crash_silent_runs(silent_minutes: Annotated[float, Field(ge=1)] = 10.0, dry_run: bool = False) -> int:
    """Set flow runs to Crashed that are Running but stopped sending heartbeats, or that wait for a retry in a
    process that is gone. Returns how many.

    A worker that died with its runs reports nothing. Once the runs are Crashed, they are recovered like after
    any other crash. A run that never sent a heartbeat is left as it is.

    Args:
        silent_minutes: How long ago the last heartbeat, or the time of the retry, must be. Prefect sends a
            heartbeat every three minutes (PREFECT_FLOWS_HEARTBEAT_FREQUENCY): use more than twice that.
        dry_run: Only report how many there are.
    """
    silent = closing.crash_silent(timedelta(minutes=silent_minutes), dry_run=dry_run)
    for run in silent:
        get_run_logger().warning("Flow run %r (%s): %s", run.name, run.id, run)
    return len(silent)


def _log(report: recovery.RecoveryReport) -> None:
    get_run_logger().info("Batch %r: %s: %s", report.batch_id, report.action, report.why)
