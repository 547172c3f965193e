"""Checks of the Prefect server: version, clock, events, work pools, installation and automations."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import islice, product
from typing import Any
from uuid import UUID, uuid4

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter
from prefect.events.actions import RunDeployment
from prefect.events.schemas.events import Event, Resource
from prefect.exceptions import ObjectNotFound
from prefect.settings import get_current_settings

from prefect_resilience.base.text import one_line, plural, utc_text
from prefect_resilience.durable.batches.edge.flow_runs import stranded_runs
from prefect_resilience.operations.diagnosis import DiagnosisFinding, finding, skew
from prefect_resilience.operations.installation import automations_by_name, plan_install
from prefect_resilience.operations.installation.catalog import NAME, automation_files

EVENT_ARRIVES = 10.0
"""Seconds within which an event must arrive."""
MOST_SKEW = 5.0
STALE = {"created": "missing", "changed": "of another version"}
RUNS_SHOWN = 20
PENDING = timedelta(hours=1)


def versions(client: SyncPrefectClient) -> Iterator[DiagnosisFinding]:
    """A server whose version does not match this client."""
    try:
        client.raise_for_api_version_mismatch()
    except RuntimeError as error:
        yield finding("server.versions", "versions", error=one_line(error))


def clock(client: SyncPrefectClient) -> Iterator[DiagnosisFinding]:
    """A server whose clock differs: schedules and lateness depend on it."""
    before = time.time()
    date = client.hello().headers.get("date")
    after = time.time()
    if date is not None:
        there = parsedate_to_datetime(date).timestamp()
        # The header is in whole seconds.
        moment = there if there > after else min(there + 1, after)
        yield from skew("the Prefect API", "its", before, moment, after, MOST_SKEW)


def events(
    client: SyncPrefectClient, wait: Callable[[float], None] = time.sleep
) -> Iterator[DiagnosisFinding]:
    """Events that are sent but do not arrive: automations would never run."""
    event_id = uuid4()
    _send(client, event_id)
    deadline = time.monotonic() + EVENT_ARRIVES
    body = {"filter": {"id": {"id": [str(event_id)]}}}
    while not client.request("POST", "/events/filter", json=body).json()["events"]:
        if time.monotonic() > deadline:
            yield finding("events.lost", "the Prefect API", seconds=EVENT_ARRIVES)
            return
        wait(0.2)


def _send(client: SyncPrefectClient, event_id: UUID) -> None:
    resource = {"prefect.resource.id": f"{NAME}.doctor.{event_id}", "prefect.resource.name": "doctor"}
    event = Event(id=event_id, event=f"{NAME}.doctor.asked", resource=Resource(resource))
    client.request("POST", "/events", json=[event.model_dump(mode="json")])


def pools(client: SyncPrefectClient) -> Iterator[DiagnosisFinding]:
    """Work pools with deployments but without a worker."""
    used: Counter[str] = Counter()
    offset = 0
    while page := client.read_deployments(limit=200, offset=offset):
        used.update(deployment.work_pool_name for deployment in page if deployment.work_pool_name)
        offset += len(page)
    for name, deployments in sorted(used.items()):
        try:
            pool = client.read_work_pool(name)
        except ObjectNotFound:
            continue
        flows = plural(deployments, "deployment")
        if pool.is_paused:
            yield finding("workers.paused", name, flows=flows, name=name)
        # Push and managed pools, such as "ecs:push" and "prefect:managed", need no worker.
        elif ":" not in pool.type and not any(
            str(worker.status) in ("WorkerStatus.ONLINE", "ONLINE")
            for worker in client.read_workers_for_work_pool(name)
        ):
            yield finding("workers.none", name, flows=flows, name=name)


def installation(client: SyncPrefectClient) -> Iterator[DiagnosisFinding]:
    """Differences that `prefect-resilience install` would repair."""
    changes = plan_install(client)
    ours = [change.action for change in changes if change.kind in ("deployment", "automation")]
    if all(action in ("created", "skipped") for action in ours):
        yield finding("installation.none", str(get_current_settings().api.url))
        return
    for kind, action in product(("block type", "deployment", "automation"), STALE):
        names = [change.name for change in changes if (change.kind, change.action) == (kind, action)]
        if names:
            number = f"{plural(len(names), kind)} {'is' if len(names) == 1 else 'are'}"
            yield finding("installation.stale", ", ".join(names), says=f"{number} {STALE[action]}")
    if skipped := [change.name for change in changes if change.action == "skipped"]:
        yield finding("installation.no-alerts", ", ".join(skipped))


def automations(client: SyncPrefectClient) -> Iterator[DiagnosisFinding]:
    """Our automations that are disabled or have no deployment."""
    by_name = automations_by_name(client)
    for automation in (
        automation for file in automation_files() for automation in by_name.get(file.name, [])
    ):
        if not automation.enabled:
            yield finding("automations.disabled", automation.name, name=automation.name)
        for action in automation.actions:
            if isinstance(action, RunDeployment) and action.deployment_id is not None:
                try:
                    client.read_deployment(action.deployment_id)
                except ObjectNotFound:
                    yield finding("automations.no-deployment", automation.name)


def waiting_runs(client: SyncPrefectClient) -> Iterator[DiagnosisFinding]:
    """Flow runs that wait for a retry in a process that is gone, and runs that stay Pending."""
    for run in islice(stranded_runs(client), RUNS_SHOWN):
        yield finding("runs.stranded", str(run.id), name=run.name, id=run.id)
    before = datetime.now(UTC) - PENDING
    pending = {"type": {"any_": ["PENDING"]}}
    filters = {"state": pending, "expected_start_time": {"before_": before.isoformat()}}
    for run in client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(filters), limit=RUNS_SHOWN):
        if run.state is not None and run.state.timestamp < before:
            since = utc_text(run.state.timestamp.timestamp())
            yield finding("runs.pending", str(run.id), name=run.name, id=run.id, since=since)


CHECKS: dict[str, Callable[[SyncPrefectClient], Iterator[Any]]] = {
    "server": versions,
    "clocks": clock,
    "events": events,
    "workers": pools,
    "installation": installation,
    "automations": automations,
    "runs": waiting_runs,
}
