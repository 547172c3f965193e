"""Writes advice to `ResiliencePolicy` blocks, keeps the old values in the store, and restores them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from prefect.exceptions import ObjectNotFound
from pydantic import BaseModel, JsonValue

from prefect_resilience.base.edge.current_settings import current_settings
from prefect_resilience.durable.batches.edge.marks import asking
from prefect_resilience.durable.batches.edge.recovery import who
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.reports.api import Period, ReportError, opened
from prefect_resilience.operations.tuning.record import options_of, value_at, with_value
from prefect_resilience.operations.tuning.report import OptionNote, TuningAdvice, TuningReport
from prefect_resilience.stores import Store, open_store
from prefect_resilience.stores.base import change
from prefect_resilience.tasks.edge.live_policy import read_policy
from prefect_resilience.tasks.edge.policy_block import SLUG

PLACE = "tuning/latest"

Document = dict[str, Any]


class TuningChange(BaseModel, frozen=True):
    """One option that is written to a block.

    before: the block's own value; None: the block left it to the code. now: the value with which the task
    ran.
    """

    task: str
    option: str
    block: str
    before: JsonValue
    now: JsonValue
    after: JsonValue


class ChangePlan(BaseModel, frozen=True):
    """The changes of blocks, and the advice that no block can take."""

    changes: tuple[TuningChange, ...] = ()
    left: tuple[OptionNote, ...] = ()

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the blocks that change."""
        return tuple(sorted({edit.block for edit in self.changes}))


class AppliedTuning(BaseModel, frozen=True):
    """The latest application of advice, as the store keeps it until it is restored.

    at: when, in seconds since the epoch by the store's clock. since, until: the period of the evidence.
    """

    at: float
    by: str
    since: float
    until: float
    changes: tuple[TuningChange, ...]


# -- which advice goes to which block


def plan_of(report: TuningReport) -> ChangePlan:
    """What applying the report would change. Reads the tasks' blocks from the Prefect API."""
    now = datetime.now(UTC)
    with opened() as api:
        blocks = {row.task: row.block for row in options_of(api, Period(now - timedelta(days=8), now))}
    documents = _documents(block for block in blocks.values() if block is not None)
    plan = plan_changes(report.advice, blocks, documents)
    blocks_after = with_changes(plan.changes, documents)
    stored = {name: read_policy(document).as_options() for name, document in blocks_after.items()}
    # Each value in the form in which the block will have it.
    changes = [
        edit.model_copy(update={"after": own_value(stored[edit.block], edit.option)}) for edit in plan.changes
    ]
    return plan.model_copy(update={"changes": tuple(changes)})


def plan_changes(
    advice: Sequence[TuningAdvice], blocks: Mapping[str, str | None], documents: Mapping[str, Document]
) -> ChangePlan:
    """What to write. `blocks`: the block of each task; `documents`: the data of each block that exists."""
    changes: list[TuningChange] = []
    not_applied: list[OptionNote] = []
    for tip in advice:
        block = blocks.get(tip.task)
        own = own_value(documents.get(block or "", {}), tip.option)
        why, place = _obstacle(tip, advice, blocks, own), {"task": tip.task, "option": tip.option}
        if why is not None:
            not_applied.append(OptionNote(**place, why=why))
        else:
            values = {"block": block, "before": own, "now": tip.now, "after": tip.better}
            changes.append(TuningChange.model_validate({**place, **values}))
    return ChangePlan(changes=tuple(changes), left=tuple(not_applied))


def _obstacle(
    one: TuningAdvice, advice: Sequence[TuningAdvice], blocks: Mapping[str, str | None], own: Any
) -> str | None:
    """Why the advice cannot be written; None if it can. own: what the block says now."""
    block = blocks.get(one.task)
    if block is None:
        value = f"{one.option}={one.better!r}"
        return f'the task reads no block: set {value} in its code, or policy="{one.task}" and apply again'
    agreeing = {other.task for other in advice if (other.option, other.better) == (one.option, one.better)}
    different = sorted(task for task, name in blocks.items() if name == block and task not in agreeing)
    if different:
        return f"{', '.join(different)} also reads the block {block!r}: give this task a block of its own"
    # A block's backoff may be a part of the one with which the task ran.
    part = isinstance(own, dict) and isinstance(one.now, dict) and own.items() <= one.now.items()
    if own is not None and own != one.now and not part:
        return f"the block {block!r} has changed since: it now says {own!r}"
    return None


def with_changes(changes: Iterable[TuningChange], documents: Mapping[str, Document]) -> dict[str, Document]:
    """The data of each block after the changes."""
    after: dict[str, Document] = {}
    for edit in changes:
        document = after.get(edit.block, documents.get(edit.block, {}))
        after[edit.block] = with_value(document, edit.option, edit.after)
    return after


def before_changes(
    changes: Iterable[TuningChange], documents: Mapping[str, Document]
) -> tuple[dict[str, Document], tuple[TuningChange, ...], tuple[OptionNote, ...]]:
    """The blocks with the values before the changes, the changes that are restored, and those that stay,
    because their values were changed since."""
    before, restored, stay = dict(documents), list[TuningChange](), list[OptionNote]()
    for edit in changes:
        document = before.get(edit.block)
        if document is not None and own_value(document, edit.option) == edit.after:
            before[edit.block] = with_value(document, edit.option, edit.before)
            restored.append(edit)
        else:
            state = "is gone" if document is None else f"now says {own_value(document, edit.option)!r}"
            why = f"the block {edit.block!r} {state}, not {edit.after!r}"
            stay.append(OptionNote(task=edit.task, option=edit.option, why=why))
    return before, tuple(restored), tuple(stay)


def own_value(document: Mapping[str, Any], option: str) -> Any:
    """The value of an option such as "retry.attempts"; None if the block leaves it to the code."""
    value = value_at(document, option)
    return None if value in ({}, []) else value


# -- writing and restoring


def apply_changes(report: TuningReport, plan: ChangePlan) -> AppliedTuning | None:
    """Write the planned changes to the blocks; None if there are none.

    The old values are written to the store first, so that `restore` can restore them in any case. Raises
    StoreUnavailable, and ReportError if the Prefect API is unavailable.
    """
    if not plan.changes:
        return None
    how = {"at": _store().now(), "by": redact(who()), "since": report.since, "until": report.until}
    entry = AppliedTuning.model_validate({**how, "changes": plan.changes})
    change(_store(), PLACE, lambda _: entry.model_dump(mode="json"), 365 * 86_400.0)
    for name, document in with_changes(plan.changes, _documents(plan.blocks)).items():
        _save(name, document)
    return entry


def restore() -> tuple[AppliedTuning, tuple[TuningChange, ...], tuple[OptionNote, ...]]:
    """Give the blocks the values from before the latest application, unless they were changed since.

    Returns the application, the changes that were restored, and those that stay. Raises ConfigurationError
    if there is none.
    """
    stored = _store().load(PLACE)
    if stored is None:
        raise ConfigurationError("there is nothing to restore: no advice was applied with this store")
    entry = AppliedTuning.model_validate(stored.value)
    documents = _documents({edit.block for edit in entry.changes})
    before, restored, stay = before_changes(entry.changes, documents)
    for name, document in before.items():
        if document != documents[name]:
            _save(name, document)
    _store().delete(PLACE, stored.version)
    return entry, restored, stay


def _store() -> Store:
    return open_store(current_settings().store_url)


def _documents(names: Iterable[str]) -> dict[str, Document]:
    """The data of the blocks that exist."""
    documents: dict[str, Document] = {}
    with asking(ReportError, "the policy blocks cannot be read") as client:
        for name in set(names):
            with suppress(ObjectNotFound):
                documents[name] = dict(client.read_block_document_by_name(name, SLUG).data)
    return documents


def _save(name: str, document: Document) -> None:
    try:
        read_policy(document).save(name, overwrite=True)
    except Exception as error:
        raise ReportError(
            f"the block {name!r} cannot be written: {redact(str(error))}; `tune --undo` restores the others"
        ) from error
