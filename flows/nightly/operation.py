"""The nightly operation: health checks, recovery of crashed runs, replay of dead letters, a report.

`prefect-resilience install` does the same within minutes, by automations. This flow is for a team that wants
one run a night, and one page to read in the morning.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from prefect import flow, get_client, task
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterEndTime,
    FlowRunFilterParentTaskRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType

from prefect_resilience import StoreUnavailable, dead_letters, get_circuits, recover
from prefect_resilience.operations import close_task_runs, crash_silent_runs, report

REJECTING = ("open", "forced_open")


@task
def check_health() -> dict[str, str]:
    """The Prefect API, the store, and the circuits that are not closed."""
    with get_client(sync_client=True) as client:
        failure = client.api_healthcheck()
    found = {"Prefect API": "available" if failure is None else f"unavailable: {failure}"}
    try:
        circuits = get_circuits()
    except StoreUnavailable as error:
        return {**found, "store": f"unavailable: {error}"}
    found["store"] = "available"
    found["circuits not closed"] = ", ".join(one.name for one in circuits if one.state != "closed") or "none"
    return found


@task
def recover_crashed_runs(flows: list[str] | None, force: bool) -> dict[str, str]:
    """Recover the flow runs that crashed or failed since yesterday, as far as they need no person."""
    chosen = FlowFilter(name=FlowFilterName(any_=flows)) if flows else None
    ended_badly = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CRASHED, StateType.FAILED])),
        end_time=FlowRunFilterEndTime(after_=datetime.now(UTC) - timedelta(days=1)),
        parent_task_run_id=FlowRunFilterParentTaskRunId(is_null_=True),
    )
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(flow_filter=chosen, flow_run_filter=ended_badly)
    reports = {run.name: recover(str(run.id), reason="nightly", force=force) for run in runs}
    return {f"run {name}": f"{report.action}: {report.why}" for name, report in reports.items()}


@task
def replay_letters(wait: float) -> str:
    """Replay the dead letters of services that are back: their circuit is closed, or lets a probe through."""
    letters = dead_letters.list(status="waiting")
    needed = {letter.error.circuit for letter in letters if letter.error is not None}
    until = time.monotonic() + wait
    while rejecting := {one.name for one in get_circuits() if one.state in REJECTING and one.name in needed}:
        if time.monotonic() > until:
            break
        time.sleep(0.5)
    ready = [one for one in letters if one.error is None or one.error.circuit not in rejecting]
    if not ready:
        return f"none of {len(letters)} dead letters is ready"
    return dead_letters.replay(ready, rate=20).summary()


@flow(name="nightly")
def nightly(flows: list[str] | None = None, wait: float = 600, force: bool = False) -> dict[str, str]:
    """One night. Returns the lines of the page.

    Args:
        flows: Recover only runs of these flows, and leave all other runs as they are.
        wait: Seconds to wait for open circuits before the replay.
        force: Recover runs that crashed less than 20 seconds ago, too.
    """
    health = check_health()
    if "unavailable" in " ".join(health.values()):
        raise RuntimeError(f"no operation tonight: {health}")
    if flows is None:
        crash_silent_runs()  # runs of machines that stopped sending heartbeats
        close_task_runs()  # task runs that killed processes left Running
    recovered = recover_crashed_runs(flows, force)
    replayed = replay_letters(wait)
    report(hours=24)  # the artifact "fleet-report"
    page = {
        **health,
        **recovered,
        "dead letters": replayed,
        **{f"circuit {one.name} now": one.state for one in get_circuits()},
    }
    rows = "\n".join(f"| {name} | {what} |" for name, what in page.items())
    create_markdown_artifact(key="nightly", markdown=f"| what | result |\n|---|---|\n{rows}")
    return page
