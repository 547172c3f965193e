"""Which advice can be written to which `ResiliencePolicy` block, and how it is restored. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, JsonValue

from prefect_resilience.operations.tuning.options import value_at
from prefect_resilience.operations.tuning.report import Comparison, TuningAdvice

IN_BLOCK = frozenset({"retry", "timeout", "circuit", "fallback"})
"""The parts of a block. Limits and hedges are only in the code."""

KEPT = 30
"""The number of applications that are kept, the newest."""

CLASSES = {"retry": "Retry", "circuit": "CircuitBreaker", "limits": "Bulkhead", "hedge": "Hedge"}

Document = dict[str, Any]


class _Applied(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)


class TuningChange(_Applied):
    """One option that is written to a block.

    before: the block's own value; None: the block left it to the code. now: the value with which the task
    ran. effect: what the replay predicts.
    """

    task: str
    option: str
    block: str
    before: JsonValue
    now: JsonValue
    after: JsonValue
    why: str = ""
    effect: Comparison | None = None


class NotApplied(_Applied):
    """Advice that was not written, or a change that was not restored, and the reason in one sentence."""

    task: str
    option: str
    why: str


class ChangePlan(_Applied):
    """The changes of blocks, and the advice that no block can take."""

    changes: tuple[TuningChange, ...] = ()
    left: tuple[NotApplied, ...] = ()

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the blocks that change."""
        return tuple(sorted({one.block for one in self.changes}))


class AppliedTuning(_Applied):
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


def plan_changes(
    advice: Iterable[TuningAdvice], blocks: Mapping[str, str | None], documents: Mapping[str, Document]
) -> ChangePlan:
    """What to write. `blocks`: the block of each task; `documents`: the data of each block that exists."""
    told = list(advice)
    changes: list[TuningChange] = []
    left: list[NotApplied] = []
    for one in told:
        why = _obstacle(one, told, blocks, documents)
        if why is None:
            changes.append(_change(one, cast("str", blocks[one.task]), documents))
        else:
            left.append(NotApplied(task=one.task, option=one.option, why=why))
    return ChangePlan(changes=tuple(changes), left=tuple(left))


def _change(one: TuningAdvice, block: str, documents: Mapping[str, Document]) -> TuningChange:
    return TuningChange(
        task=one.task,
        option=one.option,
        block=block,
        before=own_value(documents.get(block, {}), one.option),
        now=one.now,
        after=_named(one),
        why=one.why,
        effect=one.effect,
    )


def _named(one: TuningAdvice) -> JsonValue:
    """The value to write. A circuit where the code has none needs a name."""
    if one.option == "circuit" and isinstance(one.better, dict):
        return {"name": one.task, **one.better}
    return one.better


def _obstacle(
    one: TuningAdvice,
    advice: Iterable[TuningAdvice],
    blocks: Mapping[str, str | None],
    documents: Mapping[str, Document],
) -> str | None:
    """Why the advice cannot be written; None if it can."""
    code = in_code(one.option, one.better)
    block = blocks.get(one.task)
    if one.option.partition(".")[0] not in IN_BLOCK or one.better is None:
        return f"a block cannot have it: {code} in the code"
    if block is None:
        return f'the task reads no block: {code} in the code, or policy="{one.task}" there and apply again'
    others = sorted(task for task, name in blocks.items() if name == block and task != one.task)
    agreeing = {other.task for other in advice if (other.option, other.better) == (one.option, one.better)}
    different = [task for task in others if task not in agreeing]
    if different:
        return f"{', '.join(different)} also reads the block {block!r}: give this task a block of its own"
    own = own_value(documents.get(block, {}), one.option)
    if own is not None and own != one.now and not _part_of(own, one.now):
        return f"the block {block!r} has changed since: it now says {own!r}"
    return None


def _part_of(own: JsonValue, now: JsonValue) -> bool:
    """Whether a block's options are some of those with which the task ran."""
    if isinstance(own, dict) and isinstance(now, dict):
        return all(now.get(name) == value for name, value in own.items())
    return False


def in_code(option: str, value: JsonValue) -> str:
    """How the option is written in the code."""
    part, _, name = option.partition(".")
    shown = repr(value)
    if not name:
        return f"write {part}={shown}"
    return f"write {CLASSES.get(part, part)}({name.partition('.')[0]}={shown})"


def before_changes(
    changes: Iterable[TuningChange], documents: Mapping[str, Document]
) -> tuple[dict[str, Document], tuple[NotApplied, ...]]:
    """The blocks with the values before the changes, and the changes that stay: someone has changed them."""
    made = {name: deepcopy(document) for name, document in documents.items()}
    left: list[NotApplied] = []
    for one in changes:
        document = made.get(one.block)
        if document is None or own_value(document, one.option) != one.after:
            said = "is gone" if document is None else f"now says {own_value(document, one.option)!r}"
            why = f"the block {one.block!r} {said}, not {one.after!r}"
            left.append(NotApplied(task=one.task, option=one.option, why=why))
        else:
            set_at(document, one.option, one.before)
    return made, tuple(left)


def written(changes: Iterable[TuningChange], documents: Mapping[str, Document]) -> dict[str, Document]:
    """The data of each block after the changes."""
    made: dict[str, Document] = {}
    for one in changes:
        document = made.setdefault(one.block, deepcopy(documents.get(one.block, {})))
        set_at(document, one.option, one.after)
    return made


def as_stored(plan: ChangePlan, stored: Mapping[str, Document]) -> ChangePlan:
    """The plan with each value in the form in which its block will have it; `stored`: their data."""
    changes = tuple(
        one.model_copy(update={"after": own_value(stored[one.block], one.option)}) for one in plan.changes
    )
    return plan.model_copy(update={"changes": changes})


def own_value(document: Mapping[str, Any], option: str) -> Any:
    """The value of an option such as "retry.attempts"; None if the block leaves it to the code."""
    found = value_at(document, option)
    return None if found in ({}, []) else found


def set_at(document: Document, option: str, value: JsonValue) -> None:
    """Set an option, or leave it to the code if `value` is None."""
    *places, last = option.split(".")
    for place in places:
        inner = document.get(place)
        document[place] = inner if isinstance(inner, dict) else {}
        document = document[place]
    if value is None:
        document.pop(last, None)
    else:
        document[last] = value


def with_entry(document: Any, entry: AppliedTuning) -> dict[str, Any]:
    """The stored document with one more application."""
    entries: list[Any] = [] if document is None else document["entries"]
    return {"entries": [*entries, entry.model_dump(mode="json")][-KEPT:]}


def entries_of(document: Any) -> tuple[AppliedTuning, ...]:
    """The applications in the stored document, the newest last."""
    return () if document is None else tuple(map(AppliedTuning.model_validate, document["entries"]))


def restored(document: Any, entry_id: str, at: float, by: str) -> Any:
    """The stored document with the application marked as restored."""
    entries = [
        {**one, "restored_at": at, "restored_by": by} if one["id"] == entry_id else one
        for one in document["entries"]
    ]
    return {"entries": entries}
