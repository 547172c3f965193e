"""The flows that an operator deploys and runs from the Prefect UI: circuits, plans, batches, dead letters.

In a prefect.yaml the entrypoint is a module path with a dot before the flow, such as
`entrypoint: prefect_resilience.operations.set_circuit`. A worker then imports the flow from the installed
package and pulls no code. Configure the worker with the store of the fleet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from pydantic import Field, WithJsonSchema

from prefect_resilience.durable.batches.edge import closing, known, parking, recovery, settling
from prefect_resilience.durable.batches.edge.flow_runs import find_run, who
from prefect_resilience.durable.batches.strategies import RecoveryPolicy, Strategy
from prefect_resilience.durable.letters.edge.operations import purge_dead_letters as purge_dead_letters
from prefect_resilience.durable.letters.edge.operations import replay_dead_letters as replay_dead_letters
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.graphs.plans.actions import Actions
from prefect_resilience.graphs.plans.edge.start import carry_out, title_of
from prefect_resilience.graphs.plans.model import Plan
from prefect_resilience.graphs.plans.result import PlanResult
from prefect_resilience.guards.circuits.breaker import get_circuits
from prefect_resilience.operations.fleet_circuits import DONE, Action, change_circuit, find_circuit
from prefect_resilience.operations.reports import report as make_report
from prefect_resilience.operations.reports.rendering import headline, markdown_of
from prefect_resilience.operations.tuning import tune as make_advice
from prefect_resilience.operations.tuning.report import headline_of, page_of
from prefect_resilience.tasks.edge.artifacts import write_circuits_table
from prefect_resilience.tasks.edge.flow import resilient_flow

ActionsOption = Annotated[
    Actions | Mapping[str, Callable[..., Any]] | list[str] | str | None,
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}),
]
"""The actions of a plan, as `Actions.of` takes them. A form in the UI takes the names of modules."""


# -- the flows


@flow(name="set-circuit", flow_run_name="{action}: {name}")
def set_circuit(
    name: Annotated[str, Field(min_length=1)],
    action: Action,
    reason: str = "",
    until: datetime | None = None,
) -> dict[str, Any]:
    """Open, close, disable or reset one circuit for the whole fleet, at once.

    Args:
        name: The circuit's name in `prefect-resilience circuits list` and in events, as in llm:primary.
        action: open rejects every call; close lets calls through, and the circuit can open again as usual;
            disable lets every call through and counts nothing; reset starts over with an empty window.
        reason: The reason, for the next person who looks at the circuit.
        until: Only with open. After this time a probe decides; without it, the circuit stays open until a
            person closes it. A time without an offset is in UTC.
    """
    moment = _moment(action, until)
    before = find_circuit(name, get_circuits())
    after = change_circuit(name, action, reason or f"{DONE[action]} by {who()}", moment)
    get_run_logger().info("Circuit %r: %s -> %s", name, before.state, after.state)
    return after.model_dump(mode="json")


@flow(name="reset-circuits")
def reset_circuits(reason: str = "") -> list[dict[str, Any]]:
    """Reset every circuit of the fleet: state closed, windows empty, re-openings set to 0.

    Args:
        reason: The reason, for the next person who looks at the circuits.
    """
    why = reason or f"reset by {who()}"
    circuits = [change_circuit(circuit.name, "reset", why) for circuit in get_circuits()]
    get_run_logger().info("Circuits reset: %d", len(circuits))
    return [circuit.model_dump(mode="json") for circuit in circuits]


@flow(name="report")
def report(
    hours: Annotated[float, Field(gt=0, le=24 * 365)] = 24,
    since: datetime | None = None,
    until: datetime | None = None,
) -> dict[str, Any]:
    """Report retries, failures, fallbacks and recoveries in a period, as the artifact "fleet-report".

    Args:
        hours: How far the report looks back from its end.
        since: Start of the period, instead of hours. A time without an offset is in UTC.
        until: End of the period; the default is now.
    """
    begin = since or (until - timedelta(hours=hours) if until else timedelta(hours=hours))
    figures = make_report(begin, until)
    get_run_logger().info("%s", headline(figures))
    markdown, description = markdown_of(figures), headline(figures)
    try:
        create_markdown_artifact(markdown=markdown, key="fleet-report", description=description)
    except Exception as error:  # noqa: BLE001 - any error of the API
        get_run_logger().warning("The report could not be written as an artifact: %s", redact(str(error)))
    return figures.model_dump(mode="json")


@flow(name="tune")
def tune(days: Annotated[float, Field(gt=0, le=35)] = 7, task: str | None = None) -> dict[str, Any]:
    """Advise which numbers of the tasks' policies to change, as the artifact "policy-advice".

    Nothing is changed: `prefect-resilience tune --apply` writes advice to the policy blocks.

    Args:
        days: How many days of runs the advice is based on.
        task: Only the advice for this task.
    """
    advice, logger = make_advice(f"{days}d", task), get_run_logger()
    logger.info("%s", headline_of(advice))
    for change in advice.advice:
        logger.info("%s, %s: %s", change.task, change.option, redact(change.why))
    create_markdown_artifact(markdown=page_of(advice), key="policy-advice", description=headline_of(advice))
    return advice.model_dump(mode="json")


@flow(name="show-circuits")
def show_circuits() -> list[dict[str, Any]]:
    """Write every circuit of the fleet into the artifact "circuits", those that are not closed first."""
    circuits = write_circuits_table()
    get_run_logger().info("Circuits: %d", len(circuits))
    return [circuit.model_dump(mode="json") for circuit in circuits]


def _plan_run_name() -> str:
    return title_of(flow_run.parameters.get("plan"))


# The plan reports all of its mistakes at once; the parameter types only make the form in the UI.
@resilient_flow(name="run-plan", flow_run_name=_plan_run_name, validate_parameters=False)
def run_plan(
    plan: Plan | dict[str, Any] | str | Path,
    *,
    inputs: dict[str, Any] | None = None,
    actions: ActionsOption = None,
) -> PlanResult:
    """Run a plan, each of its nodes as a task run, and return the result of each node.

    Raises PlanError with every mistake of the plan before any node runs, and PlanFailed if a node fails and
    no other node handles the failure. From a coroutine: `await arun_plan(...)`.

    Args:
        plan: The plan itself, or a file with one in JSON or YAML.
        inputs: Values for the inputs of the plan; they override the defaults in the plan.
        actions: The modules whose actions the plan uses, as in ["my_team.actions"]; in Python also a
            mapping of names to functions, which override registered actions.
    """
    return carry_out(plan, inputs, actions)


async def arun_plan(
    plan: Plan | dict[str, Any] | str | Path,
    *,
    inputs: dict[str, Any] | None = None,
    actions: ActionsOption = None,
) -> PlanResult:
    """`run_plan` from a coroutine; the event loop is not blocked."""
    return await asyncio.to_thread(run_plan, plan, inputs=inputs, actions=actions)


def _moment(action: Action, until: datetime | None) -> datetime | None:
    if until is None:
        return None
    if action != "open":
        raise ConfigurationError(f"until={until} is only for action='open': leave it out to {action}")
    # The form and the worker may be in different time zones.
    return until if until.tzinfo else until.replace(tzinfo=UTC)


# -- batches and their flow runs

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
    run = find_run(batch_id) if only_if_asked else None
    if only_if_asked and (run is None or not run.asks_for_recovery):
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
    _log_report(report)
    return report.model_dump(mode="json")


@flow(name="abandon-batch", flow_run_name="abandon {batch_id}")
def abandon_batch(batch_id: BatchId, reason: str | None = None, dry_run: bool = False) -> dict[str, Any]:
    """Give up a batch: archive its effects, and remove those that were never done from the ledger.

    Args:
        batch_id: The id of a flow run, or of a batch with a name.
        reason: Why, for the audit log.
        dry_run: Only report the action.
    """
    report = recovery.abandon(batch_id, reason=reason, dry_run=dry_run)
    _log_report(report)
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

    Only flow runs that have ended are read. A task run that waits for a task worker is left as it is. The end
    of a resilient flow's next pass does the same for its run.

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
def crash_silent_runs(
    silent_minutes: Annotated[float, Field(ge=1)] | None = None, dry_run: bool = False
) -> int:
    """Set flow runs to Crashed that are Running but stopped sending heartbeats, or that wait for a retry in a
    process that is gone; and schedule parked runs that nothing would wake. Returns how many.

    A worker that died with its runs reports nothing. Once the runs are Crashed, they are recovered like after
    any other crash. A run that never sent a heartbeat is left as it is.

    Args:
        silent_minutes: How long ago the last heartbeat, or the time of the retry, must be. By default, a run
            that missed three heartbeats is silent, and a retry is late after 2 minutes. Prefect sends a
            heartbeat every three minutes (PREFECT_FLOWS_HEARTBEAT_FREQUENCY).
        dry_run: Only report how many there are.
    """
    limit = None if silent_minutes is None else timedelta(minutes=silent_minutes)
    silent = closing.crash_silent(limit, dry_run=dry_run)
    for run in silent:
        get_run_logger().warning("Flow run %r (%s): %s", run.name, run.id, run.why)
    stranded = [*parking.mend_parked(dry_run=dry_run)]
    for parked, trouble in stranded:
        get_run_logger().warning("Flow run %r (%s): %s", parked.name, parked.flow_run_id, trouble)
    return len(silent) + len(stranded)


def _log_report(report: recovery.RecoveryReport) -> None:
    get_run_logger().info("Batch %r: %s: %s", report.batch_id, report.action, report.why)
