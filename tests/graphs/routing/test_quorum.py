"""Votes: who agrees, when it is enough, and what is left when it is not."""

from __future__ import annotations

import asyncio
import pickle
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefect import task
from prefect.client.orchestration import get_client

from prefect_resilience import ErrorContext, NoQuorum, on_error, quorum
from tests.contexts import context_of
from tests.graphs.routing.scenes import drawn, in_flow


def vote(mode, made, *args):
    return asyncio.run(made.acall(*args)) if mode.isasync else made(*args)


def test_enough_equal_answers_win(mode):
    def first(x):
        return {"answer": x}

    def second(x):
        return {"answer": x + 1}

    def third(x):
        return {"answer": x + 1}

    made = quorum(*(mode.function(each) for each in (first, second, third)))
    assert vote(mode, made, 1) == {"answer": 2}


@pytest.mark.parametrize("pair", [(1, True), (1, "1"), (None, "null"), (0.1 + 0.2, 0.3), ([1], [1, 1])])
def test_answers_are_compared_strictly(pair):
    with pytest.raises(NoQuorum):
        quorum(lambda: pair[0], lambda: pair[1])()


def test_the_key_says_what_must_agree():
    made = quorum(lambda: {"a": 1, "by": "x"}, lambda: {"a": 1, "by": "y"}, key=lambda answer: answer["a"])
    assert made()["a"] == 1
    with pytest.raises(NoQuorum, match="KeyError"):
        quorum(lambda: {}, lambda: {}, key=lambda answer: answer["a"])()


def test_it_fails_as_soon_as_it_is_out_of_reach_with_every_vote_and_error(mode):
    gate = threading.Event()

    def slow():
        assert gate.wait(30)
        return "slow"

    def one():
        return "one"

    def fails():
        raise ConnectionRefusedError("no")

    made = quorum(*(mode.function(each) for each in (one, fails)), slow, need=3)
    with pytest.raises(NoQuorum) as caught:
        vote(mode, made)
    gate.set()
    error = caught.value
    assert error.errors == {"fails": "NETWORK_ERROR network: no"}
    assert error.need == 3
    context = context_of(error)
    assert (context.category, context.cause.category) == ("subtask", "network")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.votes, again.errors) == (str(error), error.votes, error.errors)
    assert context_of(again).cause.category == "network"


def test_the_message_lists_the_votes():
    with pytest.raises(NoQuorum) as caught:
        quorum(lambda: 1, lambda: 1, lambda: [2], need=3)()
    assert "fewer than 3 handlers gave the same answer" in str(caught.value)
    assert {frozenset(names) for names in caught.value.votes.values()} == {frozenset(["<lambda>"])}


@pytest.mark.api
def test_the_slow_are_left_to_finish(mode, until):
    """The answer is there while the third handler still runs, whose task run finishes after the flow."""
    gate, finished = threading.Event(), threading.Event()
    ids = []

    def slow(error: ErrorContext):
        from prefect.runtime import task_run

        ids.append(task_run.get_id())
        assert gate.wait(60)
        finished.set()
        return "slow"

    def up():
        raise TimeoutError("slow")

    def body():
        return on_error(task(up).submit(), quorum(lambda: "fast", slow, lambda: "fast")).result()

    assert in_flow(mode, body) == "fast"
    assert not finished.is_set()
    gate.set()
    assert finished.wait(30)

    def done():
        asked = {"task_runs": {"id": {"any_": ids}}}
        with get_client(sync_client=True) as client:
            found = client.request("POST", "/task_runs/filter", json=asked).json()
        return [run for run in found if run["state_name"] == "Completed"]

    assert until(done)


@pytest.mark.smoke
@pytest.mark.requirement("000.25")
@pytest.mark.api
def test_as_error_handler_every_voter_is_a_task_run(mode):
    def first(drug, error: ErrorContext):
        return f"{drug} {error.code}"

    def second(drug):
        return f"{drug} TIMEOUT"

    def third(drug):
        raise RuntimeError("third is down")

    def up():
        raise TimeoutError("slow")

    asked = quorum(mode.function(first), mode.function(second), mode.function(third))

    def body():
        return on_error(task(up).submit(), asked, "aspirin").result()

    node = "on_error: quorum(first, second, third)"
    value, picture = drawn(body, ["up", node, "first", "second", "third"], mode)
    assert value == "aspirin TIMEOUT"
    assert picture[node].state == "Handled"
    assert picture["first"].inside == picture["third"].inside == [node]
    assert picture["second"].behind == ["up"]
    assert picture["third"].state == "Failed"


@pytest.mark.api
def test_a_voter_that_fails_rolls_nothing_back(mode):
    """One vote is done, another fails, only then there is a quorum: the vote stands, and so does the node."""
    voted, failed = threading.Event(), threading.Event()
    undone = []

    def first():
        assert failed.wait(30)
        return "yes"

    def second():
        return "yes"

    def third():
        assert voted.wait(30)
        raise RuntimeError("third is down")

    def body():
        votes = task(mode.function(second), name="second", on_completion=[lambda *_: voted.set()])
        votes.on_rollback(lambda _: undone.append("second"))
        fails = task(mode.function(third), name="third", on_failure=[lambda *_: failed.set()])
        return on_error(ValueError("x"), quorum(mode.function(first), votes, fails)).result()

    node = "on_error: quorum(first, second, third)"
    value, picture = drawn(body, [node, "first", "second", "third"], mode)
    assert value == "yes"
    assert (picture[node].state, picture["second"].state) == ("Handled", "Completed")
    assert undone == []


@pytest.mark.api
def test_without_a_quorum_the_handler_has_failed(mode):
    def up():
        raise TimeoutError("slow")

    def body():
        node = on_error(task(up).submit(), quorum(lambda: 1, lambda: 2, lambda: 1 / 0))
        with pytest.raises(NoQuorum) as caught:
            node.result()
        return caught.value

    error = in_flow(mode, body)
    assert "failed while it handled the error: timeout: slow" in error.__notes__[0]
    context = context_of(error)
    assert (context.cause.code, context.cause.cause.code) == ("ZeroDivisionError", "TIMEOUT")


@pytest.mark.api
def test_blocked_voters_crashed_voters_and_votes_among_votes(mode):
    def exits():
        raise SystemExit(3)

    def body():
        blocked = task(lambda x: x, name="blocked")
        bad = task(mode.function(lambda: 1 / 0), name="bad").submit()
        inner = quorum(lambda: "a", lambda: "a")
        agreed = on_error(ValueError("x"), quorum(inner, lambda: "a", exits)).result()
        node = on_error(ValueError("x"), quorum(blocked, task(lambda x: x), need=1), bad)
        with pytest.raises(NoQuorum) as caught:
            node.result()
        return agreed, sorted(caught.value.errors)

    assert in_flow(mode, body) == ("a", ["<lambda>", "blocked"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=6), st.data())
def test_who_wins_has_enough_votes(said, data):
    """An answer with enough votes is given, whichever comes first; without one there is none."""
    need = data.draw(st.integers(1, len(said)))

    def handler(answer):
        def say():
            if answer is None:
                raise ValueError("no answer")
            return answer

        return say

    made = quorum(*(handler(answer) for answer in said), need=need)
    enough = {answer for answer in said if answer is not None and said.count(answer) >= need}
    if enough:
        assert made() in enough
    else:
        with pytest.raises(NoQuorum):
            made()
