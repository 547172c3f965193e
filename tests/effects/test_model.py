"""One effect, one event at a time."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.effects.model import (
    Ask,
    Doubted,
    Failed,
    Intend,
    Look,
    Recorded,
    Replay,
    Send,
    Succeeded,
    Verified,
    Wait,
    decide,
)
from prefect_resilience.effects.policy import Done, NotDone

ERROR = {"code": "TIMEOUT", "message": "read timeout"}


def after(*events, document=None):
    decision = None
    for now, event in enumerate(events, start=1):
        document, decision = decide(document, event, float(now))
    return document, decision


def intend(claim="c1", alive=False, **more):
    return Intend("owner", claim, alive, **more)


def test_the_life_of_an_effect():
    document, decision = after(Look(False))
    assert (document, decision) == (None, Send())
    document, decision = after(intend(about={"key": "k", "task": "send"}))
    assert decision == Send()
    assert (document["state"], document["attempts"], document["key"]) == ("intended", 1, "k")
    document, decision = after(intend(), Succeeded("c1", {"as": "json", "value": 1}, "m1"))
    assert decision == Recorded(True)
    assert (document["state"], document["external_id"], document["settled_at"]) == ("done", "m1", 2.0)
    for event in (Look(False), intend("c2")):
        assert decide(document, event, 3.0) == (document, Replay({"as": "json", "value": 1}, "m1"))


def test_somebody_else_is_at_it():
    assert after(intend(), Look(True))[1] == Wait()
    assert after(intend(), intend("c2", alive=True))[1] == Wait()


@pytest.mark.parametrize("event", [Look(False), intend("c2")])
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
    document, decision = after(intend(), Failed("c1", ERROR), intend("c2"))
    assert (decision, document["attempts"], document["error"]) == (Send(), 2, None)


def test_late_words_of_an_owner_that_was_given_up():
    taken = after(intend(), Look(False), Succeeded("c1", 1))
    assert (taken[0]["state"], taken[1]) == ("done", Recorded(True))
    taken = after(intend(), Look(False), Failed("c1", ERROR))
    assert (taken[0]["state"], taken[1]) == ("failed", Recorded(True))
    believed = after(intend(), Look(False), Verified("c1", NotDone()), Succeeded("c1", 1))
    assert (believed[0]["state"], believed[1]) == ("done", Recorded(True))
    for word in (Doubted("c1", ERROR), Failed("c1", ERROR)):
        kept = after(intend(), Look(False), Verified("c1", NotDone()), word)
        assert (kept[0]["state"], kept[1]) == ("failed", Recorded(isinstance(word, Failed)))
    done = after(intend(), Succeeded("c1", 1), Succeeded("c1", 2))
    assert (done[0]["result"], done[1]) == (1, Recorded(True))
    assert after(intend(), Succeeded("c1", 1), Doubted("c1"))[1] == Recorded(False)


def test_words_of_a_claim_that_is_not_the_last_one():
    again = (intend(), Failed("c1"), intend("c2"))
    for word in (Succeeded("c1", 1), Doubted("c1"), Failed("c1")):
        document, decision = after(*again, word)
        assert (document["claim"], document["state"], decision) == ("c2", "intended", Recorded(False))
    assert decide(None, Failed("c1"), 1.0) == (None, Recorded(False))


def test_answers():
    doubt = (intend(), Doubted("c1", ERROR))
    document, decision = after(*doubt, Verified("c1", Done({"as": "json", "value": 7}, "m7"), by="ops"))
    assert decision == Replay({"as": "json", "value": 7}, "m7")
    assert (document["verified_by"], document["settled_at"]) == ("ops", 3.0)
    document, decision = after(*doubt, Verified("c1", NotDone()))
    assert (document["state"], decision) == ("failed", Send())


def test_answers_that_come_too_late():
    assert decide(None, Verified("c1", NotDone()), 1.0) == (None, Send())
    doubt = (intend(), Doubted("c1"))
    assert after(*doubt, Succeeded("c1", 1), Verified("c1", NotDone()))[1] == Replay(1, None)
    other = (*doubt, Verified("c1", NotDone()), intend("c2"))
    assert after(*other, Verified("c1", NotDone()))[1] == Wait()
    assert after(*other, Doubted("c2"), Verified("c1", NotDone()))[1] == Ask("c2", None)


claims = st.sampled_from(["c1", "c2", "c3"])
results = st.integers() | st.none()
EVENTS = st.one_of(
    st.builds(Look, st.booleans()),
    st.builds(Intend, st.just("o"), claims, st.booleans(), despite_doubt=st.booleans()),
    st.builds(Succeeded, claims, results, st.none() | st.text(max_size=3)),
    st.builds(Failed, claims, st.none() | st.just(ERROR)),
    st.builds(Doubted, claims, st.none() | st.just(ERROR)),
    st.builds(Verified, claims, st.builds(Done, results) | st.just(NotDone())),
)


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
            assert document == before, "done is final"
        if isinstance(event, Intend) and not event.despite_doubt and before["state"] == "unknown":
            assert not isinstance(decision, Send), "nobody sends from a doubt"
        if isinstance(decision, Send) and isinstance(event, Intend):
            assert document["attempts"] == before["attempts"] + 1
