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


@pytest.mark.requirement("004.02")
def test_the_life_of_an_effect():
    document, decision = after(LookUp(False))
    assert (document, decision) == (None, Send(known=False))
    document, decision = after(intend(about={"key": "k", "task": "send"}))
    assert decision == Send(known=False)
    assert (document["state"], document["attempts"], document["key"]) == ("intended", 1, "k")
    document, decision = after(intend(), Succeeded("c1", {"as": "json", "value": 1}, "m1"))
    assert decision == Recorded(True)
    assert (document["state"], document["external_id"], document["settled_at"]) == ("done", "m1", 2.0)
    for event in (LookUp(False), intend("c2")):
        assert decide(document, event, 3.0) == (document, AlreadyDone({"as": "json", "value": 1}, "m1"))


def test_a_call_that_was_never_made():
    assert not_sent("c1", "cancelled") == FailedCall("c1", {"code": "NOT_SENT", "message": "cancelled"})


def test_external_effects_are_counted_once_and_compensations_never():
    counted = {"external": True, "idempotent": False}
    for kind, expected in counted.items():
        document, _ = after(intend(kind=kind))
        assert document["counted"] is expected
    document, _ = after(intend(kind="external", about={"compensates": "pay:1"}))
    assert document["counted"] is False
    document, _ = after(intend(kind="external"), FailedCall("c1", ERROR), intend("c2", kind="idempotent"))
    assert document["counted"] is True


def test_a_second_look_of_the_same_asker_changes_nothing():
    asker = Asker("run", (("flow", 1),))
    document, _ = after(intend(), Succeeded("c1", None, None), LookUp(False, asker=asker))
    assert decide(document, LookUp(False, asker=asker), 9.0)[0] is document


def test_somebody_else_is_at_it():
    assert after(intend(), LookUp(True))[1] == InProgress()
    assert after(intend(), intend("c2", alive=True))[1] == InProgress()


@pytest.mark.parametrize("event", [LookUp(False), intend("c2")])
def test_an_owner_that_died_leaves_a_doubt(event):
    document, decision = after(intend(), event)
    assert document["state"] == "unknown"
    assert isinstance(decision, Ask)
    assert decision.claim == "c1"
    assert decision.error["code"] == "OWNER_DIED"


def test_what_may_be_done_again_despite_a_doubt():
    document, decision = after(intend(), Doubted("c1", ERROR), intend("c2", despite_doubt=True))
    assert decision == Send()
    assert (document["state"], document["attempts"], document["first_at"]) == ("intended", 2, 1.0)
    assert after(intend(), Doubted("c1", ERROR), intend("c2"))[1] == Ask("c1", ERROR)


def test_a_failure_is_tried_again():
    document, decision = after(intend(), FailedCall("c1", ERROR), intend("c2"))
    assert (decision, document["attempts"], document["error"]) == (Send(), 2, None)


def test_late_words_of_an_owner_that_was_given_up():
    taken = after(intend(), LookUp(False), Succeeded("c1", 1))
    assert (taken[0]["state"], taken[1]) == ("done", Recorded(True))
    taken = after(intend(), LookUp(False), FailedCall("c1", ERROR))
    assert (taken[0]["state"], taken[1]) == ("failed", Recorded(True))
    believed = after(intend(), LookUp(False), Verified("c1", NotDone()), Succeeded("c1", 1))
    assert (believed[0]["state"], believed[1]) == ("done", Recorded(True))
    for word in (Doubted("c1", ERROR), FailedCall("c1", ERROR)):
        kept = after(intend(), LookUp(False), Verified("c1", NotDone()), word)
        assert (kept[0]["state"], kept[1]) == ("failed", Recorded(isinstance(word, FailedCall)))
    done = after(intend(), Succeeded("c1", 1), Succeeded("c1", 2))
    assert (done[0]["result"], done[1]) == (1, Recorded(True))
    assert after(intend(), Succeeded("c1", 1), Doubted("c1"))[1] == Recorded(False)


def test_words_of_a_claim_that_is_not_the_last_one():
    again = (intend(), FailedCall("c1"), intend("c2"))
    for word in (Succeeded("c1", 1), Doubted("c1"), FailedCall("c1")):
        document, decision = after(*again, word)
        assert (document["claim"], document["state"], decision) == ("c2", "intended", Recorded(False))
    assert decide(None, FailedCall("c1"), 1.0) == (None, Recorded(False))


def test_answers():
    doubt = (intend(), Doubted("c1", ERROR))
    document, decision = after(*doubt, Verified("c1", Done({"as": "json", "value": 7}, "m7"), by="ops"))
    assert decision == AlreadyDone({"as": "json", "value": 7}, "m7")
    assert (document["verified_by"], document["settled_at"]) == ("ops", 3.0)
    document, decision = after(*doubt, Verified("c1", NotDone()))
    assert (document["state"], decision) == ("failed", Send())


def test_answers_that_come_too_late():
    assert decide(None, Verified("c1", NotDone()), 1.0) == (None, Send(known=False))
    doubt = (intend(), Doubted("c1"))
    assert after(*doubt, Succeeded("c1", 1), Verified("c1", NotDone()))[1] == AlreadyDone(1, None)
    other = (*doubt, Verified("c1", NotDone()), intend("c2"))
    assert after(*other, Verified("c1", NotDone()))[1] == InProgress()
    assert after(*other, Doubted("c2"), Verified("c1", NotDone()))[1] == Ask("c2", None)


FIRST, SECOND = (("flow", 1),), (("flow", 2),)


def recipe(task="shop.send", typed="17", in_key=True):
    arg = {"type": "int", "typed": typed, "loose": "17", "key": in_key}
    return {"task": task, "template": "k:{n}", "names": ["n"], "args": {"n": arg}}


def asker(run="r1", passed=FIRST, **more):
    return Asker(run, passed, **more)


def test_one_pass_asks_once():
    done = after(intend(asker=asker()), Succeeded("c1", 1))[0]
    assert done["asked"] == {"run": "r1", "pass": [["flow", 1]]}
    for event in (LookUp(False, asker("r2")), intend("c2", asker=asker("r2"))):
        assert decide(done, event, 3.0) == (done, Repeated("r1"))
    assert decide(done, LookUp(False, asker("r1")), 3.0) == (done, AlreadyDone(1, None)), "its own retry"
    assert decide(done, LookUp(False, asker("r2", replays=True)), 3.0)[1] == AlreadyDone(1, None)
    assert decide(done, LookUp(False), 3.0) == (done, AlreadyDone(1, None)), "an operator asks in no pass"


def test_a_later_pass_replays_once_too():
    done = after(intend(asker=asker()), Succeeded("c1", 1))[0]
    replayed, decision = decide(done, LookUp(False, asker("r2", SECOND)), 3.0)
    assert decision == AlreadyDone(1, None)
    assert replayed == {**done, "asked": {"run": "r2", "pass": [["flow", 2]]}}
    stored = json.loads(json.dumps(replayed))
    assert decide(stored, LookUp(False, asker("r3", SECOND)), 4.0)[1] == Repeated("r2")


def test_a_second_call_of_one_pass_while_the_first_goes_on():
    document, _ = after(intend(asker=asker()))
    assert decide(document, LookUp(True, asker("r2")), 3.0) == (document, Repeated("r1"))
    assert decide(document, LookUp(True, asker("r2", replays=True)), 3.0) == (document, InProgress())
    assert decide(document, LookUp(True, asker("r2", SECOND)), 3.0) == (document, InProgress())
    assert isinstance(decide(document, LookUp(False, asker("r2")), 3.0)[1], Ask), "the first one died"
    failed, _ = decide(document, FailedCall("c1"), 3.0)
    assert decide(failed, intend("c2", asker=asker("r2")), 4.0)[1] == Send()
    undone = {**document, "state": "compensating", "compensation": {}}
    assert decide(undone, LookUp(True, asker("r2")), 3.0) == (undone, InProgress())


def test_a_document_from_before_there_were_passes():
    done = {key: value for key, value in after(intend(), Succeeded("c1", 1))[0].items() if key != "asked"}
    assert decide(done, LookUp(False, asker("r2")), 3.0)[1] == AlreadyDone(1, None)


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


def test_an_answer_to_a_pass_that_has_asked_before():
    doubt = (intend(asker=asker()), Doubted("c1"))
    assert after(*doubt, Verified("c1", Done(1), asker=asker("r2")))[1] == Repeated("r1")
    assert after(*doubt, Verified("c1", Done(1), asker=asker("r1")))[1] == AlreadyDone(1, None)
    assert after(*doubt, Verified("c1", Done(1), asker=asker("r2", SECOND)))[1] == AlreadyDone(1, None)


def test_a_call_that_outlives_its_attempt():
    document, decision = after(intend(), Overdue("c1"))
    assert decision == Recorded(True)
    assert (document["state"], document["overdue_at"]) == ("intended", 2.0)
    assert decide(document, LookUp(True), 3.0) == (document, InProgress(2.0))
    assert decide(document, intend("c2", alive=True, despite_doubt=True), 3.0) == (document, InProgress(2.0))
    assert decide(document, Verified("c1", NotDone()), 3.0) == (document, InProgress(2.0)), "nobody verifies"
    assert isinstance(decide(document, LookUp(False), 3.0)[1], Ask), "its process died"
    assert decide(document, Succeeded("c1", 1), 3.0)[0]["state"] == "done"
    assert decide(document, Doubted("c1"), 3.0)[0]["state"] == "unknown"
    again = after(FailedCall("c1"), intend("c2"), document=document)[0]
    assert again["overdue_at"] is None


def test_a_call_that_is_not_overdue():
    assert decide(None, Overdue("c1"), 1.0) == (None, Recorded(False))
    done = after(intend(), Succeeded("c1", 1))[0]
    assert decide(done, Overdue("c1"), 3.0) == (done, Recorded(False))
    other = after(intend(), FailedCall("c1"), intend("c2"))[0]
    assert decide(other, Overdue("c1"), 4.0) == (other, Recorded(False))


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
