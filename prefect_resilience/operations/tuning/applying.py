"""Writes advice to `ResiliencePolicy` blocks, keeps the old values in the store, and restores them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from pydantic import JsonValue

from prefect_resilience.base.edge.current_settings import current_settings
from prefect_resilience.durable.batches.edge.recovery import who
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.reports.api import Period, ReportError, opened
from prefect_resilience.operations.tuning.reading import options_of
from prefect_resilience.operations.tuning.record import value_at, with_value
from prefect_resilience.operations.tuning.report import Reported, TuningAdvice, TuningReport
from prefect_resilience.stores import Store, open_store
from prefect_resilience.stores.base import change
from prefect_resilience.tasks.edge.blocks.live import read_policy
from prefect_resilience.tasks.edge.blocks.policy import SLUG

PLACE = "tuning/applied"
KEPT = 30
"""The number of applications that are kept, the newest."""

Document = dict[str, Any]


class TuningChange(Reported):
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
    why: str = ""


class NotApplied(Reported):
    """Advice that was not written, or a change that was not restored, and the reason in one sentence."""

    task: str
    option: str
    why: str


class ChangePlan(Reported):
    """The changes of blocks, and the advice that no block can take."""

    changes: tuple[TuningChange, ...] = ()
    left: tuple[NotApplied, ...] = ()

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the blocks that change."""
        return tuple(sorted({edit.block for edit in self.changes}))


class AppliedTuning(Reported):
    """One application of advice, as the store keeps it.

    at: when, in seconds since the epoch by the store's clock. since, until: the period of the evidence.
    """

    id: str
    at: float
    by: str
    since: float
    until: float
    changes: tuple[TuningChange, ...]
    restored_at: float | None = None
    restored_by: str | None = None


# -- which advice goes to which block


def plan_of(report: TuningReport) -> ChangePlan:
    """What applying the report would change. Reads the tasks' blocks from the Prefect API."""
    now = datetime.now(UTC)
    with opened() as api:
        blocks = {row.task: row.block for row in options_of(api, Period(now - timedelta(days=8), now), {})}
    documents = _documents(block for block in blocks.values() if block is not None)
    plan = plan_changes(report.advice, blocks, documents)
    changes: list[TuningChange] = []
    not_applied = [*plan.left]
    for name, document in written(plan.changes, documents).items():
        mine = [edit for edit in plan.changes if edit.block == name]
        try:
            stored = read_policy(document).as_options()
        except ConfigurationError as error:
            why = f"the block would be invalid: {error}"
            not_applied += [NotApplied(task=edit.task, option=edit.option, why=why) for edit in mine]
        else:
            # Each value in the form in which the block will have it.
            changes += [edit.model_copy(update={"after": own_value(stored, edit.option)}) for edit in mine]
    return ChangePlan(changes=tuple(changes), left=tuple(not_applied))


def plan_changes(
    advice: Sequence[TuningAdvice], blocks: Mapping[str, str | None], documents: Mapping[str, Document]
) -> ChangePlan:
    """What to write. `blocks`: the block of each task; `documents`: the data of each block that exists."""
    changes: list[TuningChange] = []
    not_applied: list[NotApplied] = []
    for tip in advice:
        block = blocks.get(tip.task)
        own = own_value(documents.get(block or "", {}), tip.option)
        why, place = _obstacle(tip, advice, blocks, own), {"task": tip.task, "option": tip.option}
        if why is not None:
            not_applied.append(NotApplied(**place, why=why))
        else:
            values = {"block": block, "before": own, "now": tip.now, "after": tip.better, "why": tip.why}
            changes.append(TuningChange.model_validate({**place, **values}))
    return ChangePlan(changes=tuple(changes), left=tuple(not_applied))


def _obstacle(
    one: TuningAdvice, advice: Sequence[TuningAdvice], blocks: Mapping[str, str | None], own: Any
) -> str | None:
    """Why the advice cannot be written; None if it can. own: what the block says now."""
    block = blocks.get(one.task)
    if block is None:
        code = in_code(one.option, one.better)
        return f'the task reads no block: {code} in the code, or policy="{one.task}" there and apply again'
    agreeing = {other.task for other in advice if (other.option, other.better) == (one.option, one.better)}
    different = sorted(task for task, name in blocks.items() if name == block and task not in agreeing)
    if different:
        return f"{', '.join(different)} also reads the block {block!r}: give this task a block of its own"
    # A block's backoff may be a part of the one with which the task ran.
    part = isinstance(own, dict) and isinstance(one.now, dict) and own.items() <= one.now.items()
    if own is not None and own != one.now and not part:
        return f"the block {block!r} has changed since: it now says {own!r}"
    return None


def in_code(option: str, value: JsonValue) -> str:
    """How the option is written in the code."""
    part, _, name = option.partition(".")
    policy = "Retry" if part == "retry" else "CircuitBreaker"
    return f"write {policy}({name}={value!r})" if name else f"write {part}={value!r}"


def written(changes: Iterable[TuningChange], documents: Mapping[str, Document]) -> dict[str, Document]:
    """The data of each block after the changes."""
    after: dict[str, Document] = {}
    for edit in changes:
        document = after.get(edit.block, documents.get(edit.block, {}))
        after[edit.block] = with_value(document, edit.option, edit.after)
    return after


def before_changes(
    changes: Iterable[TuningChange], documents: Mapping[str, Document]
) -> tuple[dict[str, Document], tuple[NotApplied, ...]]:
    """The blocks with the values before the changes, and the changes that stay: someone has changed them."""
    before = dict(documents)
    not_applied: list[NotApplied] = []
    for edit in changes:
        document = before.get(edit.block)
        if document is not None and own_value(document, edit.option) == edit.after:
            before[edit.block] = with_value(document, edit.option, edit.before)
        else:
            state = "is gone" if document is None else f"now says {own_value(document, edit.option)!r}"
            why = f"the block {edit.block!r} {state}, not {edit.after!r}"
            not_applied.append(NotApplied(task=edit.task, option=edit.option, why=why))
    return before, tuple(not_applied)


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
    how = {"id": uuid4().hex[:12], "at": _store().now(), "by": redact(who()), "changes": plan.changes}
    entry = AppliedTuning.model_validate({**how, "since": report.since, "until": report.until})
    _keep(entry)
    for name, document in written(plan.changes, _documents(plan.blocks)).items():
        _save(name, document)
    return entry


def restore() -> tuple[AppliedTuning, tuple[TuningChange, ...], tuple[NotApplied, ...]]:
    """Give the blocks the values from before the latest application, unless they were changed since.

    Returns the application, the changes that were restored, and those that stay. Raises ConfigurationError
    if there is none.
    """
    entry = next((tuning for tuning in reversed(applications()) if tuning.restored_at is None), None)
    if entry is None:
        raise ConfigurationError("there is nothing to restore: no advice was applied with this store")
    documents = _documents({edit.block for edit in entry.changes})
    before, not_restored = before_changes(entry.changes, documents)
    for name, document in before.items():
        if document != documents[name]:
            _save(name, document)
    _keep(entry.model_copy(update={"restored_at": _store().now(), "restored_by": redact(who())}))
    stay = {(note.task, note.option) for note in not_restored}
    return entry, tuple(edit for edit in entry.changes if (edit.task, edit.option) not in stay), not_restored


def applications() -> tuple[AppliedTuning, ...]:
    """The applications in the store, the newest last. Raises StoreUnavailable."""
    document = _store().load(PLACE)
    return () if document is None else tuple(map(AppliedTuning.model_validate, document.value["entries"]))


def with_entry(document: Any, entry: AppliedTuning) -> dict[str, Any]:
    """The stored document with this application as its newest entry."""
    entries: list[Any] = [] if document is None else document["entries"]
    older = [earlier for earlier in entries if earlier["id"] != entry.id]
    return {"entries": [*older, entry.model_dump(mode="json")][-KEPT:]}


def _keep(entry: AppliedTuning) -> None:
    change(_store(), PLACE, lambda document: with_entry(document, entry), 365 * 86_400.0)


def _store() -> Store:
    return open_store(current_settings().store_url)


def _documents(names: Iterable[str]) -> dict[str, Document]:
    """The data of the blocks that exist."""
    documents: dict[str, Document] = {}
    try:
        with get_client(sync_client=True) as client:
            for name in set(names):
                try:
                    documents[name] = dict(client.read_block_document_by_name(name, SLUG).data)
                except ObjectNotFound:
                    continue
    except Exception as error:
        raise ReportError(f"the policy blocks cannot be read: {redact(str(error))}") from error
    return documents


def _save(name: str, document: Document) -> None:
    try:
        read_policy(document).save(name, overwrite=True)
    except Exception as error:
        raise ReportError(
            f"the block {name!r} cannot be written: {redact(str(error))}; `tune --undo` restores the others"
        ) from error
