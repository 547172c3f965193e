"""Checks of the Prefect server: version, clock, UI, events, work pools, installation and automations."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import islice, product
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter
from prefect.events.actions import RunDeployment
from prefect.events.schemas.automations import Automation
from prefect.events.schemas.events import Event, Resource
from prefect.exceptions import ObjectNotFound
from prefect.settings import get_current_settings

from prefect_resilience.base.text import one_line, plural, utc_text
from prefect_resilience.durable.batches.edge.workers import stranded_runs
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.diagnosis.findings import DiagnosisFinding, note, skewed, wrong
from prefect_resilience.operations.installation.catalog import NAME, automation_files
from prefect_resilience.operations.installation.installing import automations_by_name, planned

EVENT_ARRIVES = 10.0
"""Seconds within which an event must arrive."""
MOST_SKEW = 5.0
STALE = (
    ("created", "is missing", "are missing"),
    ("changed", "is of another version", "are of another version"),
)
RUNS_SHOWN = 20
PENDING = timedelta(hours=1)
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})


def versions(client: SyncPrefectClient) -> Iterator[DiagnosisFinding]:
    """A server whose version does not match this client."""
    try:
        client.raise_for_api_version_mismatch()
    except RuntimeError as error:
        says = redact(one_line(error))
        mend = "Install the same minor version of Prefect on the server, the workers and here."
        yield wrong("server", "versions", says, mend)


def clock(client: SyncPrefectClient) -> Iterator[DiagnosisFinding]:
    """A server whose clock differs: schedules and lateness depend on it."""
    before = time.time()
    said = client.hello().headers.get("date")
    after = time.time()
    if said is None:
        return
    there = parsedate_to_datetime(said).timestamp()
    # The header is in whole seconds.
    skew = there - after if there > after else there + 1 - before if there + 1 < before else 0.0
    if abs(skew) > MOST_SKEW:
        yield skewed("the Prefect API", "its", skew)


def ui(client: SyncPrefectClient) -> Iterator[DiagnosisFinding]:
    """A UI that calls another API than the configured one."""
    api = str(get_current_settings().api.url or "")
    root = api.rstrip("/").removesuffix("/api")
    try:
        answer = httpx.get(f"{root}/ui-settings", timeout=5)
        calls = str(answer.json()["api_url"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return  # there is no UI, or an unknown one
    if _place(calls) == _place(api):
        return
    says = f"the UI calls {redact(calls)}, but the API is {redact(api)}: it shows another server or none"
    # Behind a proxy the two may differ on purpose.
    report = wrong if _place(calls)[0] in LOOPBACK else note
    yield report("ui", f"{root}/", says, f"Start the server with PREFECT_UI_API_URL={redact(api)}")


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return ("127.0.0.1" if host in LOOPBACK else host, port)


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
            says = f"an event that was sent did not arrive within {EVENT_ARRIVES:g} s: automations do not run"
            mend = (
                "Start the server with its services, or run `prefect server services start` as well. With "
                "several servers, check PREFECT_MESSAGING_BROKER."
            )
            yield wrong("events", "the Prefect API", says, mend)
            return
        wait(0.2)


def _send(client: SyncPrefectClient, event_id: UUID) -> None:
    name = "doctor"
    resource = Resource({"prefect.resource.id": f"{NAME}.doctor.{event_id}", "prefect.resource.name": name})
    event = Event(id=event_id, event=f"{NAME}.doctor.asked", resource=resource)
    client.request("POST", "/events", json=[event.model_dump(mode="json")])


def pools(client: SyncPrefectClient) -> Iterator[DiagnosisFinding]:
    """Work pools with deployments but without a worker."""
    used: Counter[str] = Counter()
    offset = 0
    while page := client.read_deployments(limit=200, offset=offset):
        used.update(one.work_pool_name for one in page if one.work_pool_name)
        offset += len(page)
    for name, deployments in sorted(used.items()):
        try:
            pool = client.read_work_pool(name)
        except ObjectNotFound:
            continue
        flows = plural(deployments, "deployment")
        if pool.is_paused:
            says = f"the work pool of {flows} is paused"
            mend = f"Run `prefect work-pool resume {name}` to resume it."
            yield note("workers", name, says, mend)
        # Push and managed pools, such as "ecs:push" and "prefect:managed", need no worker.
        elif ":" not in pool.type and not _online(client, name):
            says = f"the work pool of {flows} has no worker, so their runs stay Late"
            mend = f"Run `prefect worker start --pool {name}` where the flows can run."
            yield wrong("workers", name, says, mend)


def _online(client: SyncPrefectClient, pool: str) -> bool:
    return any(
        str(worker.status) in ("WorkerStatus.ONLINE", "ONLINE")
        for worker in client.read_workers_for_work_pool(pool)
    )


def installed(client: SyncPrefectClient) -> Iterator[DiagnosisFinding]:
    """Differences that `prefect-resilience install` would repair."""
    changes = planned(client)
    ours = [one for one in changes if one.kind in ("deployment", "automation")]
    if all(one.action in ("created", "skipped") for one in ours):
        says = (
            "the operational flows and automations are not installed: nothing is recovered or replayed "
            "automatically, and no alerts are sent. Tasks and flows work without them"
        )
        mend = "Run `prefect-resilience install --webhook URL` to install them; --dry-run lists them."
        yield note("installation", redact(str(get_current_settings().api.url)), says, mend)
        return
    for kind, (action, one_is, many_are) in product(("block type", "deployment", "automation"), STALE):
        names = [one.name for one in changes if (one.kind, one.action) == (kind, action)]
        if names:
            which = f"this {kind} {one_is}" if len(names) == 1 else f"these {len(names)} {kind}s {many_are}"
            mend = "Run `prefect-resilience install`; --dry-run shows what it would do."
            yield wrong("installation", ", ".join(names), which, mend)
    skipped = [one.name for one in changes if one.action == "skipped"]
    if skipped:
        says = "no alerts are sent"
        mend = "Run `prefect-resilience install --webhook URL`, or use --notification-block slug/name."
        yield note("installation", ", ".join(skipped), says, mend)


def automations(client: SyncPrefectClient) -> Iterator[DiagnosisFinding]:
    """Our automations that are disabled or have no deployment."""
    known = automations_by_name(client)
    for file in automation_files():
        for automation in known.get(file.name, []):
            if not automation.enabled:
                says = "it is disabled"
                mend = f'Run `prefect automation resume "{file.name}"` to enable it.'
                yield note("automations", file.name, says, mend)
            yield from _dangling(client, automation)


def _dangling(client: SyncPrefectClient, automation: Automation) -> Iterator[DiagnosisFinding]:
    for action in automation.actions:
        if isinstance(action, RunDeployment) and action.deployment_id is not None:
            try:
                client.read_deployment(action.deployment_id)
            except ObjectNotFound:
                says = "the deployment that it runs does not exist"
                mend = "Run `prefect-resilience install`; add --reset if the automation was edited."
                yield wrong("automations", automation.name, says, mend)


def stranded(client: SyncPrefectClient) -> Iterator[DiagnosisFinding]:
    """Flow runs that wait for a retry in a process that is gone, and runs that stay Pending."""
    for run in islice(stranded_runs(client), RUNS_SHOWN):
        says = f"the flow run {run.name} waits for a retry in a process that is gone: nothing will run it"
        mend = f"Run `prefect-resilience batches recover {run.id}`."
        yield wrong("runs", str(run.id), says, mend)
    before = (datetime.now(UTC) - PENDING).isoformat()
    asked = {"state": {"type": {"any_": ["PENDING"]}}, "expected_start_time": {"before_": before}}
    found = client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(asked), limit=RUNS_SHOWN)
    for run in found:
        if run.state is not None and run.state.timestamp < datetime.now(UTC) - PENDING:
            says = f"the flow run {run.name} is Pending since {utc_text(run.state.timestamp.timestamp())}"
            mend = (
                "If its worker is gone, run "
                f"`prefect-resilience batches recover {run.id} --strategy restart --force`."
            )
            yield note("runs", str(run.id), says, mend)


CHECKS: dict[str, Callable[[SyncPrefectClient], Iterator[Any]]] = {
    "server": versions,
    "clocks": clock,
    "ui": ui,
    "events": events,
    "workers": pools,
    "installation": installed,
    "automations": automations,
    "runs": stranded,
}
