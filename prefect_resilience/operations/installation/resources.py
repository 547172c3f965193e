"""Blocks, the work pool and the deployments of an installation."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, TypeVar, cast
from uuid import UUID

from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterTags,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound

from prefect_resilience.base.policy import nearest
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations.installation.catalog import (
    ALERTS,
    NAME,
    POOL,
    UNKNOWN,
    Action,
    InstallationChange,
    Operation,
    operational_flows,
)
from prefect_resilience.operations.reports.flow_runs import OWN_TAG
from prefect_resilience.tasks.edge.blocks.policy import SLUG, ResiliencePolicy

WEBHOOK = "custom-webhook"
PAYLOAD = {"subject": "{{subject}}", "body": "{{body}}", "text": "{{subject}}\n{{body}}"}
"""The body of an alert. Chat services read `text`."""

T = TypeVar("T")


@dataclass
class Installation:
    """One run of `install` or `uninstall`. `ids`: the values of placeholders in automations."""

    client: SyncPrefectClient
    dry_run: bool = False
    reset: bool = False
    changes: list[InstallationChange] = field(default_factory=list[InstallationChange])
    ids: dict[str, str] = field(default_factory=dict[str, str])

    def note(self, kind: Any, name: str, action: Action, why: str = "") -> None:
        self.changes.append(InstallationChange(kind=kind, name=name, action=action, why=why))

    def do(self, work: Callable[..., Any], *args: Any) -> Any:
        """Call it, unless this is a dry run."""
        return None if self.dry_run else work(*args)


def _found(read: Callable[..., T], *args: Any) -> T | None:
    try:
        return read(*args)
    except ObjectNotFound:
        return None


# -- blocks


def register_policies(run: Installation) -> None:
    """Register the block type of policies and its schema."""
    action: Action = "unchanged"
    if _found(run.client.read_block_type_by_slug, SLUG) is None:
        action = "created"
    elif _found(run.client.read_block_schema_by_checksum, ResiliencePolicy.checksum()) is None:
        action = "changed"
    if action != "unchanged":
        run.do(cast("Any", ResiliencePolicy).register_type_and_schema)
    run.note("block type", ResiliencePolicy.get_block_type_name(), action)


def notification(run: Installation, webhook: str | None, named: str | None) -> UUID | None:
    """The id of the notification block for alerts; None if there is none."""
    if named is not None:
        return _block_named(run.client, named)
    there = _find_block(run.client, WEBHOOK, ALERTS)
    if webhook is None:
        return there
    if not re.match(r"https?://[^/\s]+", webhook):
        raise ConfigurationError("the webhook is not a URL: write http://... or https://...")
    action: Action = "created"
    if there is not None:
        data = run.client.read_block_document(there, include_secrets=True).data
        same = data.get("secrets") == {"url": webhook} and data.get("json_data") == PAYLOAD
        action = "unchanged" if same else "changed"
    if not run.dry_run and action != "unchanged":
        # The URL of a webhook is also its password.
        options: dict[str, Any] = {"json_data": PAYLOAD, "secrets": {"url": webhook}}
        block = CustomWebhookNotificationBlock(
            name=ALERTS, url="{{url}}", headers=None, cookies=None, **options
        )
        there = cast("Any", block).save(ALERTS, overwrite=True)
    run.note("block", f"{WEBHOOK}/{ALERTS}", action)
    return there or UNKNOWN


def remove_blocks(run: Installation) -> None:
    """Remove the notification block, and the block type of policies if no policy is saved."""
    if (there := _find_block(run.client, WEBHOOK, ALERTS)) is not None:
        run.do(run.client.delete_block_document, there)
        run.note("block", f"{WEBHOOK}/{ALERTS}", "removed")
    block_type = _found(run.client.read_block_type_by_slug, SLUG)
    if block_type is None:
        return
    name = ResiliencePolicy.get_block_type_name()
    if policies := run.client.read_block_documents_by_type(SLUG):
        names = ", ".join(sorted(str(policy.name) for policy in policies))
        return run.note("block type", name, "kept", f"used by {names}")
    run.do(run.client.delete_block_type, block_type.id)
    run.note("block type", name, "removed")


def _block_named(client: SyncPrefectClient, named: str) -> UUID:
    slug, slash, name = named.partition("/")
    if not slash:
        raise ConfigurationError(
            f"{named!r} is not the name of a block: write slug/name, as in slack-webhook/night"
        )
    found = _find_block(client, slug, name)
    if found is None:
        known = {
            f"{one.block_type.slug}/{one.name}" for one in client.read_block_documents() if one.block_type
        }
        near = nearest(named, known) if known else "; no blocks are saved"
        raise ConfigurationError(f"there is no block {named!r}{near}")
    return found


def _find_block(client: SyncPrefectClient, slug: str, name: str) -> UUID | None:
    found = _found(client.read_block_document_by_name, name, slug)
    return found.id if found else None


# -- the work pool and deployments


def pool(run: Installation, named: str | None) -> str:
    """The work pool for the operational flows; created if it is missing."""
    name = named or _pool_so_far(run.client) or POOL
    if _found(run.client.read_work_pool, name) is not None:
        run.note("work pool", name, "unchanged")
        return name
    about = "Runs the operational flows of prefect-resilience."
    run.do(run.client.create_work_pool, WorkPoolCreate(name=name, type="process", description=about))
    run.note("work pool", name, "created", f"start a worker: prefect worker start --pool {name}")
    return name


def deploy(run: Installation, operation: Operation, pool: str, pool_is_asked_for: bool) -> UUID | None:
    """Create or update the deployment of one flow. Schedules and parameters are set only at creation."""
    remove_deployment(run, operation.old_deployment, f"it is now {operation.deployment}")
    there = _found(run.client.read_deployment_by_name, operation.deployment)
    if there is None:
        run.note("deployment", operation.deployment, "created")
        return run.do(_create, run.client, operation, pool)
    wanted = _wanted(operation)
    if pool_is_asked_for or there.work_pool_name is None:
        wanted["work_pool_name"] = pool
    changed = {name: value for name, value in wanted.items() if getattr(there, name) != value}
    if missing := [tag for tag in operation.tags if tag not in there.tags]:
        changed["tags"] = [*there.tags, *missing]
    if changed:
        run.do(run.client.update_deployment, there.id, DeploymentUpdate(**changed))
    why = ", ".join(sorted(changed)).replace("_", " ")
    run.note("deployment", operation.deployment, "changed" if changed else "unchanged", why)
    return there.id


def remove_deployment(run: Installation, name: str, why: str = "") -> UUID | None:
    """Remove a deployment. Returns its id; None if there is none of that name."""
    there = _found(run.client.read_deployment_by_name, name)
    if there is None:
        return None
    run.do(run.client.delete_deployment, there.id)
    run.note("deployment", name, "removed", why)
    return there.id


def remove_deployments(run: Installation) -> None:
    """Remove our deployments, and our work pool if it has no other deployments."""
    removed = [
        remove_deployment(run, name)
        for operation in operational_flows()
        for name in (operation.deployment, operation.old_deployment)
    ]
    if _found(run.client.read_work_pool, POOL) is None:
        return
    ours = WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))
    there = run.client.read_deployments(work_pool_filter=ours)
    foreign = [one.name for one in there if one.id not in removed]
    if foreign:
        return run.note("work pool", POOL, "kept", f"used by {', '.join(sorted(foreign))}")
    run.do(run.client.delete_work_pool, POOL)
    run.note("work pool", POOL, "removed")


def _create(client: SyncPrefectClient, operation: Operation, pool: str) -> UUID:
    cron = operation.schedule
    schedules = (
        [] if cron is None else [DeploymentScheduleCreate(schedule=CronSchedule(cron=cron, timezone="UTC"))]
    )
    wanted = _wanted(operation)
    return client.create_deployment(
        flow_id=client.create_flow_from_name(operation.name),
        name=operation.name,
        work_pool_name=pool,
        schedules=schedules,
        tags=operation.tags,
        **wanted,
    )


def _wanted(operation: Operation) -> dict[str, Any]:
    """The fields of a deployment that `install` keeps up to date."""
    return {
        "version": version(NAME),
        "description": operation.description,
        "entrypoint": operation.entrypoint,
        "pull_steps": [],
        "parameter_openapi_schema": operation.parameters,
        "enforce_parameter_schema": operation.flow.should_validate_parameters,
    }


def _pool_so_far(client: SyncPrefectClient) -> str | None:
    """The present pool of our deployments."""
    tagged = DeploymentFilter(tags=DeploymentFilterTags(all_=[OWN_TAG]))
    found = client.read_deployments(deployment_filter=tagged, limit=1)
    return found[0].work_pool_name if found else None
