"""The block type of policies, and the block that alerts go through."""

from __future__ import annotations

import re
from typing import Any, cast
from uuid import UUID

from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound

from prefect_resilience.base.policy import nearest
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations.installation.catalog import ALERTS, UNKNOWN, Action, Change
from prefect_resilience.tasks.edge.blocks.policy import SLUG, ResiliencePolicy

WEBHOOK = "custom-webhook"
PAYLOAD = {"subject": "{{subject}}", "body": "{{body}}", "text": "{{subject}}\n{{body}}"}
"""What is posted: `text` is what chat services look for."""


def register(client: SyncPrefectClient, dry_run: bool) -> list[Change]:
    """Make the policies' block type and its schema known to the server."""
    name = ResiliencePolicy.get_block_type_name()
    action: Action = "unchanged"
    try:
        client.read_block_type_by_slug(SLUG)
    except ObjectNotFound:
        action = "created"
    else:
        try:
            client.read_block_schema_by_checksum(ResiliencePolicy.checksum())
        except ObjectNotFound:
            action = "changed"
    if action != "unchanged" and not dry_run:
        cast("Any", ResiliencePolicy).register_type_and_schema()
    return [Change(kind="block type", name=name, action=action)]


def notification(
    client: SyncPrefectClient, webhook: str | None, named: str | None, dry_run: bool
) -> tuple[UUID | None, list[Change]]:
    """The id of the block that alerts go through; None where nobody is to be alerted."""
    if named is not None:
        return _named(client, named), []
    there = _find(client, WEBHOOK, ALERTS)
    if webhook is None:
        return there, []
    if not re.match(r"https?://[^/\s]+", webhook):
        raise ConfigurationError("the webhook is no URL: write http://... or https://...")
    change: Action = "created"
    if there is not None:
        data = client.read_block_document(there, include_secrets=True).data
        same = data.get("secrets") == {"url": webhook} and data.get("json_data") == PAYLOAD
        change = "unchanged" if same else "changed"
    if not dry_run and change != "unchanged":
        there = cast("Any", _webhook(webhook)).save(ALERTS, overwrite=True)
    return there or UNKNOWN, [Change(kind="block", name=f"{WEBHOOK}/{ALERTS}", action=change)]


def remove(client: SyncPrefectClient, dry_run: bool) -> list[Change]:
    """Take the alerts' block away, and the policies' block type where there is no policy."""
    removed: list[Change] = []
    if (there := _find(client, WEBHOOK, ALERTS)) is not None:
        if not dry_run:
            client.delete_block_document(there)
        removed.append(Change(kind="block", name=f"{WEBHOOK}/{ALERTS}", action="removed"))
    name = ResiliencePolicy.get_block_type_name()
    try:
        block_type = client.read_block_type_by_slug(SLUG)
    except ObjectNotFound:
        return removed
    policies = client.read_block_documents_by_type(SLUG)
    if policies:
        names = ", ".join(sorted(str(policy.name) for policy in policies))
        return [*removed, Change(kind="block type", name=name, action="kept", why=f"used by {names}")]
    if not dry_run:
        client.delete_block_type(block_type.id)
    return [*removed, Change(kind="block type", name=name, action="removed")]


def _webhook(url: str) -> CustomWebhookNotificationBlock:
    # The address of a webhook is its password as well.
    options: dict[str, Any] = {"json_data": PAYLOAD, "secrets": {"url": url}}
    return CustomWebhookNotificationBlock(name=ALERTS, url="{{url}}", headers=None, cookies=None, **options)


def _named(client: SyncPrefectClient, named: str) -> UUID:
    slug, slash, name = named.partition("/")
    if not slash:
        raise ConfigurationError(f"{named!r} names no block: write slug/name, as in slack-webhook/night")
    found = _find(client, slug, name)
    if found is None:
        known = {
            f"{one.block_type.slug}/{one.name}" for one in client.read_block_documents() if one.block_type
        }
        near = nearest(named, known) if known else ", nor any other"
        raise ConfigurationError(f"there is no block {named!r}{near}")
    return found


def _find(client: SyncPrefectClient, slug: str, name: str) -> UUID | None:
    try:
        return client.read_block_document_by_name(name, slug).id
    except ObjectNotFound:
        return None
