"""One effect, one event at a time."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.durable.effects.model import (
    MOST_RUNS,
    AlreadyDone,
    Ask,
    Asker,
    Doubted,
    FailedCall,
    InProgress,
    Intend,
    LookUp,
    Overdue,
    Recorded,
    Repeated,
    Reused,
    Send,
    Succeeded,
    Verified,
    decide,
    not_sent,
    same_pass,
)
from prefect_resilience.durable.effects.policy import Done, NotDone

ERROR = {"code": "TIMEOUT", "message": "read timeout"}


def after(*events, document=None):
    decision = None
    for now, event in enumerate(events, start=1):
        document, decision = decide(document, event, float(now))
    return document, decision


def intend(claim="c1", alive=False, **more):
    return Intend("owner", claim, alive, **more)


def test_external_effects_are_counted_once_and_compensations_never():
    counted = {"external": True, "idempotent": False}
    for kind, expected in counted.items():
        document, _ = after(intend(kind=kind))
        assert document["counted"] is expected
    document, _ = after(intend(kind="external", about={"compensates": "pay:1"}))
    assert document["counted"] is False
    document, _ = after(intend(kind="external"), FailedCall("c1", ERROR), intend("c2", kind="idempotent"))
    assert document["counted"] is True


FIRST, SECOND = (("flow", 1),), (("flow", 2),)


def recipe(task="shop.send", typed="17", in_key=True):
    arg = {"type": "int", "typed": typed, "loose": "17", "key": in_key}
    return {"task": task, "template": "k:{n}", "names": ["n"], "args": {"n": arg}}


def asker(run="r1", passed=FIRST, **more):
    return Asker(run, passed, **more)


def test_a_second_call_of_one_pass_while_the_first_goes_on():
    document, _ = after(intend(asker=asker()))
    assert decide(document, LookUp(True, asker("r2")), 3.0) == (document, Repeated("r1"))
    assert decide(document, LookUp(True, asker("r2", replays=True)), 3.0) == (document, InProgress())
    assert decide(document, LookUp(True, asker("r2", SECOND)), 3.0) == (document, InProgress())
    assert isinstance(decide(document, LookUp(False, asker("r2")), 3.0)[1], Ask), "the first one died"
    failed, _ = decide(document, FailedCall("c1"), 3.0)
    assert decide(failed, intend("c2", asker=asker("r2")), 4.0)[1] == Send()
    assert document is not None
    undone = {**document, "state": "compensating", "compensation": {}}
    assert decide(undone, LookUp(True, asker("r2")), 3.0) == (undone, InProgress())


def test_a_key_that_another_effect_has():
    document, _ = after(intend(asker=asker(recipe=recipe()), about={"recipe": recipe()}))
    for mine, why in ((recipe(task="shop.post"), "task"), (recipe(typed="18"), "values")):
        for passed, same in ((FIRST, True), (SECOND, False)):
            event = LookUp(False, asker("r2", passed, recipe=mine, names=(mine["task"],)))
            assert decide(document, event, 3.0) == (document, Reused(recipe(), why, same))
    renamed = asker("r2", SECOND, recipe=recipe(task="shop.post"), names=("shop.post", "shop.send"))
    assert isinstance(decide(document, LookUp(False, renamed), 3.0)[1], Ask)
    outside = recipe(typed="18", in_key=False)
    assert isinstance(decide(document, LookUp(False, asker("r2", SECOND, recipe=outside)), 3.0)[1], Ask)
    failed = decide(document, FailedCall("c1"), 3.0)[0]
    other = asker(recipe=recipe(task="x"))
    reused = decide(failed, intend("c2", asker=other), 4.0)
    assert reused == (failed, Reused(recipe(), "task", True))


def test_a_request_by_another_name_of_the_effect_is_no_replay_in_the_same_pass():
    first = asker(alias="one")
    document, _ = after(intend(asker=first), Succeeded("c1", "r", None))
    for alias, repeated in (("one", AlreadyDone("r", None)), ("two", Repeated("r1", True))):
        again = asker("r2", replays=True, alias=alias)
        assert decide(document, LookUp(False, again), 3.0)[1] == repeated
    assert decide(document, LookUp(False, asker("r2", alias="one")), 3.0)[1] == Repeated("r1", False)
    assert decide(document, LookUp(False, asker("r2")), 3.0)[1] == Repeated("r1", True)


def test_a_call_that_was_never_made_is_a_failure_with_its_reason():
    document, decision = after(intend(), not_sent("c1", "the circuit is open"))
    error = {"code": "NOT_SENT", "message": "the circuit is open"}
    assert (document["state"], document["error"], decision) == ("failed", error, Recorded(True))


def test_a_person_settles_a_call_in_progress_only_by_force():
    document, _ = after(intend(asker=asker()))
    answer = {"answer": Done("r"), "by": "ann", "asker": asker()}
    assert decide(document, Verified("c1", **answer), 3.0) == (document, InProgress())
    settled, decision = decide(document, Verified("c1", forced=True, **answer), 3.0)
    assert (settled["state"], settled["verified_by"], decision) == ("done", "ann", AlreadyDone("r", None))
    doubted, _ = decide(document, Doubted("c1", ERROR), 3.0)
    assert decide(doubted, Verified("c1", forced=True, **answer), 4.0)[0]["state"] == "done"
    repeated = Verified("c9", NotDone(), asker=asker("r2"))
    assert decide(settled, repeated, 5.0)[1] == Repeated("r1")


def test_the_runs_that_intended_it():
    document = None
    for number in range(MOST_RUNS + 5):
        document, decision = decide(document, intend(f"c{number}", about={"task_run_id": f"r{number}"}), 1.0)
        assert decision == Send(known=number > 0)
        document, _ = decide(document, FailedCall(f"c{number}"), 2.0)
    assert document["runs"] == [f"r{number}" for number in range(4, MOST_RUNS + 5)]
    document, _ = decide(document, intend("d", about={"task_run_id": "r9"}), 3.0)
    assert document["runs"][-1] == "r9"
    assert document["runs"].count("r9") == 1


claims = st.sampled_from(["c1", "c2", "c3"])
askers = st.none() | st.builds(
    Asker, st.sampled_from(["r1", "r2"]), st.sampled_from([(), FIRST, SECOND]), replays=st.booleans()
)
results = st.integers() | st.none()
EVENTS = st.one_of(
    st.builds(LookUp, st.booleans(), askers),
    st.builds(Intend, st.just("o"), claims, st.booleans(), despite_doubt=st.booleans(), asker=askers),
    st.builds(Overdue, claims),
    st.builds(Succeeded, claims, results, st.none() | st.text(max_size=3)),
    st.builds(FailedCall, claims, st.none() | st.just(ERROR)),
    st.builds(Doubted, claims, st.none() | st.just(ERROR)),
    st.builds(Verified, claims, st.builds(Done, results) | st.just(NotDone()), asker=askers),
)


def without_asked(document):
    return {key: value for key, value in document.items() if key != "asked"}


@settings(deadline=None)
@given(st.lists(EVENTS, max_size=12))
def test_whatever_happens(events):
    document = None
    for now, event in enumerate(events):
        before = copy.deepcopy(document)
        again = document
        document, decision = decide(document, event, float(now))
        assert again == before, "no argument is changed"
        assert json.loads(json.dumps(document)) == document
        if before is None:
            continue
        if before["state"] == "done":
            assert without_asked(document) == without_asked(before), "done is final"
        if isinstance(event, Intend) and not event.despite_doubt and before["state"] == "unknown":
            assert not isinstance(decision, Send), "nobody sends from a doubt"
        if isinstance(event, Intend) and event.alive and before["state"] == "intended":
            assert not isinstance(decision, Send), "nobody sends beside a call that goes on"
        if isinstance(decision, Send):
            assert decision.known
        if isinstance(decision, Send) and isinstance(event, Intend):
            assert document["attempts"] == before["attempts"] + 1


# -- passes: which of them are one


@pytest.mark.parametrize(
    ("earlier", "now", "same"),
    [
        ([], [], False),
        ([("f", 1)], [], False),
        ([("f", 1)], [("f", 1)], True),
        ([("f", 1)], [("f", 2)], False),
        ([("f", 1)], [("g", 1)], False),
        ([("f", 1), ("t", 1)], [("f", 1), ("u", 1)], True),
        ([("f", 1), ("t", 1)], [("f", 1), ("t", 2)], False),
        ([("f", 1), ("sub", 1)], [("f", 1), ("sub", 2)], False),
        ([("f", 1), ("sub", 1)], [("f", 2), ("sub", 1)], False),
        ([("root", 1), ("sub", 1)], [("sub", 1)], True),
    ],
)
def test_what_one_pass_is(earlier, now, same):
    assert same_pass(earlier, tuple(now)) is same
    assert same_pass(json.loads(json.dumps(earlier)), tuple(now)) is same


PASSES = st.dictionaries(st.sampled_from("abc"), st.integers(1, 2), max_size=3).map(
    lambda it: tuple(it.items())
)


@settings(deadline=None)
@given(PASSES, PASSES)
def test_either_of_two_says_the_same(one, other):
    assert same_pass(one, other) == same_pass(other, one)


@settings(deadline=None)
@given(PASSES)
def test_a_pass_is_itself_and_no_longer_when_a_run_is_begun_anew(one):
    assert same_pass(one, one) is bool(one)
    for number, (run, count) in enumerate(one):
        assert not same_pass(one, (*one[:number], (run, count + 1), *one[number + 1 :]))
