"""Opening a batch: whether the ledger still has all its records of the batch, and which effects earlier
passes recorded.

A batch has a document with a token and the number of effects that each process recorded. The token is also
written on the batch's flow run (`marks.py`). A ledger that was emptied, restored from an older copy or partly
evicted has fewer records than document and token show: then no external effect is sent.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from prefect_resilience.base.process import per_process
from prefect_resilience.durable.effects.ledger import Ledger, place_of
from prefect_resilience.durable.effects.model import EffectDocument, Pass, same_pass
from prefect_resilience.durable.effects.recipes import (
    CodeSource,
    Continues,
    Recipe,
    Suspect,
    compared,
    is_gone,
)
from prefect_resilience.errors.exceptions import NotRecorded
from prefect_resilience.stores.base import change

RecordedCall = tuple[str, tuple[str, ...], tuple[Any, ...]]
"""A task, its parameters, and the loose digests of their arguments."""


class EarlierEffects:
    """The external effects that earlier passes of one flow did or began, without those that this pass has
    requested. Indexed, because a recovery may request thousands of other effects.
    """

    def __init__(self, effects: Iterable[EffectDocument] = ()) -> None:
        self._by_key: dict[str, EffectDocument] = {}
        self._by_call: dict[RecordedCall, set[str]] = {}
        self._gone: dict[str, bool] = {}
        self._lock = threading.Lock()
        for effect in effects:
            self._by_key[effect["key"]] = effect
            self._by_call.setdefault(_call_of(effect["recipe"]), set()).add(effect["key"])

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def asked(self, key: str) -> None:
        """Remove an effect: this pass has requested it."""
        with self._lock:
            effect = self._by_key.pop(key, None)
            if effect is not None:
                self._by_call[_call_of(effect["recipe"])].discard(key)

    def compare(self, recipe: Recipe, was: tuple[str, ...], source: CodeSource) -> Continues | list[Suspect]:
        """How a call with a key that is new to the ledger relates to them (see `recipes.compared`)."""
        with self._lock:
            keys = self._candidates(recipe, was, source)
            candidates = [self._by_key[key] for key in keys]
        return compared(candidates, recipe, was, lambda recorded: self._is_gone(recorded["task"], source))

    def _candidates(self, recipe: Recipe, was: tuple[str, ...], source: CodeSource) -> Iterator[str]:
        mine = _call_of(recipe)
        for call, keys in self._by_call.items():
            task, names, args = call
            if not keys:
                continue
            if task != mine[0]:
                may_be = task in was or self._is_gone(task, source)
            else:
                # With the same parameters, only the same arguments can be the same call.
                may_be = call == mine or names != mine[1] or None in (*args, *mine[2])
            if may_be:
                yield from keys

    def _is_gone(self, task: str, source: CodeSource) -> bool:
        if task not in self._gone:
            self._gone[task] = is_gone(task, source)
        return self._gone[task]


def earlier_effects(
    effects: Iterable[EffectDocument], passed: Pass, flow: tuple[str | None, str | None]
) -> EarlierEffects:
    """The earlier effects of the same flow, by its run's id or its name: the code of another flow may not be
    in this process."""
    run, name = flow
    return EarlierEffects(
        effect
        for effect in effects
        if effect["kind"] == "external"
        and effect["state"] in ("done", "unknown", "intended")
        and not effect.get("acknowledged")
        and _of_an_earlier_pass(effect, passed, run, name)
    )


def _of_an_earlier_pass(effect: EffectDocument, passed: Pass, run: str | None, flow: str | None) -> bool:
    return (
        effect.get("recipe") is not None
        and (effect.get("flow_run_id") == run or effect.get("flow") == flow)
        and not same_pass((effect.get("asked") or {"pass": ()})["pass"], passed)
    )


def _call_of(recipe: Recipe) -> RecordedCall:
    fields = recipe.get("fields")
    args, names = fields or recipe["args"], tuple(fields or recipe["names"])
    return recipe["task"], names, tuple(args[name]["loose"] if name in args else None for name in names)


BATCHES = "effects-batch/"
T = TypeVar("T")
MOST_OPEN, MOST_COUNTED = 1_000, 200
_SHOWN = {"key", "kind", "state", "task", "flow", "flow_run_id", "runs"}
_READ = _SHOWN | {"recipe", "asked", "acknowledged", "counted"}


class BatchMarks(Protocol):
    """The data about a batch outside of the ledger. Each method may block, and raise StoreUnavailable."""

    @property
    def begins(self) -> bool:
        """Whether this is certainly the first pass of the batch: then no record can have been lost."""
        ...

    def token(self) -> str | None:
        """The token that was written on the batch's run."""

    def leave(self, token: str) -> None: ...

    def completed(self) -> dict[str, float]:
        """The ids of task runs that completed an external effect of the batch, and when: in seconds since the
        epoch."""
        ...


def batch_place(batch_id: str) -> str:
    return place_of(batch_id, prefix=BATCHES)[:-1]


def lost(document: dict[str, Any] | None, token: str | None) -> str | None:
    """Why this is not the ledger in which the batch was recorded; None: it may be."""
    if token is None or (document is not None and (document["token"] == token or document["reopened_at"])):
        return None
    if document is None:
        return "its run was marked when its first effect was recorded, but the ledger does not have the batch"
    return "its run was marked by another ledger"


def is_counted(effect: EffectDocument) -> bool:
    """Whether the batch counts an effect. It does not count compensations and effects that may be
    repeated."""
    return bool(effect.get("counted"))


def missing(
    document: dict[str, Any] | None,
    effects: list[EffectDocument],
    own: dict[str, int],
    completed: dict[str, float],
) -> str | None:
    """Why effects of a batch must be missing; None: none is missing. `own`: this process's count, {process:
    number}."""
    if document is None:
        reason = f"Prefect knows of {len(completed)} completed effects, and the ledger has none"
        return reason if completed else None
    created = {**document["created"]}
    for process, number in own.items():
        created[process] = max(number, created.get(process, 0))
    expected = sum(created.values()) - document["removed"]
    if len(effects) < expected:
        return f"the ledger has {len(effects)} of the {expected} effects that the batch counted"
    recorded = {run for effect in effects for run in effect.get("runs", ())}
    since = document["reopened_at"] or 0.0
    gone = sorted(run for run, at in completed.items() if run not in recorded and at > since)
    if gone:
        return (
            f"Prefect knows of {len(gone)} completed effects that the ledger does not have, such as {gone[0]}"
        )
    return None


# -- an open batch


@dataclass(slots=True)
class BatchCount:
    """The number of effects of a batch that this process recorded, in all passes."""

    ledger: Ledger
    batch_id: str
    number: int = 0
    life: int = 0
    """How often the batch was reopened. The count starts again each time."""
    _flushing: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def one_more(self) -> None:
        """Count an effect that is new to the ledger; the batch's document is updated within a second."""
        with self._lock:
            self.number += 1
            begin, self._flushing = not self._flushing, True
        if begin:
            self.ledger.owner.later(self._flush)

    def _flush(self) -> None:
        with self._lock:
            number, self._flushing = self.number, False
        change_batch(self.ledger, self.batch_id, lambda document: self._count(document, number))

    def _count(self, document: dict[str, Any] | None, number: int) -> dict[str, Any] | None:
        if document is None or document["life"] != self.life:
            return document
        if number <= document["created"].get(batches.process, -1):
            return document
        return {**document, "created": {**document["created"], batches.process: number}}

    def begin_life(self, life: int) -> None:
        with self._lock:
            if life != self.life:
                self.life, self.number = life, 0


@dataclass(slots=True)
class OpenBatch:
    """A batch in which this process records effects, in one pass."""

    count: BatchCount
    passed: Pass
    earlier: EarlierEffects

    def compare(self, recipe: Recipe, was: tuple[str, ...], source: CodeSource) -> Continues | list[Suspect]:
        """How a call with a key that is new to the ledger relates to the effects of earlier passes."""
        comparison = self.earlier.compare(recipe, was, source)
        if isinstance(comparison, Continues):
            return comparison
        return [suspect for suspect in comparison if not self._is_asked_elsewhere(suspect.key)]

    def _is_asked_elsewhere(self, key: str) -> bool:
        """Whether another process of this pass has requested the effect since the batch was opened."""
        stored = self.count.ledger.store.load(place_of(self.count.batch_id, key))
        last = None if stored is None else stored.value.get("asked")
        return last is not None and same_pass(last["pass"], self.passed)


class OpenBatches:
    """The open batches of this process, and the process's name in their counts."""

    def __init__(self) -> None:
        self.process: str = uuid4().hex
        self.lock: threading.Lock = threading.Lock()
        self.open: OrderedDict[tuple[int, str, Pass], OpenBatch] = OrderedDict()
        self.counts: OrderedDict[tuple[int, str], BatchCount] = OrderedDict()


batches: OpenBatches = per_process(OpenBatches)


def open_batch(
    ledger: Ledger,
    batch_id: str,
    passed: Pass,
    flow: tuple[str | None, str | None],
    marks: Callable[[], BatchMarks | None],
) -> OpenBatch:
    """The batch, opened once per process and pass. `flow`: the flow run's id and the flow's name.

    Raises NotRecorded if the ledger has lost records, and StoreUnavailable.
    """
    anew = any(number > 1 for _, number in passed)
    key = (id(ledger.store), batch_id, passed if anew else passed[:1])
    with batches.lock:
        existing = batches.open.get(key)
    if existing is not None and existing.count.ledger.store is ledger.store:
        return existing
    with batches.lock:
        count = batches.counts.get(key[:2])
        if count is None or count.ledger.store is not ledger.store:
            count = _remember(batches.counts, key[:2], BatchCount(ledger, batch_id))
    opened = _opened(count, passed, flow, marks())
    with batches.lock:
        return _remember(batches.open, key, opened)


def _remember(registry: OrderedDict[Any, T], key: Any, value: T) -> T:
    registry[key] = value
    while len(registry) > MOST_OPEN:
        registry.popitem(last=False)
    return value


def _opened(
    count: BatchCount, passed: Pass, flow: tuple[str | None, str | None], marks: BatchMarks | None
) -> OpenBatch:
    ledger, batch_id = count.ledger, count.batch_id
    document = batch_document(ledger, batch_id)
    begins = marks is not None and marks.begins
    # In the first pass, another process of the same pass created the document: the mark need not be read.
    unread = marks is None or (begins and document is not None)
    token = None if unread or marks is None else marks.token()
    effects: list[EffectDocument] = []
    if document is None and token is not None:
        # Another process may have opened the batch and left the mark since the ledger was read.
        document = batch_document(ledger, batch_id)
    why = lost(document, token)
    completed = {} if marks is None or begins or why is not None else marks.completed()
    if document is None and completed:
        document = batch_document(ledger, batch_id)
    if document is not None:
        count.begin_life(document["life"])
    if why is None and not begins:
        recorded = [{k: row[k] for k in _READ & row.keys()} for row, _ in ledger.each_effect(batch_id)]
        effects = [effect for effect in recorded if is_counted(effect)]
        why = missing(document, effects, {batches.process: count.number}, completed)
        if document is None and any("recipe" not in effect for effect in recorded):
            why = "a version before 0.2 recorded its effects"
    if why is not None:
        raise NotRecorded(loss_report(batch_id, why))
    if document is None:
        document = change_batch(ledger, batch_id, lambda there: there or new_batch(batch_id))
    if not unread and token != document["token"] and marks is not None:
        marks.leave(document["token"])
    count.number = max(count.number, document["created"].get(batches.process, 0))
    return OpenBatch(count, passed, earlier_effects(effects, passed, flow))


def check_own_effects(ledger: Ledger, batch_id: str) -> None:
    """Raise NotRecorded if the ledger has lost effects of the batch that this process recorded."""
    count = batches.counts.get((id(ledger.store), batch_id))
    if count is None or not (number := count.number):
        return
    document = batch_document(ledger, batch_id)
    why = None
    if number <= MOST_COUNTED:
        effects = [effect for effect, _ in ledger.each_effect(batch_id) if is_counted(effect)]
        why = missing(document, effects, {batches.process: number}, {})
    if document is None or why is not None:
        raise NotRecorded(loss_report(batch_id, why or "it has none of those that this process recorded"))


def batch_document(ledger: Ledger, batch_id: str) -> dict[str, Any] | None:
    stored = ledger.store.load(batch_place(batch_id))
    return None if stored is None else stored.value


def loss_report(batch_id: str, why: str) -> str:
    return (
        f"nothing was sent: the ledger has lost records of batch {batch_id!r}: {why}; restore it, or check "
        f"the receivers and continue with `prefect-resilience batches reopen {batch_id}`"
    )


def new_batch(batch_id: str) -> dict[str, Any]:
    return {
        "batch": batch_id,
        "token": uuid4().hex,
        "created": {},
        "removed": 0,
        "life": 0,
        "reopened_at": None,
    }


def reopen_document(document: dict[str, Any] | None, batch_id: str, known: int, now: float) -> dict[str, Any]:
    """The batch's document after a person has accepted the ledger's `known` effects as complete."""
    document = document or new_batch(batch_id)
    life = document["life"] + 1
    return {**document, "created": {"reopened": known}, "removed": 0, "life": life, "reopened_at": now}


def note_removed_effects(ledger: Ledger, batch_id: str, number: int) -> None:
    """Record that `number` effects were removed from the ledger on purpose."""

    if number:
        change_batch(
            ledger, batch_id, lambda known: known and {**known, "removed": known["removed"] + number}
        )


def change_batch(
    ledger: Ledger,
    batch_id: str,
    step: Callable[[dict[str, Any] | None], dict[str, Any] | None],
    lasts: float | None = None,
) -> dict[str, Any]:
    """The batch's document after `step` (see `stores.base.change`)."""
    return change(ledger.store, batch_place(batch_id), step, lasts)
