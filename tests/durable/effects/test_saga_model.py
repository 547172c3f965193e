"""What is undone and in which order, and the steps of a rollback, as pure functions."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.durable.effects.model import AlreadyDone, Intend, LookUp, Send, Succeeded, decide
from prefect_resilience.durable.sagas import undo
from prefect_resilience.durable.sagas.compensations import RollbackReport, not_undone
from prefect_resilience.durable.sagas.undo import plan_rollback
from prefect_resilience.errors.exceptions import ConfigurationError, EffectBusy, InDoubt

COMPENSATION = {"call": {"module": "m", "qualname": "f", "file": None}, "parameters": {}}
ERROR = {"code": "HTTP", "message": "503"}


def effect(
    key: str, state: str = "done", at: float = 1.0, *, undoable: bool = True, **more: Any
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "key": key,
        "state": state,
        "claim": f"c-{key}",
        "intended_at": at,
        "settled_at": at,
    }
    made |= {"result": {"as": "json", "value": key}, "external_id": None, "error": None, "attempts": 1}
    made |= {"generation": 1, "kind": "external", "owner": "o", "first_at": at}
    if undoable:
        made["compensation"] = dict(COMPENSATION)
    return {**made, **more}


def keys(documents) -> list[str]:
    return [one["key"] for one in documents]


def test_what_a_person_says_of_one_that_could_not_be_undone():
    held = undo.fence_effect(effect("a"), "r", "o")
    doubted = undo.end_compensation(held, 5.0, "compensating", ERROR)
    kept = undo.end_compensation(doubted, 6.0, "done", ERROR, by="person: ada")
    assert (kept["state"], kept["verified_by"], kept["compensation"]["owner"]) == (
        "done",
        "person: ada",
        None,
    )
    assert kept["compensation"]["error"] == ERROR
    assert not undo.can_be_undone(kept)
    found = undo.to_undo([kept, effect("b"), effect("c", undoable=False)], None)
    assert (keys(found.effects), keys(found.skipped)) == (["b"], ["c", "a"])
    undone = undo.end_compensation(doubted, 6.0, "compensated", by="person: ada")
    assert (undone["state"], undone["verified_by"]) == ("compensated", "person: ada")
    assert decide(kept, LookUp(False), 7.0)[1] == AlreadyDone(kept["result"], None)
    assert decide(undone, LookUp(False), 7.0)[1] == Send(2)


# -- which, and in which order


def test_what_is_to_be_undone_the_last_first_and_what_stays() -> None:
    effects = [
        effect("a", at=1.0),
        effect("b", at=2.0),
        effect("plain", at=3.0, undoable=False),
        effect("given-up", "done", 4.0, compensation={**COMPENSATION, "given_up": "person: ada"}),
        effect("doubt", "unknown", 5.0, undoable=False),
        effect("asked", "unknown", 6.0, verify=True, error=ERROR),
    ]
    plan = plan_rollback("b", None, undo.to_undo(effects, None))
    assert [(one.key, one.function) for one in plan.compensated] == [("b", "m:f"), ("a", "m:f")]
    assert not plan.complete
    assert {one.key: (one.how, one.why) for one in not_undone(plan)} == {
        "plain": ("skipped", "it has no compensation"),
        "given-up": ("skipped", "its compensation was given up (person: ada)"),
        "doubt": (
            "in_doubt",
            "its outcome is unknown (INTERRUPTED: nothing is known about the call); "
            "there is no verify to ask",
        ),
        "asked": (
            "in_doubt",
            "its outcome is unknown (HTTP: 503); the next run of the batch calls verify",
        ),
    }
    assert [one.key for one in plan_rollback("b", None, undo.to_undo(effects, 1.0)).compensated] == ["b"]
    assert plan_rollback("b", "to", undo.to_undo(effects, 6.0)) == RollbackReport("b", "to")


# -- one effect


# -- savepoints, and who rolls back


NEW = {**undo.SagaLog.new, "batch": "b"}


def since(saga: dict[str, Any]) -> float | None:
    return saga["rollback"]["since"]


def test_one_rollback_at_a_time():
    saga = undo.begin(NEW, "r1", "me", False, None, 1.0)
    assert since(saga) is None
    with pytest.raises(EffectBusy):
        undo.begin(saga, "r2", "you", True, None, 2.0)
    with pytest.raises(EffectBusy):
        undo.mark(saga, "one", True, 2.0)
    with pytest.raises(InDoubt):
        undo.mark(saga, "one", False, 2.0)
    taken = undo.begin(saga, "r2", "you", False, None, 2.0)
    assert (taken["rollback"]["claim"], since(taken)) == ("r2", None)
    assert undo.end(taken, "r1", {}) is taken  # it was taken over: not its to end


@pytest.mark.parametrize(
    ("first", "second", "back_to"),
    [("one", "two", 1.0), ("two", "one", 1.0), (None, "two", None), ("two", None, None), ("one", "one", 1.0)],
)
def test_of_a_rollback_that_was_cut_off_and_the_next_the_farther_back_counts(first, second, back_to):
    saga = undo.mark(NEW, "one", False, 1.0)
    saga = undo.mark(saga, "two", False, 2.0)
    saga = undo.begin(saga, "r1", "me", False, first, 3.0)
    assert since(undo.begin(saga, "r2", "me", False, second, 4.0)) == back_to


# -- against a naive model

moves = st.lists(
    st.one_of(
        st.tuples(st.just("do"), st.sampled_from("abcd"), st.booleans()),
        st.tuples(st.just("mark"), st.sampled_from(["x", "y"])),
        st.tuples(st.just("roll"), st.sampled_from(["x", "y", None]), st.integers(0, 4)),
    ),
    max_size=25,
)


class Naive:
    """The world as a list of what was done and marked, in order; what is undone is taken off its end."""

    def __init__(self) -> None:
        self.history: list[tuple[str, str, bool]] = []
        self.sent: list[str] = []
        self.undone: list[str] = []
        self.times: dict[str, int] = {}

    def do(self, key: str, undoable: bool) -> None:
        if not any(kind == "do" and name == key for kind, name, _ in self.history):
            self.times[key] = self.times.get(key, 0) + 1
            self.history.append(("do", key, undoable))
            self.sent.append(f"{key}{self.times[key]}")

    def mark(self, name: str) -> None:
        if not any(kind == "mark" and known == name for kind, known, _ in self.history):
            self.history.append(("mark", name, False))

    def roll(self, to: str | None, cut: int) -> None:
        """Undo from the end; `cut` rollbacks are cut off before they come to anything more."""
        if to is not None and ("mark", to, False) not in self.history:
            return
        kept: list[tuple[str, str, bool]] = []
        while self.history and self.history[-1] != ("mark", to, False):
            kind, name, undoable = self.history.pop()
            if kind == "do" and undoable:
                self.undone.append(f"{name}{self.times[name]}")
            elif kind == "do":
                kept.insert(0, (kind, name, undoable))
        self.history += kept


class Real:
    """The same with the pure functions, each document written and read back as JSON."""

    def __init__(self) -> None:
        self.effects: dict[str, Any] = {}
        self.saga: Any = NEW
        self.now = 0.0
        self.sent: list[str] = []
        self.undone: list[str] = []

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def do(self, key: str, undoable: bool) -> None:
        about: dict[str, Any] = {"key": key, **({"compensation": dict(COMPENSATION)} if undoable else {})}
        claim = f"{key}{self.now}"
        document, decision = decide(
            self.effects.get(key), Intend("o", claim, False, about=about), self.tick()
        )
        if isinstance(decision, Send):
            self.sent.append(f"{key}{decision.generation}")
            document, _ = decide(document, Succeeded(claim, 1), self.tick())
        self.effects[key] = json.loads(json.dumps(document))

    def mark(self, name: str) -> None:
        self.saga = undo.mark(self.saga, name, False, self.tick())

    def roll(self, to: str | None, cut: int) -> None:
        try:
            self.saga = undo.begin(self.saga, "r", "me", False, to, self.tick())
        except ConfigurationError:
            return
        if self._carried_out(since(self.saga), cut):
            self.saga = undo.end(self.saga, "r", {})
            return
        self.saga = undo.begin(self.saga, "r2", "me", False, to, self.tick())
        assert self._carried_out(since(self.saga), 1_000)
        self.saga = undo.end(self.saga, "r2", {})

    def _carried_out(self, since: float | None, cut: int) -> bool:
        """Whether it was: after `cut` steps it is killed."""
        before = copy.deepcopy(self.effects)
        todo = undo.to_undo(self.effects.values(), since)
        assert self.effects == before
        steps: list[tuple[str, str]] = [("fence", one["key"]) for one in todo.effects]
        steps += [("undo", one["key"]) for one in todo.effects]
        for step, key in steps:
            if cut == 0:
                return False
            cut -= 1
            if step == "fence":
                self.effects[key] = undo.fence_effect(self.effects[key], "r", "me")
            else:
                self.undone.append(f"{key}{self.effects[key]['generation']}")
                self.effects[key] = undo.end_compensation(self.effects[key], self.tick(), "compensated")
        return True


@settings(deadline=None)
@given(moves)
def test_as_a_stack_would_do_it(script):
    naive, real = Naive(), Real()
    for name, *rest in script:
        getattr(naive, name)(*rest)
        getattr(real, name)(*rest)
        assert (real.sent, real.undone) == (naive.sent, naive.undone)
        marks = [one["name"] for one in (real.saga or {"savepoints": []})["savepoints"]]
        assert marks == [known for kind, known, _ in naive.history if kind == "mark"]
