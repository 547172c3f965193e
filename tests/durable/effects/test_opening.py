"""Opening a batch: what its ledger lost is seen, in this process and in others, and what it counted."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience import StoreUnavailable
from prefect_resilience.durable.effects import opening, owner
from prefect_resilience.durable.effects.keys import effect_key
from prefect_resilience.durable.effects.ledger import Ledger, place_of
from prefect_resilience.durable.effects.model import Asker, Send, Succeeded
from prefect_resilience.durable.effects.opening import (
    EarlierEffects,
    batch_place,
    change_batch,
    earlier_effects,
    lost,
    missing,
    new_batch,
    note_removed_effects,
    open_batch,
    reopen_document,
)
from prefect_resilience.durable.effects.policy import Effect
from prefect_resilience.durable.effects.recipes import Continues, Suspect, compared, source_of
from prefect_resilience.errors.exceptions import NotRecorded
from prefect_resilience.stores import MemoryStore, base

FLOW = ("f", "bills")
FIRST, SECOND, THIRD = (("f", 1),), (("f", 2),), (("f", 3),)


class Marks:
    """Where the batch's run is kept: what Prefect's API holds, in a dictionary."""

    def __init__(self, begins: bool = False) -> None:
        self.begins = begins
        self.left: str | None = None
        self.runs: dict[str, float] = {}

    def token(self) -> str | None:
        return self.left

    def leave(self, token: str) -> None:
        self.left = token

    def completed(self) -> dict[str, float]:
        return self.runs


@pytest.fixture
def ledger(monkeypatch) -> Ledger:
    monkeypatch.setattr(owner, "TICK_SECONDS", 0.01)
    return Ledger(MemoryStore("memory://opening"))


@pytest.fixture(autouse=True)
def nothing_open():
    """Each test is a process of its own, as far as batches know."""
    restarted()


def restarted() -> None:
    opening.batches.open.clear()
    opening.batches.counts.clear()
    opening.batches.process = f"process-{id(object())}-{len(_started)}"
    _started.append(1)


_started: list[int] = []


def opened(ledger, passed=FIRST, marks=None, batch="b"):
    return open_batch(ledger, batch, passed, FLOW, lambda: marks)


def here(n: int) -> None: ...


SOURCE = source_of(here)
TASK = SOURCE.name


def recipe(task: str = TASK, **parameters: Any) -> dict[str, Any]:
    return effect_key(Effect(), task, parameters, "b", hasher=str).recipe


def did(ledger, batch, key="k", run="r1", passed=FIRST, end=True, n=1) -> None:
    """Intend and do an effect as a claim does."""
    made = recipe(n=n)
    about = {"key": key, "task_run_id": run, "recipe": made, "flow_run_id": "f", "flow": "bills"}
    decision = ledger.intend(
        place_of("b", key), f"c-{run}", "external", about, False, Asker(run, passed, made)
    )
    assert isinstance(decision, Send)
    if not decision.known:
        batch.count.one_more()
    if end:
        ledger.report(place_of("b", key), Succeeded(f"c-{run}", {"as": "json", "value": 1}))
    flushed(ledger)


def flushed(ledger) -> None:
    """The owner's thread has told the batch what was counted."""
    deadline = time.monotonic() + 20
    while ledger.owner._reports:
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.005)


def document(ledger, batch="b") -> Any:
    found = ledger.store.load(batch_place(batch))
    return None if found is None else found.value


def forget(ledger, *places) -> None:
    for place in places:
        ledger.store.delete(place, ledger.store.load(place).version)


def of_token(token) -> dict[str, Any]:
    return {**new_batch("b"), "token": token}


# -- decisions


@pytest.mark.parametrize(
    ("there", "token", "why"),
    [
        (None, None, None),
        (of_token("t"), None, None),
        (of_token("t"), "t", None),
        (reopen_document(None, "b", 0, 1.0), "t", None),
        (of_token("t"), "u", "by another ledger"),
        (None, "t", "does not have the batch"),
    ],
)
def test_what_a_mark_says(there, token, why):
    said = lost(there, token)
    assert said is None if why is None else why in said


def batch_of(created=(), removed=0, reopened_at=None):
    known = {"created": dict(created), "removed": removed, "reopened_at": reopened_at}
    return {**of_token("t"), **known}


@pytest.mark.parametrize(
    ("batch", "effects", "own", "completed", "why"),
    [
        (batch_of(), [], {}, {}, None),
        (batch_of({"p": 1}), [{"runs": ["r"]}], {}, {"r": 1.0}, None),
        (batch_of({"p": 1}), [], {}, {}, "has 0 of the 1 effects"),
        (batch_of({"p": 1, "q": 2}), [{}, {}], {}, {}, "has 2 of the 3"),
        (batch_of({"p": 1}), [{}], {"p": 2}, {}, "has 1 of the 2"),
        (batch_of({"p": 2}), [{}, {}], {"p": 1}, {}, None),
        (batch_of({"p": 2}, removed=1), [{}], {}, {}, None),
        (batch_of({"p": 1}), [{"runs": ["r"]}], {}, {"s": 1.0, "r": 1.0, "q": 1.0}, "2 completed effects"),
        (batch_of({"p": 1}, reopened_at=5.0), [{"runs": ["r"]}], {}, {"s": 5.0, "r": 6.0}, None),
    ],
    ids=str,
)
def test_what_is_missing(batch, effects, own, completed, why):
    said = missing(batch, effects, own, completed)
    assert said is None if why is None else why in said


# -- a batch in a store


def test_the_first_pass_makes_the_document_and_the_mark(ledger):
    marks = Marks(begins=True)
    batch = opened(ledger, marks=marks)
    assert document(ledger) == of_token(marks.left)
    assert not batch.earlier
    assert opened(ledger, (("f", 1), ("t", 1)), marks) is batch, "opened once for the first pass"
    did(ledger, batch)
    did(ledger, batch, "l", "r2")
    assert sum(document(ledger)["created"].values()) == 2
    marks.runs |= {"r1": 1.0, "r2": 2.0}
    marks.begins = False
    again = opened(ledger, SECOND, marks)
    assert again is not batch
    assert again.count is batch.count
    assert again.earlier
    restarted()
    assert opened(ledger, THIRD, marks).earlier


@pytest.mark.parametrize("same_process", [False, True])
def test_an_effect_that_was_evicted(ledger, same_process):
    marks = Marks(begins=True)
    batch = opened(ledger, marks=marks)
    did(ledger, batch)
    did(ledger, batch, "l", "r2")
    forget(ledger, place_of("b", "k"))
    marks.begins = False
    if not same_process:
        restarted()
    with pytest.raises(NotRecorded, match="has 1 of the 2 effects"):
        opened(ledger, SECOND, marks)
    note_removed_effects(ledger, "b", 0)
    note_removed_effects(ledger, "b", 1)
    assert opened(ledger, SECOND, marks).earlier
    note_removed_effects(ledger, "nobody", 1)
    assert document(ledger, "nobody") is None


def test_what_prefect_knows_and_the_ledger_does_not(ledger):
    marks = Marks()
    marks.runs = {"r1": 1.0}
    with pytest.raises(NotRecorded, match="1 completed effects, and the ledger has none"):
        opened(ledger, SECOND, marks)
    change_batch(ledger, "b", lambda _: of_token("t"))
    with pytest.raises(NotRecorded, match="does not have, such as r1"):
        opened(ledger, SECOND, marks)
    change_batch(ledger, "b", lambda there: reopen_document(there, "b", 0, 1.0))
    opened(ledger, SECOND, marks)
    assert marks.left == "t"


def test_effects_that_a_version_without_recipes_recorded(ledger):
    did(ledger, opened(ledger))
    restarted()
    found = ledger.store.load(place_of("b", "k"))
    effect = {name: value for name, value in found.value.items() if name != "recipe"}
    assert ledger.store.swap(place_of("b", "k"), found.version, effect)
    forget(ledger, batch_place("b"))
    with pytest.raises(NotRecorded, match=r"a version before 0\.2 recorded its effects"):
        opened(ledger, SECOND, Marks())


def test_what_a_later_pass_compares_with(ledger):
    did(ledger, opened(ledger))
    batch = opened(ledger, SECOND)
    mine = recipe(n="1")
    assert batch.compare(mine, (), SOURCE) == [Suspect("k", TASK, "n was int and is str")]
    assert batch.compare(mine, (TASK,), SOURCE) == Continues("k")
    # Another process of this pass asks for it meanwhile.
    ledger.look(place_of("b", "k"), Asker("r9", SECOND))
    assert batch.compare(mine, (), SOURCE) == []
    forget(ledger, place_of("b", "k"))
    assert batch.compare(mine, (), SOURCE) != []


def test_a_document_that_never_holds_still(ledger, monkeypatch):
    monkeypatch.setattr(base, "MOST_CHANGES", 3)
    monkeypatch.setattr(ledger.store, "swap", lambda *args: 0)
    with pytest.raises(StoreUnavailable, match="too many concurrent changes"):
        opened(ledger)


def test_a_count_that_follows_a_batch_that_was_lost(ledger):
    """No document is made anew: the mark tells."""
    marks = Marks(begins=True)
    batch = opened(ledger, marks=marks)
    forget(ledger, batch_place("b"))
    did(ledger, batch)
    assert ledger.store.load(batch_place("b")) is None
    marks.begins = False
    with pytest.raises(NotRecorded, match="does not have the batch"):
        opened(ledger, SECOND, marks)


class MarksBeside(Marks):
    """Between a look at the ledger and one at the run, another process opens the batch and ends an effect."""

    def __init__(self, ledger: Ledger, looks: str) -> None:
        super().__init__()
        self._ledger, self._looks = ledger, looks

    def _beside(self) -> None:
        opening.batches.open.clear()
        others = Marks(begins=True)
        other = opened(self._ledger, marks=others)
        others.runs["run"] = self._ledger.store.now()
        about = {"key": "k", "task_run_id": "run", "recipe": None}
        place = place_of("b", "k")
        assert not self._ledger.intend(place, "k", "external", about).known
        other.count.one_more()
        self.left, self.runs = others.left, others.runs

    def token(self) -> str | None:
        if self._looks == "token" and not self.runs:
            self._beside()
        return super().token()

    def completed(self) -> dict[str, float]:
        if self._looks == "completed" and not self.runs:
            self._beside()
        return super().completed()


@pytest.mark.parametrize("looks", ["token", "completed"])
def test_an_effect_that_another_process_ends_meanwhile_is_not_lost(ledger, looks):
    batch = opened(ledger, SECOND, MarksBeside(ledger, looks))
    assert batch.count.batch_id == "b"


# -- which of what earlier passes left a call may be

GONE = f"{SOURCE.module}.gone"


def effect(key: str, of: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "key": key,
        "recipe": recipe(n=1) if of is None else of,
        "kind": "external",
        "state": "done",
        "flow_run_id": "f",
        "flow": "bills",
        "asked": {"run": "r", "pass": [["f", 1]]},
        **more,
    }


def left(*effects: dict[str, Any]) -> EarlierEffects:
    return earlier_effects(effects, SECOND, FLOW)


@pytest.mark.parametrize(
    ("more", "counts"),
    [
        ({}, True),
        ({"state": "intended"}, True),
        ({"state": "failed"}, False),
        ({"kind": "conditional"}, False),
        ({"recipe": None}, False),
        ({"acknowledged": True}, False),
        ({"flow_run_id": "other"}, True),
        ({"flow": "other", "flow_run_id": "other"}, False),
        ({"asked": {"run": "r", "pass": [["f", 2]]}}, False),
        ({"asked": None}, True),
        ({"asked": {"run": "r", "pass": [["g", 1]]}}, True),
    ],
    ids=repr,
)
def test_which_effects_count(more, counts):
    assert bool(left({**effect("k"), **more})) is counts


CALLS = st.tuples(
    st.sampled_from([TASK, GONE, f"{SOURCE.module}.recipe"]),
    st.dictionaries(st.sampled_from("ab"), st.integers(0, 1) | st.sampled_from("01"), max_size=2),
)


@settings(deadline=None)
@given(
    st.lists(CALLS, max_size=6),
    st.sets(st.integers(0, 5)),
    CALLS,
    st.sampled_from([(), (GONE,), (TASK,), (GONE, f"{SOURCE.module}.recipe")]),
)
def test_the_index_finds_what_a_search_finds(calls, asked, call, was):
    effects = [effect(str(n), recipe(task, **args)) for n, (task, args) in enumerate(calls)]
    earlier = left(*effects)
    for number in asked:
        earlier.asked(str(number))
    remaining = [one for one in effects if int(one["key"]) not in asked]
    mine = recipe(call[0], **call[1])
    searched = compared(remaining, mine, was, lambda of: of["task"] == GONE)
    found = earlier.compare(mine, was, SOURCE)
    if isinstance(searched, Continues):
        assert found == searched
    else:
        assert isinstance(found, list)
        assert sorted(found, key=lambda one: one.key) == searched
