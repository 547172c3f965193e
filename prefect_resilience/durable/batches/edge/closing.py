"""Closes task runs of a killed process, and sets silent flow runs to Crashed."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.client.schemas.sorting import FlowRunSort, TaskRunSort
from prefect.states import Crashed
from prefect.types._datetime import parse_datetime

from prefect_resilience.base.drive import answers
from prefect_resilience.base.text import utc_text
from prefect_resilience.durable.batches.decisions import ApiUnavailable, BatchRun
from prefect_resilience.durable.batches.edge.flow_runs import (
    OVERDUE,
    events_since,
    retries_in_process,
    retry_at,
    set_state,
    stranded_runs,
)
from prefect_resilience.durable.batches.edge.marks import PAGE, asking, pages, refusal_of
from prefect_resilience.durable.batches.edge.tags import states_of
from prefect_resilience.durable.batches.run_passes import SKEW, RunPass, pass_of_task_run, passes_of
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.telemetry.model import FINAL

logger: logging.Logger = logging.getLogger("prefect_resilience.effects")

MOST_OF_A_RUN = 5_000
"""The most unfinished task runs of one flow run that are read at a time."""

WITHIN = 60.0
"""The most seconds spent on one flow run."""


# Task runs that a killed process left Running or Pending, and that nothing will ever finish.
#
# The process of a task run reports its states to the Prefect API, some seconds late. A killed process reports
# nothing. The functions below decide which task runs to close as Crashed. In doubt, a task run is left as it
# is.

UNFINISHED = ("RUNNING", "PENDING", "SCHEDULED")
"""Types of states that only the task run's own process can end."""

SETTLES = 10.0
"""The end of a pass and the state of its task run must be at least this old, in seconds: by then all reports
of the process have arrived."""

LONG = 3_600.0
"""Seconds without a change after which a task run is closed although it moved after the end of its pass."""


def find_lost_runs(
    runs: Iterable[TaskRun],
    passes: Sequence[RunPass],
    now: float,
    *,
    only_crashed: bool = False,
    settles: float = SETTLES,
) -> dict[UUID, str]:
    """The ids of the task runs that no process works on any more, each with the message of its new state.

    Args:
        runs: Unfinished task runs of one flow run.
        passes: The passes of that flow run.
        now: The time.
        only_crashed: Leave those of passes that ended without a crash: their process may still live.
        settles: The seconds without a change after which a task run is closed.

    A task run that waits for a task worker, or represents a subflow run, is left: it does not run in the
    process of its flow run. So is one whose state the API does not know yet.
    """
    lost: dict[UUID, str] = {}
    for run in runs:
        state, count = run.state, run.flow_run_run_count
        if state is None or state.type.value not in UNFINISHED:
            continue
        since, details = state.timestamp.timestamp(), state.state_details
        run_pass = pass_of_task_run(passes, count, since)
        if run_pass is None or details.deferred or details.child_flow_run_id is not None:
            continue
        if (run_pass.crashed or not only_crashed) and _is_over(run_pass, since, count, now, settles):
            was = f"It was {state.name} since {utc_text(since)}."
            end = "has an unknown end"
            if run_pass.ended is not None:
                end = f"ended {run_pass.end} at {utc_text(run_pass.ended)}"
            lost[run.id] = f"Unfinished after pass {run_pass.number} of its flow run, which {end}. {was}"
    return lost


def _is_over(one: RunPass, since: float, count: int, now: float, settles: float) -> bool:
    if not one.over:
        return False
    if one.ended is None:  # another pass has begun since, and the end of this one was never reported
        return now - since >= settles and count > 0
    if since > one.ended + SKEW:  # its state changed after the end: a process of that pass lived
        return now - since >= max(LONG, settles)
    return now - max(one.ended, since) >= settles


@dataclass(frozen=True, slots=True)
class Closed:
    """How many task runs of a flow run were set to Crashed, and how many unfinished ones remain."""

    closed: int = 0
    remaining: int = 0


def close_left_behind(
    client: SyncPrefectClient,
    flow_run: FlowRun,
    *,
    only_crashed: bool = False,
    settles: float = SETTLES,
    within: float = WITHIN,
    dry_run: bool = False,
) -> Closed:
    """Set the task runs of a flow run to Crashed if no process works on them any more.

    Args:
        client: The Prefect API.
        flow_run: Their flow run.
        only_crashed: Leave those of passes that ended without a crash: their process may still live.
        settles: The seconds without a change after which a task run is closed.
        within: Seconds after which the rest is left for a later call.
        dry_run: Change nothing; `remaining` then counts the task runs.

    Raises errors of the API.
    """
    until = time.monotonic() + within
    of_run = {"id": {"any_": [flow_run.id]}}
    runs = [*_read_unfinished(client, of_run, MOST_OF_A_RUN)]
    if not runs:
        return Closed()
    passes = passes_of(states_of(client, flow_run.id), run_count=flow_run.run_count)
    lost = find_lost_runs(runs, passes, time.time(), only_crashed=only_crashed, settles=settles)
    if dry_run or not lost:
        return Closed(0, len(lost))
    jobs = {run_id: partial(_close, client, run_id, message) for run_id, message in lost.items()}
    closed = sum(answers(jobs, until).values())
    return Closed(closed, len(lost) - closed)


def close_after_recovery(flow_run_id: UUID) -> None:
    """Close the task runs of a run that a recovery has just rescheduled. If this fails, the end of the run or
    the scheduled operation closes them. Never raises."""
    try:
        with get_client(sync_client=True) as client:
            run = client.read_flow_run(flow_run_id)
            done = close_left_behind(client, run, only_crashed=True)
        if done.closed:
            logger.info("Set %s unfinished task runs of a crashed flow run to Crashed", done.closed)
    except Exception as failure:  # noqa: BLE001 - the recovery itself has succeeded
        logger.warning(
            "Unfinished task runs of a crashed flow run could not be closed: %s", redact(repr(failure))
        )


_UNFINISHED = TaskRunFilter.model_validate({"state": {"type": {"any_": [*UNFINISHED]}}})


def _read_unfinished(client: SyncPrefectClient, flow_runs: dict[str, Any], most: int) -> Iterator[TaskRun]:
    """The task runs without a final state of some flow runs, at most `most`."""
    of_runs = {"flow_run_filter": FlowRunFilter.model_validate(flow_runs), "task_run_filter": _UNFINISHED}
    return pages(partial(client.read_task_runs, **of_runs, sort=TaskRunSort.EXPECTED_START_TIME_DESC), most)


_RESOURCE = "prefect.flow-run."


def _close(client: SyncPrefectClient, run_id: UUID, message: str) -> bool:
    # Without force: a final state that was set meanwhile stays.
    return refusal_of(client.set_task_run_state(run_id, Crashed(message=message))) is None


def close_all(older_than: timedelta, limit: int, *, dry_run: bool = False) -> dict[UUID, Closed]:
    """Close unfinished task runs of all flow runs that ended `older_than` ago; the counts by flow run.

    At most `limit` unfinished task runs are read. Raises errors of the API.
    """
    settles = max(older_than.total_seconds(), SETTLES)
    done: dict[UUID, Closed] = {}
    with get_client(sync_client=True) as client:
        before = datetime.now(UTC) - older_than
        ended = {"state": {"type": {"any_": sorted(FINAL)}}, "end_time": {"before_": before}}
        for run_id in dict.fromkeys(run.flow_run_id for run in _read_unfinished(client, ended, limit)):
            assert run_id is not None
            run = client.read_flow_run(run_id)
            closed = close_left_behind(client, run, settles=settles, dry_run=dry_run)
            if closed != Closed():
                done[run.id] = closed
    return done


@dataclass(frozen=True, slots=True)
class SilentRun:
    """A flow run without a process, and how that is known. `stranded`: it waited in it for a retry."""

    id: UUID
    name: str
    why: str
    stranded: bool = False


GONE = "Its heartbeats stopped at {}. The machine, the worker or the process is gone."
STRANDED = "It waits since {} for a retry in its process, which is gone."
BEATS_MISSED = 3
"""How many heartbeats a run must have missed to be silent."""
FIRST_BEAT = 180.0
"""The seconds between two heartbeats of a run that has sent only one: Prefect's default."""


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """The heartbeats of a flow run: how many, and the times of the first and the last, since the epoch."""

    count: int
    first: float
    last: float

    @property
    def silence(self) -> float:
        """The seconds after the last one from which on the run is silent."""
        return BEATS_MISSED * ((self.last - self.first) / (self.count - 1) if self.count > 1 else FIRST_BEAT)


def silent_runs(client: SyncPrefectClient, silent_for: timedelta | None = None) -> list[SilentRun]:
    """Running flow runs whose last heartbeat is at least `silent_for` ago, and stranded ones.

    Default: those that missed three heartbeats, each by its own interval. Runs that never sent one are left
    out: heartbeats may be switched off. Raises errors of the API.
    """
    now = time.time()
    silent = [
        SilentRun(run.id, run.name, GONE.format(utc_text(beats.last)))
        for run, beats in running_runs(client)
        if beats is not None
        and beats.last < now - (beats.silence if silent_for is None else silent_for.total_seconds())
    ]
    stranded = stranded_runs(client, silent_for or OVERDUE)
    stuck = ((run, STRANDED.format(utc_text(retry_at(run).timestamp()))) for run in stranded)
    return silent + [SilentRun(run.id, run.name, why, True) for run, why in stuck]


def crash_silent(silent_for: timedelta | None = None, *, dry_run: bool = False) -> list[SilentRun]:
    """Set silent runs to Crashed, so that the automation for crashed runs recovers them. Returns these runs.

    Nothing else notices that a machine is gone. A proactive automation does not work here: the end of a short
    run may reach Prefect's trigger before its first heartbeat, and a flow may end in a state with any name.
    Raises errors of the API.
    """
    with get_client(sync_client=True) as client:
        silent = silent_runs(client, silent_for)
        return silent if dry_run else [silent_run for silent_run in silent if _crash(client, silent_run)]


def running_runs(client: SyncPrefectClient) -> Iterator[tuple[FlowRun, Heartbeats | None]]:
    """The running flow runs, the oldest first, with the heartbeats of their passes, for those that sent any.

    Raises errors of the API.
    """
    running = FlowRunFilter.model_validate({"state": {"type": {"any_": ["RUNNING"]}}})
    sort = FlowRunSort.START_TIME_ASC
    runs = [*pages(partial(client.read_flow_runs, flow_run_filter=running, sort=sort))]
    for start in range(0, len(runs), PAGE):
        some = {run.id: run for run in runs[start : start + PAGE]}
        since = {run_id: run.state.timestamp for run_id, run in some.items() if run.state}
        beats = _heartbeats(client, since)
        for run_id, at in since.items():
            # An older heartbeat belongs to an earlier pass; the process of this pass may send none.
            sent = beats.get(run_id)
            yield some[run_id], sent if sent is None or sent.last > at.timestamp() - SKEW else None


def list_running() -> list[tuple[FlowRun, float, float | None]]:
    """The running flow runs, the oldest first: each with the time since which it runs, and the seconds since
    its last heartbeat.

    Raises ApiUnavailable.
    """
    with asking(ApiUnavailable, "the Prefect API is unavailable") as client:
        now = time.time()
        return [
            (run, run.state.timestamp.timestamp(), None if beats is None else max(now - beats.last, 0.0))
            for run, beats in running_runs(client)
            if run.state is not None
        ]


def seconds_silent(run: BatchRun) -> float | None:
    """The seconds since the last heartbeat of a running flow run; None if it sent none, or is not running."""
    if run.type != "RUNNING":
        return None
    with suppress(Exception), get_client(sync_client=True) as client:
        beats = _heartbeats(client, {run.id: datetime.fromtimestamp(run.since, UTC)})
        return max(time.time() - beats[run.id].last, 0.0)
    return None


def _heartbeats(client: SyncPrefectClient, since: dict[UUID, datetime]) -> dict[UUID, Heartbeats]:
    """The heartbeats of each flow run since the earliest time, for those that sent any."""
    first = min(since.values()) - timedelta(seconds=SKEW)
    about = {"resource": {"id": [f"{_RESOURCE}{run_id}" for run_id in since]}}
    body = {"filter": events_since(first, ["prefect.flow-run.heartbeat"], about)}
    answer = client.request(
        "POST", "/events/count-by/{countable}", path_params={"countable": "resource"}, json=body
    )
    counts = answer.raise_for_status().json()
    return {
        UUID(entry["value"].removeprefix(_RESOURCE)): Heartbeats(
            entry["count"],
            parse_datetime(entry["start_time"]).timestamp(),
            parse_datetime(entry["end_time"]).timestamp(),
        )
        for entry in counts
    }


def _crash(client: SyncPrefectClient, one: SilentRun) -> bool:
    run = client.read_flow_run(one.id)
    if run.state is None or not (retries_in_process(run) if one.stranded else run.state.is_running()):
        return False
    return not isinstance(set_state(client, one.id, Crashed(message=one.why)), str)
