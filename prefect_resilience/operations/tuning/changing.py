"""Writes advice to `ResiliencePolicy` blocks, keeps the old values in the store, and restores them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound

from prefect_resilience.base.edge.settings import current_settings
from prefect_resilience.durable.batches.edge.recovery import who
from prefect_resilience.durable.effects.ledger import changed
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.reports.api import Period, ReportError, opened
from prefect_resilience.operations.tuning.applying import (
    AppliedTuning,
    ChangePlan,
    Document,
    NotApplied,
    TuningChange,
    as_stored,
    before_changes,
    entries_of,
    plan_changes,
    restored,
    with_entry,
    written,
)
from prefect_resilience.operations.tuning.reading_options import options_of
from prefect_resilience.operations.tuning.report import TuningReport
from prefect_resilience.stores import Store, open_store
from prefect_resilience.tasks.edge.blocks.live import read_policy
from prefect_resilience.tasks.edge.blocks.policy import SLUG

PLACE = "tuning/applied"
KEPT_SECONDS = 365 * 86_400.0
OPTIONS_OF = timedelta(days=8)


def planned(report: TuningReport) -> ChangePlan:
    """What applying the report would change. Reads the tasks' blocks from the Prefect API."""
    now = datetime.now(UTC)
    with opened() as api:
        options = options_of(api, Period(now - OPTIONS_OF, now), {})
    blocks = {one.task: one.block for one in options}
    documents = _documents({block for block in blocks.values() if block is not None})
    plan = plan_changes(report.advice, blocks, documents)
    return _checked(plan, documents)


def _checked(plan: ChangePlan, documents: dict[str, Document]) -> ChangePlan:
    """The plan without changes that would make a block invalid."""
    bad: dict[str, str] = {}
    stored: dict[str, Document] = {}
    for name, document in written(plan.changes, documents).items():
        try:
            stored[name] = read_policy(document).written()
        except ConfigurationError as error:
            bad[name] = str(error)
    left = [
        NotApplied(task=one.task, option=one.option, why=f"the block would be invalid: {bad[one.block]}")
        for one in plan.changes
        if one.block in bad
    ]
    kept = tuple(one for one in plan.changes if one.block not in bad)
    return as_stored(ChangePlan(changes=kept, left=(*plan.left, *left)), stored)


def apply_changes(report: TuningReport, plan: ChangePlan) -> AppliedTuning | None:
    """Write the planned changes to the blocks; None if there are none.

    The old values are written to the store first, so that `restore` can restore them in any case. Raises
    StoreUnavailable, and ReportError if the Prefect API is unavailable.
    """
    if not plan.changes:
        return None
    store = _store()
    entry = AppliedTuning(
        id=uuid4().hex[:12],
        at=store.now(),
        by=redact(who()),
        since=report.since,
        until=report.until,
        changes=plan.changes,
    )
    changed(store, PLACE, lambda document: with_entry(document, entry), KEPT_SECONDS)
    for name, document in written(plan.changes, _documents(plan.blocks)).items():
        _save(name, document)
    return entry


def applied(*, restored_too: bool = False) -> tuple[AppliedTuning, ...]:
    """The applications in the store, the newest last. Raises StoreUnavailable."""
    found = _store().load(PLACE)
    entries = entries_of(None if found is None else found.value)
    return tuple(one for one in entries if restored_too or one.restored_at is None)


def restore() -> tuple[AppliedTuning, tuple[TuningChange, ...], tuple[NotApplied, ...]]:
    """Give the blocks the values from before the latest application, unless they were changed since.

    Returns the application, the changes that were restored, and those that stay. Raises ConfigurationError
    if there is none.
    """
    entries = applied()
    if not entries:
        raise ConfigurationError("there is nothing to restore: no advice was applied with this store")
    entry = entries[-1]
    documents = _documents({one.block for one in entry.changes})
    made, left = before_changes(entry.changes, documents)
    for name, document in made.items():
        if document != documents[name]:
            _save(name, document)
    store, by = _store(), redact(who())
    at = store.now()
    changed(store, PLACE, lambda document: restored(document, entry.id, at, by), KEPT_SECONDS)
    stay = {(one.task, one.option) for one in left}
    return entry, tuple(one for one in entry.changes if (one.task, one.option) not in stay), left


def _store() -> Store:
    return open_store(current_settings().store_url)


def _documents(names: Iterable[str]) -> dict[str, Document]:
    """The data of the blocks that exist."""
    found: dict[str, Document] = {}
    try:
        with get_client(sync_client=True) as client:
            for name in names:
                try:
                    found[name] = dict(client.read_block_document_by_name(name, SLUG).data)
                except ObjectNotFound:
                    continue
    except Exception as error:
        raise ReportError(f"the policy blocks cannot be read: {redact(str(error))}") from error
    return found


def _save(name: str, document: dict[str, Any]) -> None:
    try:
        read_policy(document).save(name, overwrite=True)
    except Exception as error:
        raise ReportError(
            f"the block {name!r} cannot be written: {redact(str(error))}; `tune --undo` restores the others"
        ) from error
