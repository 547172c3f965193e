"""`install` and `uninstall`: create, update and remove our objects, except those that a person changed.

Blocks, the work pool, deployments and automations: each is created or updated by a function of its kind.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from itertools import chain
from typing import Any, TypeVar, cast
from uuid import UUID

from httpx import HTTPStatusError
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.filters import DeploymentFilter, WorkPoolFilter
from prefect.client.schemas.schedules import CronSchedule
from prefect.events.actions import SendNotification
from prefect.events.schemas.automations import Automation, AutomationCore
from prefect.exceptions import ObjectNotFound

from prefect_resilience.base.text import one_line
from prefect_resilience.durable.batches.decisions import ApiUnavailable
from prefect_resilience.durable.batches.edge.marks import pages
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.installation.catalog import (
    ALERTS,
    NAME,
    POOL,
    SCHEDULES,
    UNKNOWN,
    Action,
    AutomationFile,
    InstallationChange,
    Operation,
    automation_files,
    operational_flows,
)
from prefect_resilience.operations.reports.runs import OWN_TAG
from prefect_resilience.operations.tuning import NEEDS_NUMPY, has_numpy
from prefect_resilience.tasks.edge.policy_block import SLUG, ResiliencePolicy

WEBHOOK = "custom-webhook"
PAYLOAD = {"subject": "{{subject}}", "body": "{{body}}", "text": "{{subject}}\n{{body}}"}
"""The body of an alert. Chat services read `text`."""
POLICY = ResiliencePolicy.get_block_type_name()

T = TypeVar("T")


@dataclass
class Installation:
    """One run of `install` or `uninstall`. `ids`: the values of placeholders in automations."""

    client: SyncPrefectClient
    dry_run: bool = False
    reset: bool = False
    webhook: str | None = None
    notification_block: str | None = None
    work_pool: str | None = None
    changes: list[InstallationChange] = field(default_factory=list[InstallationChange])
    ids: dict[str, str] = field(default_factory=dict[str, str])

    def note(self, kind: Any, name: str, action: Action, why: str = "") -> None:
        self.changes.append(InstallationChange(kind=kind, name=name, action=action, why=why))

    def upsert(
        self, kind: str, name: str, there: object, differs: bool, save: Callable[[], Any], why: str = ""
    ) -> Any:
        """Save the object if it is not `there`, or differs. A dry run only notes that."""
        action: Action = "created" if there is None else "changed" if differs else "unchanged"
        self.note(kind, name, action, why)
        return None if self.dry_run or action == "unchanged" else save()

    def remove(self, kind: str, name: str, delete: Callable[[], Any], why: str = "", users: Any = ()) -> None:
        """Remove the object, unless it has `users`."""
        if users:
            return self.note(kind, name, "kept", f"used by {', '.join(sorted(users))}")
        self.note(kind, name, "removed", why)
        if not self.dry_run:
            delete()
        return None


def install(
    *,
    dry_run: bool = False,
    webhook: str | None = None,
    notification_block: str | None = None,
    work_pool: str | None = None,
    reset: bool = False,
) -> list[InstallationChange]:
    """Install blocks, a work pool, the operational flows and the automations on the configured server.

    Up-to-date objects are not touched, so a second call changes nothing. An automation that a person changed
    is kept.

    Args:
        dry_run: Only report what would be done.
        webhook: URL to which alerts are posted as JSON with "subject", "body", and both as "text".
        notification_block: A notification block to alert with instead, as slug/name: "slack-webhook/night".
        work_pool: The pool that runs the operational flows; created as a process pool if it is missing. By
            default they stay in their present pool, at first "resilience".
        reset: Also replace automations that a person changed.

    Raises ConfigurationError, and ApiUnavailable if the API is unavailable.
    """
    if webhook is not None and notification_block is not None:
        raise ConfigurationError(
            "both a webhook and a notification block are given: leave one of the two out"
        )
    with _connect() as client:
        return _install(Installation(client, dry_run, reset, webhook, notification_block, work_pool))


def plan_install(client: SyncPrefectClient) -> list[InstallationChange]:
    """The changes that `install` would make on the client's server."""
    return _install(Installation(client, dry_run=True))


def _install(run: Installation) -> list[InstallationChange]:
    _register_policies(run)
    notification = _receiver_of_alerts(run)
    pool = _work_pool(run)
    for operation in operational_flows():
        deployment_id = _deploy(run, operation, pool)
        run.ids[f"deployment:{operation.name}"] = str(deployment_id or UNKNOWN)
    if notification is not None:
        run.ids["notification"] = str(notification)
    by_name = automations_by_name(run.client)
    for file in automation_files():
        _automate(run, file, next(iter(by_name.pop(file.name, [])), None))
    # What is left may be from an older version.
    for automation in chain.from_iterable(by_name.values()):
        if install_mark(automation) == fingerprint(automation):
            _remove(run, automation, "no longer part of the installation")
    return run.changes


def uninstall(*, dry_run: bool = False) -> list[InstallationChange]:
    """Remove the objects of `install`: automations, deployments, its work pool and its notification block.

    Saved policies and their block type stay.
    """
    with _connect() as client:
        run = Installation(client, dry_run)
        names = {file.name for file in automation_files()}
        for automation in chain.from_iterable(automations_by_name(client).values()):
            if automation.name in names or install_mark(automation) is not None:
                _remove(run, automation)
        _remove_deployments(run)
        _remove_blocks(run)
    return run.changes


def _remove(run: Installation, automation: Automation, why: str = "") -> None:
    run.remove("automation", automation.name, partial(run.client.delete_automation, automation.id), why)


def automations_by_name(client: SyncPrefectClient) -> dict[str, list[Automation]]:
    """Every automation of the server by name, the newest last."""
    by_name: dict[str, list[Automation]] = {}
    for automation in pages(client.read_automations):
        by_name.setdefault(automation.name, []).append(automation)
    return by_name


@contextmanager
def _connect() -> Generator[SyncPrefectClient, None, None]:
    try:
        with get_client(sync_client=True) as client:
            client.hello().raise_for_status()
            yield client
    except (ConfigurationError, ObjectNotFound):
        raise
    except HTTPStatusError as error:
        raise ApiUnavailable(
            redact(f"the Prefect API rejected the request: {one_line(error.response.text)}")
        ) from error
    except Exception as error:
        why = redact(one_line(error))
        raise ApiUnavailable(
            f"the Prefect API is unavailable ({why}): start a server, and set PREFECT_API_URL to its address"
        ) from error


def _find(read: Callable[..., T], *args: Any) -> T | None:
    try:
        return read(*args)
    except ObjectNotFound:
        return None


# -- blocks


def _register_policies(run: Installation) -> None:
    """Register the block type of policies and its schema."""
    there = _find(run.client.read_block_type_by_slug, SLUG)
    differs = _find(run.client.read_block_schema_by_checksum, ResiliencePolicy.checksum()) is None
    register = cast("Any", ResiliencePolicy).register_type_and_schema
    run.upsert("block type", POLICY, there, differs, register)


def _receiver_of_alerts(run: Installation) -> UUID | None:
    """The id of the notification block for alerts; None if there is none."""
    webhook = run.webhook
    if (named := run.notification_block) is not None:
        slug, _, name = named.partition("/")
        if (block_id := _find_block(run.client, slug, name)) is None:
            raise ConfigurationError(
                f"there is no block {named!r}: write slug/name, as in slack-webhook/night"
            )
        return block_id
    there = _find_block(run.client, WEBHOOK, ALERTS)
    if webhook is None:
        return there
    if not re.match(r"https?://[^/\s]+", webhook):
        raise ConfigurationError("the webhook is not a URL: write http://... or https://...")
    # The URL of a webhook is also its password.
    secrets = {"url": webhook}
    data = run.client.read_block_document(there, include_secrets=True).data if there else {}
    differs = data.get("secrets") != secrets or data.get("json_data") != PAYLOAD

    def save() -> UUID:
        options: dict[str, Any] = {"json_data": PAYLOAD, "secrets": secrets, "headers": None, "cookies": None}
        block: Any = CustomWebhookNotificationBlock(name=ALERTS, url="{{url}}", **options)
        return block.save(ALERTS, overwrite=True)

    return run.upsert("block", f"{WEBHOOK}/{ALERTS}", there, differs, save) or there or UNKNOWN


def _remove_blocks(run: Installation) -> None:
    """Remove the notification block, and the block type of policies if no policy is saved."""
    block_id = _find_block(run.client, WEBHOOK, ALERTS)
    if block_id is not None:
        run.remove("block", f"{WEBHOOK}/{ALERTS}", partial(run.client.delete_block_document, block_id))
    block_type = _find(run.client.read_block_type_by_slug, SLUG)
    if block_type is not None:
        policies = [str(policy.name) for policy in run.client.read_block_documents_by_type(SLUG)]
        run.remove("block type", POLICY, partial(run.client.delete_block_type, block_type.id), users=policies)


def _find_block(client: SyncPrefectClient, slug: str, name: str) -> UUID | None:
    block = _find(client.read_block_document_by_name, name, slug)
    return block.id if block else None


# -- the work pool and deployments


def _work_pool(run: Installation) -> str:
    """The work pool for the operational flows; created if it is missing."""
    ours = DeploymentFilter.model_validate({"tags": {"all_": [OWN_TAG]}})
    deployments = [] if run.work_pool else run.client.read_deployments(deployment_filter=ours, limit=1)
    name = run.work_pool or (deployments[0].work_pool_name if deployments else None) or POOL
    about = "Runs the operational flows of prefect-resilience."
    wanted = WorkPoolCreate(name=name, type="process", description=about)
    there = _find(run.client.read_work_pool, name)
    why = "" if there else f"start a worker: prefect worker start --pool {name}"
    create = partial(run.client.create_work_pool, wanted)
    run.upsert("work pool", name, there, False, create, why)
    return name


def _deploy(run: Installation, operation: Operation, pool: str) -> UUID | None:
    """Create or update the deployment of one flow. Schedules and parameters are set only at creation."""
    client, name = run.client, operation.deployment
    if operation.name == "tune" and not has_numpy():
        run.note("deployment", name, "skipped", NEEDS_NUMPY)
        return None
    there = _find(client.read_deployment_by_name, name)
    wanted: dict[str, Any] = {
        "version": version(NAME),
        "description": operation.flow.description or "",
        "entrypoint": operation.entrypoint,
        "pull_steps": [],
        "parameter_openapi_schema": operation.parameters,
        "enforce_parameter_schema": operation.flow.should_validate_parameters,
    }
    if run.work_pool or there is None or there.work_pool_name is None:
        wanted["work_pool_name"] = pool
    if there is None:

        def create() -> UUID:
            cron = SCHEDULES.get(operation.name)
            crons = [CronSchedule(cron=cron, timezone="UTC")] if cron else []
            schedules = [DeploymentScheduleCreate(schedule=schedule) for schedule in crons]
            flow_id, own = client.create_flow_from_name(operation.name), {"tags": operation.tags}
            return client.create_deployment(flow_id, operation.name, schedules=schedules, **own, **wanted)

        return run.upsert("deployment", name, None, True, create)
    changed = {key: value for key, value in wanted.items() if getattr(there, key) != value}
    if missing := [tag for tag in operation.tags if tag not in there.tags]:
        changed["tags"] = [*there.tags, *missing]
    update = partial(client.update_deployment, there.id, DeploymentUpdate(**changed))
    why = ", ".join(sorted(changed)).replace("_", " ")
    run.upsert("deployment", name, there, bool(changed), update, why)
    return there.id


def _remove_deployments(run: Installation) -> None:
    """Remove our deployments, and our work pool if it has no other deployments."""
    removed: set[UUID] = set()
    for operation in operational_flows():
        there = _find(run.client.read_deployment_by_name, operation.deployment)
        if there is not None:
            removed.add(there.id)
            run.remove("deployment", operation.deployment, partial(run.client.delete_deployment, there.id))
    if _find(run.client.read_work_pool, POOL) is None:
        return
    ours = WorkPoolFilter.model_validate({"name": {"any_": [POOL]}})
    deployments = run.client.read_deployments(work_pool_filter=ours)
    users = [deployment.name for deployment in deployments if deployment.id not in removed]
    run.remove("work pool", POOL, partial(run.client.delete_work_pool, POOL), users=users)


# -- automations
#
# A fingerprint in an automation's description shows whether a person has changed the automation.
# It is in the description because editing an automation in the UI keeps the description.

MARK = re.compile(r"\n*Installed by prefect-resilience \(fingerprint ([0-9a-f]{12})\)\s*$")
IGNORED = frozenset({"id", "created", "updated", "description", "enabled", "tags", "owner_resource"})
"""Fields that a fingerprint ignores: ids of the server, and fields that do not change the behaviour."""
UNORDERED = frozenset({"expect", "after", "for_each"})


def fingerprint(automation: AutomationCore) -> str:
    """Equal for two automations with the same behaviour."""
    behaviour = _behaviour(automation.model_dump(mode="json", exclude_defaults=True))
    return hashlib.sha256(json.dumps(behaviour, sort_keys=True).encode()).hexdigest()[:12]


def _behaviour(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {name: _behaviour(item, name) for name, item in items if name not in IGNORED}
    if isinstance(value, list):
        items = [_behaviour(item) for item in cast("list[Any]", value)]
        return sorted(items) if key in UNORDERED else items
    return value


def install_mark(automation: Automation) -> str | None:
    """The fingerprint in the description; None if there is none."""
    mark = MARK.search(automation.description)
    return mark[1] if mark else None


def with_mark(automation: AutomationCore) -> AutomationCore:
    """The automation with its fingerprint at the end of the description."""
    text = MARK.sub("", automation.description)
    mark = f"Installed by prefect-resilience (fingerprint {fingerprint(automation)})"
    return automation.model_copy(update={"description": f"{text}\n\n{mark}"})


def _automate(run: Installation, file: AutomationFile, there: Automation | None) -> None:
    """Create or update one automation, unless a person edited it."""
    actions = there.actions if there else []
    blocks = [action.block_document_id for action in actions if isinstance(action, SendNotification)]
    # Without another block, alerts go through the one that the automation has.
    ids = {**({"notification": str(blocks[0])} if blocks else {}), **run.ids}
    if "${notification}" in file.text and "notification" not in ids:
        why = "no receiver for alerts: add --webhook or --notification-block"
        return run.note("automation", file.name, "skipped", why)
    wanted = with_mark(AutomationCore.model_validate(file.fill(ids)))
    if there is None:
        create = partial(run.client.create_automation, wanted)
        return run.upsert("automation", file.name, None, True, create)
    differs = fingerprint(there) != fingerprint(wanted)
    if differs and fingerprint(there) != install_mark(there) and not run.reset:
        return run.note("automation", file.name, "kept", "edited by a person; --reset replaces it")
    # Keep `enabled` as a person set it.
    updated = wanted.model_copy(update={"enabled": there.enabled})
    update = partial(run.client.update_automation, there.id, updated)
    why = "" if differs or there.enabled else "disabled by a person"
    return run.upsert("automation", file.name, there, differs, update, why)
