"""`install` and `uninstall`: create, update and remove our objects, except those that a person changed."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from itertools import chain

from httpx import HTTPStatusError
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.events.schemas.automations import Automation
from prefect.exceptions import ObjectNotFound

from prefect_resilience.base.text import one_line
from prefect_resilience.durable.batches.edge.flow_runs import ApiUnavailable
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.installation import resources
from prefect_resilience.operations.installation.catalog import (
    UNKNOWN,
    InstallationChange,
    automation_files,
    operational_flows,
)
from prefect_resilience.operations.installation.resources import Installation, fingerprint, install_mark

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
    with _connect() as client:
        return _install(Installation(client, dry_run, reset), webhook, notification_block, work_pool)


def plan_install(client: SyncPrefectClient) -> list[InstallationChange]:
    """The changes that `install` would make on the client's server."""
    return _install(Installation(client, dry_run=True))


def _install(
    run: Installation, webhook: str | None = None, block: str | None = None, work_pool: str | None = None
) -> list[InstallationChange]:
    resources.register_policies(run)
    notification = resources.notification(run, webhook, block)
    pool = resources.pool(run, work_pool)
    for operation in operational_flows():
        deployment_id = resources.deploy(run, operation, pool, work_pool is not None)
        run.ids[f"deployment:{operation.name}"] = str(deployment_id or UNKNOWN)
    if notification is not None:
        run.ids["notification"] = str(notification)
    by_name = automations_by_name(run.client)
    for file in automation_files():
        resources.automate(run, file, next(iter(by_name.pop(file.name, [])), None))
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
        resources.remove_deployments(run)
        resources.remove_blocks(run)
    return run.changes


def _remove(run: Installation, automation: Automation, why: str = "") -> None:
    run.remove("automation", automation.name, partial(run.client.delete_automation, automation.id), why)


def automations_by_name(client: SyncPrefectClient) -> dict[str, list[Automation]]:
    """Every automation of the server by name, the newest last."""
    by_name: dict[str, list[Automation]] = {}
    offset = 0
    while page := client.read_automations(limit=PAGE, offset=offset):
        for automation in page:
            by_name.setdefault(automation.name, []).append(automation)
        offset += len(page)
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
