"""`install` and `uninstall`: create, update and remove our objects, except those that a person changed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from httpx import HTTPStatusError
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.events.actions import SendNotification
from prefect.events.schemas.automations import Automation, AutomationCore
from prefect.exceptions import ObjectNotFound

from prefect_resilience.base.text import one_line
from prefect_resilience.durable.batches.edge.flow_runs import ApiUnavailable
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.installation import resources
from prefect_resilience.operations.installation.catalog import (
    UNKNOWN,
    AutomationFile,
    InstallationChange,
    automation_files,
    operational_flows,
)
from prefect_resilience.operations.installation.resources import Installation

# A fingerprint in an automation's description shows whether a person has changed the automation.
#
# It is in the description because editing an automation in the UI keeps the description.

MARK = re.compile(r"\n*Installed by prefect-resilience \(fingerprint ([0-9a-f]{12})\)\s*$")
NOT_MEANT = frozenset({"id", "created", "updated", "description", "enabled", "tags", "owner_resource"})
"""Fields that a fingerprint ignores: ids of the server, and fields that do not change the behaviour."""
UNORDERED = frozenset({"expect", "after", "for_each"})


def fingerprint(automation: AutomationCore) -> str:
    """Equal for two automations with the same behaviour."""
    meant = _meant(automation.model_dump(mode="json", exclude_defaults=True))
    return hashlib.sha256(json.dumps(meant, sort_keys=True).encode()).hexdigest()[:12]


def installed_as(automation: Automation) -> str | None:
    """The fingerprint in the description; None if there is none."""
    found = MARK.search(automation.description)
    return found[1] if found else None


def marked(automation: AutomationCore) -> AutomationCore:
    """The automation with its fingerprint at the end of the description."""
    text = MARK.sub("", automation.description)
    mark = f"Installed by prefect-resilience (fingerprint {fingerprint(automation)})"
    return automation.model_copy(update={"description": f"{text}\n\n{mark}"})


def _meant(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {name: _meant(item, name) for name, item in items if name not in NOT_MEANT}
    if isinstance(value, list):
        items = [_meant(item) for item in cast("list[Any]", value)]
        return sorted(items) if key in UNORDERED else items
    return value


PAGE = 200


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
    with _asking() as client:
        return _install(Installation(client, dry_run, reset), webhook, notification_block, work_pool)


def planned(client: SyncPrefectClient) -> list[InstallationChange]:
    """The changes that `install` would make on the client's server."""
    return _install(Installation(client, dry_run=True), None, None, None)


def _install(
    run: Installation, webhook: str | None, notification_block: str | None, work_pool: str | None
) -> list[InstallationChange]:
    resources.register_policies(run)
    notification = resources.notification(run, webhook, notification_block)
    pool = resources.pool(run, work_pool)
    for operation in operational_flows():
        if operation.obstacle is not None:
            run.note("deployment", operation.deployment, "skipped", operation.obstacle)
            continue
        deployment_id = resources.deploy(run, operation, pool, work_pool is not None)
        run.ids[f"deployment:{operation.name}"] = str(deployment_id or UNKNOWN)
    if notification is not None:
        run.ids["notification"] = str(notification)
    known = automations_by_name(run.client)
    for file in automation_files():
        _automate(run, file, known.get(file.name, []))
    _retire(run, known)
    return run.changes


def uninstall(*, dry_run: bool = False) -> list[InstallationChange]:
    """Remove the objects of `install`: automations, deployments, its work pool and its notification block.

    Saved policies and their block type stay.
    """
    with _asking() as client:
        run = Installation(client, dry_run)
        names = {file.name for file in automation_files()}
        for automation in [one for some in automations_by_name(client).values() for one in some]:
            if automation.name in names or installed_as(automation) is not None:
                run.do(client.delete_automation, automation.id)
                run.note("automation", automation.name, "removed")
        resources.remove_deployments(run)
        resources.remove_blocks(run)
    return run.changes


def _automate(run: Installation, file: AutomationFile, known: list[Automation]) -> None:
    """Create or update one automation."""
    ids = {**(_notified_by(known[0]) if known else {}), **run.ids}
    if "notification" in file.needs and "notification" not in ids:
        why = "no receiver for alerts: add --webhook or --notification-block"
        return run.note("automation", file.name, "skipped", why)
    wanted = marked(AutomationCore.model_validate(file.filled(ids)))
    if not known:
        run.do(run.client.create_automation, wanted)
        return run.note("automation", file.name, "created")
    there = known[0]
    if fingerprint(there) == fingerprint(wanted):
        run.note("automation", file.name, "unchanged", "" if there.enabled else "disabled by a person")
    elif fingerprint(there) == installed_as(there) or run.reset:
        # Keep `enabled` as a person set it.
        updated = wanted.model_copy(update={"enabled": there.enabled})
        run.do(run.client.update_automation, there.id, updated)
        run.note("automation", file.name, "changed")
    else:
        run.note("automation", file.name, "kept", "edited by a person; --reset replaces it")


def _notified_by(automation: Automation) -> dict[str, str]:
    """The notification block that an automation already uses."""
    blocks = [
        action.block_document_id for action in automation.actions if isinstance(action, SendNotification)
    ]
    return {"notification": str(blocks[0])} if blocks else {}


def _retire(run: Installation, known: Mapping[str, list[Automation]]) -> None:
    """Remove unedited automations of an older version."""
    names = {file.name for file in automation_files()}
    for automation in [one for name, some in known.items() if name not in names for one in some]:
        if installed_as(automation) == fingerprint(automation):
            run.do(run.client.delete_automation, automation.id)
            run.note("automation", automation.name, "removed", "no longer part of the installation")


def automations_by_name(client: SyncPrefectClient) -> dict[str, list[Automation]]:
    """Every automation of the server by name, the newest last."""
    found: dict[str, list[Automation]] = {}
    offset = 0
    while page := client.read_automations(limit=PAGE, offset=offset):
        for automation in page:
            found.setdefault(automation.name, []).append(automation)
        offset += len(page)
    return found


@contextmanager
def _asking() -> Generator[SyncPrefectClient, None, None]:
    try:
        with get_client(sync_client=True) as client:
            client.hello().raise_for_status()
            yield client
    except (ConfigurationError, ObjectNotFound):
        raise
    except HTTPStatusError as error:
        raise ApiUnavailable(redact(f"the Prefect API rejected the request: {_detail(error)}")) from error
    except Exception as error:
        why = redact(one_line(error))
        raise ApiUnavailable(
            f"the Prefect API is unavailable ({why}): start a server, and set PREFECT_API_URL to its address"
        ) from error


def _detail(error: HTTPStatusError) -> str:
    """The error message of the API on one line."""
    try:
        said = error.response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        said = error
    return one_line(said)
