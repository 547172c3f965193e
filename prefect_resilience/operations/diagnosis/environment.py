"""Checks of what a program runs on: package versions, stores, clocks, and the Prefect server."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import islice, product
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from packaging.requirements import Requirement
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter
from prefect.events.actions import RunDeployment
from prefect.events.schemas.events import Event, Resource
from prefect.exceptions import ObjectNotFound
from prefect.settings import get_current_settings

from prefect_resilience.base.edge.current_settings import current_settings
from prefect_resilience.base.text import one_line, plural, utc_text
from prefect_resilience.durable.batches.edge.flow_runs import stranded_runs
from prefect_resilience.durable.batches.edge.marks import pages
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.operations.diagnosis import DiagnosisFinding, finding
from prefect_resilience.operations.installation import automations_by_name, plan_install
from prefect_resilience.operations.installation.catalog import NAME, automation_files
from prefect_resilience.stores import StoreUrl, open_store, parse_url

if TYPE_CHECKING:
    from prefect_resilience.stores.postgres import PostgresFacts
    from prefect_resilience.stores.redis import RedisFacts

# Data that a store's server may lose, according to its settings.
#
# `ledger`: whether the store has effects and dead letters, or only circuits, which may be loss.


def of_redis(facts: RedisFacts, where: str, *, ledger: bool) -> Iterator[DiagnosisFinding]:
    """Problems of a Redis server that may lose data."""
    if facts.role in ("slave", "replica"):
        yield finding("store.redis-replica", f"{where} (role)")
    policy = f"{where} (maxmemory-policy)"
    if facts.policy is None:
        yield finding("store.policy-unknown", policy)
    elif facts.policy != "noeviction" and ledger:
        loses = "records of effects, and an effect that was done may be repeated"
        yield finding("store.policy", policy, policy=facts.policy, loses=loses)
    elif facts.policy != "noeviction":
        yield finding("store.policy", policy, "note", policy=facts.policy, loses="circuits that are open")
    # Lost circuits are learned again from new calls.
    if ledger and (loss := _loss_at_restart(facts)):
        yield finding(f"store.{loss}", f"{where} (persistence)")


def _loss_at_restart(facts: RedisFacts) -> str | None:
    """The finding about a crash or a restart of Redis."""
    if facts.appendonly:
        lossy = facts.appendfsync in ("no", "everysec")
        return f"appendfsync-{facts.appendfsync}" if lossy else None
    return "persistence-unknown" if facts.appendonly is None else "no-append-only-file"


def of_postgres(facts: PostgresFacts, where: str, *, ledger: bool) -> Iterator[DiagnosisFinding]:
    """Problems of a PostgreSQL server, or a pooler in front of it, that may lose data."""
    if facts.in_recovery:
        yield finding("store.postgresql-replica", f"{where} (replica)")
    if facts.pooler:
        yield finding("store.pooler", f"{where} (pooler)")
    level, more = ("wrong", ", and an effect that was done may be repeated") if ledger else ("note", "")
    for name, value in (("synchronous_commit", facts.synchronous_commit), ("fsync", facts.fsync)):
        if value == "off":
            yield finding("store.setting-off", f"{where} ({name})", level, name=name, more=more)


PACKAGE = "prefect-resilience"
EXTRAS = {"postgresql": "postgres", "redis": "redis"}
CLASHES = {"jsonpath-python": "python-jsonpath"}
"""Distributions that install a module of the same name as one of ours."""
MOST_SKEW = 2.0
"""Seconds by which clocks may differ: leases and circuits use the store's time."""


def versions() -> Iterator[DiagnosisFinding]:
    """Packages that are missing, too old or too new."""
    extras = ("", *_extras())
    for needed in map(Requirement, requires(PACKAGE) or []):
        marker, there = needed.marker, _version(needed.name)
        is_wanted = marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)
        if is_wanted and (there is None or not needed.specifier.contains(there, prereleases=True)):
            has = "is not installed" if there is None else f"is {there}"
            wanted = f"{needed.name}{needed.specifier}"
            yield finding("versions.needed", needed.name, has=has, wanted=wanted)
    for name, ours in CLASHES.items():
        if _version(name) is not None:
            yield finding("versions.clash", name, ours=ours)


def _extras() -> set[str]:
    """The extras that the configured stores need."""
    try:
        return {EXTRAS[kind] for url in _urls() if (kind := parse_url(url).kind) in EXTRAS}
    except (ConfigurationError, ValueError):
        return set()  # the check "store" reports this


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _urls() -> list[str]:
    settings = current_settings()
    return list(dict.fromkeys([settings.store_url, settings.circuit_store_url or settings.store_url]))


def store() -> Iterator[DiagnosisFinding]:
    """Stores that are unavailable, are not shared, or may lose records; clocks that differ."""
    try:
        urls = _urls()
    except ValueError as error:  # pydantic's, too
        yield finding("store.settings", "PREFECT_RESILIENCE_*", error=one_line(error))
        return
    for number, url in enumerate(urls):
        yield from _store(url, url, ledger=number == 0)


def _store(url: str, shown: str, *, ledger: bool) -> Iterator[DiagnosisFinding]:
    try:
        opened, before = open_store(url), time.time()
        there, after = opened.now(), time.time()
        opened.load("doctor")
    except ConfigurationError as error:
        yield finding("store.url", shown, error=str(error))
        return
    except StoreUnavailable as error:
        yield finding("store.unavailable", shown, error=one_line(error))
        # A replica may reject requests that the store needs, but it still answers that it is a replica.
        with suppress(StoreUnavailable):
            yield from _store_server(parse_url(url), shown, ledger)
        return
    yield from _store_server(parse_url(url), shown, ledger)
    if parse_url(url).kind == "memory":
        yield finding("store.memory", shown)
    yield from skew(shown, "the store's", before, there, after, MOST_SKEW)


def _store_server(parsed: StoreUrl, shown: str, ledger: bool) -> Iterator[DiagnosisFinding]:
    """Problems of a store's server that may lose confirmed data."""
    if parsed.kind == "redis":
        from prefect_resilience.stores.redis import redis_facts

        yield from of_redis(redis_facts(parsed), shown, ledger=ledger)
    elif parsed.kind == "postgresql":
        from prefect_resilience.stores.postgres import postgres_facts

        yield from of_postgres(postgres_facts(parsed), shown, ledger=ledger)


CHECKS = {"versions": versions, "store": store}


def skew(
    where: str, whose: str, before: float, there: float, after: float, most: float
) -> Iterator[DiagnosisFinding]:
    """The finding about a clock that said `there` between two times of this machine, if they differ."""
    seconds = there - after if there > after else min(0.0, there - before)
    if abs(seconds) > most:
        way = "ahead of" if seconds > 0 else "behind"
        yield finding("clocks.skew", where, whose=whose, seconds=f"{abs(seconds):.1f}", way=way)


# -- the Prefect server: version, clock, events, work pools, installation, automations and runs

EVENT_ARRIVES = 10.0
"""Seconds within which an event must arrive."""
MOST_SERVER_SKEW = 5.0
STALE = {"created": "missing", "changed": "of another version"}
RUNS_SHOWN = 20
PENDING = timedelta(hours=1)


def server_versions(client: SyncPrefectClient) -> Iterator[DiagnosisFinding]:
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
        yield from skew("the Prefect API", "its", before, moment, after, MOST_SERVER_SKEW)


def events(
    client: SyncPrefectClient, wait: Callable[[float], None] = time.sleep
) -> Iterator[DiagnosisFinding]:
    """Events that are sent but do not arrive: automations would never run."""
    resource = {"prefect.resource.id": f"{NAME}.doctor.{uuid4()}", "prefect.resource.name": "doctor"}
    event = Event(event=f"{NAME}.doctor.asked", resource=Resource(resource))
    client.request("POST", "/events", json=[event.model_dump(mode="json")])
    deadline = time.monotonic() + EVENT_ARRIVES
    body = {"filter": {"id": {"id": [str(event.id)]}}}
    while not client.request("POST", "/events/filter", json=body).json()["events"]:
        if time.monotonic() > deadline:
            yield finding("events.lost", "the Prefect API", seconds=EVENT_ARRIVES)
            return
        wait(0.2)


def pools(client: SyncPrefectClient) -> Iterator[DiagnosisFinding]:
    """Work pools with deployments but without a worker."""
    names = (deployment.work_pool_name for deployment in pages(client.read_deployments))
    used = Counter[str](filter(None, names))
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


SERVER_CHECKS: dict[str, Callable[[SyncPrefectClient], Iterator[Any]]] = {
    "server": server_versions,
    "clocks": clock,
    "events": events,
    "workers": pools,
    "installation": installation,
    "automations": automations,
    "runs": waiting_runs,
}
