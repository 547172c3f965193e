"""The operational flows as deployments: their code is in the wheel, so that a worker pulls nothing."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterTags,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound

from prefect_resilience.operations.installation.catalog import (
    NAME,
    POOL,
    Change,
    Operation,
    operational_flows,
)


def pool(client: SyncPrefectClient, named: str | None, dry_run: bool) -> tuple[str, list[Change]]:
    """The work pool for the operational flows, made where there is none of this name."""
    name = named or _pool_so_far(client) or POOL
    try:
        client.read_work_pool(name)
    except ObjectNotFound:
        if not dry_run:
            about = "Runs the operational flows of prefect-resilience."
            client.create_work_pool(WorkPoolCreate(name=name, type="process", description=about))
        why = f"start a worker: prefect worker start --pool {name}"
        return name, [Change(kind="work pool", name=name, action="created", why=why)]
    return name, [Change(kind="work pool", name=name, action="unchanged")]


def deploy(
    client: SyncPrefectClient, operation: Operation, pool: str, pool_is_asked_for: bool, dry_run: bool
) -> tuple[UUID | None, Change]:
    """Deploy one flow, or bring it up to date; its schedules and parameters are the users' from then on."""
    there = _read(client, operation.deployment)
    if there is None:
        made = None if dry_run else _create(client, operation, pool)
        return made, Change(kind="deployment", name=operation.deployment, action="created")
    wanted = _wanted(operation)
    if pool_is_asked_for or there.work_pool_name is None:
        wanted["work_pool_name"] = pool
    changed = {name: value for name, value in wanted.items() if getattr(there, name) != value}
    if NAME not in there.tags:
        changed["tags"] = [*there.tags, NAME]
    if not changed:
        return there.id, Change(kind="deployment", name=operation.deployment, action="unchanged")
    if not dry_run:
        client.update_deployment(there.id, DeploymentUpdate(**changed))
    why = ", ".join(sorted(changed)).replace("_", " ")
    return there.id, Change(kind="deployment", name=operation.deployment, action="changed", why=why)


def remove(client: SyncPrefectClient, dry_run: bool) -> list[Change]:
    """Take our deployments away, and our work pool where nothing else is in it."""
    removed: list[Change] = []
    for operation in operational_flows():
        there = _read(client, operation.deployment)
        if there is not None:
            if not dry_run:
                client.delete_deployment(there.id)
            removed.append(Change(kind="deployment", name=operation.deployment, action="removed"))
    try:
        client.read_work_pool(POOL)
    except ObjectNotFound:
        return removed
    inside = client.read_deployments(work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL])))
    foreign = [one.name for one in inside if one.name != NAME]
    if foreign:
        why = f"used by {', '.join(sorted(foreign))}"
        return [*removed, Change(kind="work pool", name=POOL, action="kept", why=why)]
    if not dry_run:
        client.delete_work_pool(POOL)
    return [*removed, Change(kind="work pool", name=POOL, action="removed")]


def _create(client: SyncPrefectClient, operation: Operation, pool: str) -> UUID:
    cron = operation.schedule
    schedules = (
        [] if cron is None else [DeploymentScheduleCreate(schedule=CronSchedule(cron=cron, timezone="UTC"))]
    )
    wanted = _wanted(operation)
    return client.create_deployment(
        flow_id=client.create_flow_from_name(operation.name),
        name=NAME,
        work_pool_name=pool,
        schedules=schedules,
        tags=[NAME],
        **wanted,
    )


def _wanted(operation: Operation) -> dict[str, Any]:
    """What is ours in a deployment, on whatever server."""
    return {
        "version": version(NAME),
        "description": operation.description,
        "entrypoint": operation.entrypoint,
        "pull_steps": [],
        "parameter_openapi_schema": operation.parameters,
        "enforce_parameter_schema": operation.flow.should_validate_parameters,
    }


def _read(client: SyncPrefectClient, name: str) -> DeploymentResponse | None:
    try:
        return client.read_deployment_by_name(name)
    except ObjectNotFound:
        return None


def _pool_so_far(client: SyncPrefectClient) -> str | None:
    """The pool that our deployments are in already."""
    tagged = DeploymentFilter(tags=DeploymentFilterTags(all_=[NAME]))
    found = client.read_deployments(deployment_filter=tagged, limit=1)
    return found[0].work_pool_name if found else None
