"""Sets flow runs to Crashed that stopped sending heartbeats: nothing else can when their machine is gone.

A proactive automation cannot do it. The end of a short run often reaches Prefect's trigger before the first
heartbeat does, and the trigger then waits for a second one. It also needs the name of every final state, and
a flow may return one with a name of its own. Here the run's state is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.states import Crashed
from prefect.types._datetime import parse_datetime

from prefect_resilience.durable.batches.left_behind import SKEW

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

PAGE = 200


@dataclass(frozen=True, slots=True)
class SilentRun:
    """A flow run whose heartbeats stopped; `beat` is the last one, in seconds since the epoch."""

    id: UUID
    name: str
    beat: float


def silent_runs(client: SyncPrefectClient, silent_for: timedelta) -> list[SilentRun]:
    """Running flow runs whose last heartbeat is that long ago.

    One that never sent any is not among them: heartbeats may be switched off where it runs. Raises what the
    API answers otherwise than in order.
    """
    found: list[SilentRun] = []
    offset = 0
    while True:
        body = {
            "flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}},
            "sort": "START_TIME_ASC",
            "limit": PAGE,
            "offset": offset,
        }
        page = client.request("POST", "/flow_runs/filter", json=body).raise_for_status().json()
        found += _silent_of(client, [FlowRun.model_validate(one) for one in page], silent_for)
        offset += len(page)
        if len(page) < PAGE:
            return found


def crash_silent(silent_for: timedelta, *, dry_run: bool = False) -> list[SilentRun]:
    """Set them to Crashed; the runs that were set. The automation for crashed runs then recovers them.

    Raises what the API answers otherwise than in order.
    """
    with get_client(sync_client=True) as client:
        found = silent_runs(client, silent_for)
        return found if dry_run else [one for one in found if _crash(client, one)]


def _silent_of(client: SyncPrefectClient, runs: list[FlowRun], silent_for: timedelta) -> list[SilentRun]:
    before = datetime.now(timezone.utc) - silent_for
    since = {run.id: run.state.timestamp for run in runs if run.state and run.state.timestamp < before}
    if not since:
        return []
    beats = _last_beats(client, since)
    return [
        SilentRun(run.id, run.name, beats[run.id])
        for run in runs
        if run.id in beats
        # An older one is of an earlier attempt; this one's process may be one that sends none.
        and since[run.id].timestamp() - SKEW < beats[run.id] < before.timestamp()
    ]


def _last_beats(client: SyncPrefectClient, since: dict[UUID, datetime]) -> dict[UUID, float]:
    """When each of the flow runs sent its last heartbeat, of those that sent any since then."""
    # Clocks differ, and without an end the API takes its own time for one.
    until = datetime.now(timezone.utc) + timedelta(days=1)
    first = min(since.values()) - timedelta(seconds=SKEW)
    ids = {f"prefect.flow-run.{run_id}": run_id for run_id in since}
    body: dict[str, Any] = {
        "filter": {
            "event": {"name": ["prefect.flow-run.heartbeat"]},
            "resource": {"id": [*ids]},
            "occurred": {"since": first.isoformat(), "until": until.isoformat()},
        }
    }
    answer = client.request(
        "POST", "/events/count-by/{countable}", path_params={"countable": "resource"}, json=body
    )
    counts = answer.raise_for_status().json()
    return {ids[one["value"]]: parse_datetime(one["end_time"]).timestamp() for one in counts}


def _crash(client: SyncPrefectClient, one: SilentRun) -> bool:
    state = client.read_flow_run(one.id).state
    if state is None or state.type is not StateType.RUNNING:
        return False
    beat = f"{datetime.fromtimestamp(one.beat, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    message = f"Its heartbeats stopped at {beat}. The machine, the worker or the process is gone."
    # Not by force: one that has come to its own end meanwhile keeps that.
    answer = client.set_flow_run_state(one.id, Crashed(message=message))
    return answer.status is SetStateStatus.ACCEPT
