"""Pairs of effects through real runs; and equal effects: told in one pass, replayed in a later one."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from prefect import flow

import prefect_resilience
from prefect_resilience import ResilienceError, batch, resilient_task
from prefect_resilience.effects import Effect
from tests.durable.effects import pairs
from tests.durable.effects.pairs import IN_RUNS, SENT
from tests.durable.effects.test_pairs import decorated

pytestmark = pytest.mark.api


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    SENT.clear()


@pytest.fixture
def batch_id() -> str:
    """A name of this test's own: Prefect would know of what another test's store had."""
    return f"pairs-{uuid4().hex}"


@flow
def one_pass(batch_id: str, calls: list[Any]) -> list[Any]:
    """Each call once, in one batch; its result, or the error of what was refused."""
    with batch(batch_id):
        states = [task(*arguments, return_state=True) for task, arguments in calls]
    return [state.result(raise_on_failure=False) for state in states]


def all_sent_or_told(batch_id: str, make: Any) -> None:
    calls, told = decorated(make)
    assert told is None or "key=" in str(told)
    refused = [error for error in one_pass(batch_id, calls) if isinstance(error, Exception)]
    assert len(SENT) + len(refused) == len(calls), f"in silence: only {SENT}"
    assert all(isinstance(error, ResilienceError) and "key=" in str(error) for error in refused), refused
    sent = len(SENT)
    one_pass(batch_id, calls)
    assert len(SENT) == sent, "a later pass sent again"


@pytest.mark.parametrize("name", IN_RUNS)
def test_two_calls(name: str, batch_id: str) -> None:
    all_sent_or_told(batch_id, IN_RUNS[name])


def test_equal_effects_in_one_pass_are_told(batch_id: str) -> None:
    first, second = one_pass(batch_id, [(pairs.send, ("ada",)), (pairs.send, ("ada",))])
    assert first is None
    assert isinstance(second, prefect_resilience.RepeatedEffect)
    assert "key=" in str(second)
    assert 'repeat="replay"' in str(second)
    assert SENT == ["ada"]


def test_equal_effects_in_one_pass_are_replayed_where_the_author_says_so(batch_id: str) -> None:
    replaying = resilient_task(effect=Effect(key="mail:{value}", repeat="replay"), retry=None)(pairs.append)
    assert one_pass(batch_id, [(replaying, ("ada",)), (replaying, ("ada",))]) == [1, 1]
    assert SENT == ["ada"]


def test_equal_effects_in_a_later_pass_are_replayed() -> None:
    """The flow is retried: that is a pass of its own."""
    passes: list[int] = []

    @flow(retries=2)
    def mails() -> int:
        passes.append(len(passes) + 1)
        pairs.send("ada")
        pairs.send("bob")
        if len(passes) < 3:
            raise RuntimeError("after the mails")
        return len(passes)

    assert mails() == 3
    assert SENT == ["ada", "bob"]


def test_a_loop_in_a_flow_that_is_retried_is_told_in_each_pass() -> None:
    passes: list[int] = []

    @flow(retries=1)
    def mails() -> None:
        passes.append(len(passes) + 1)
        for _ in range(2):
            pairs.send("ada")

    with pytest.raises(prefect_resilience.RepeatedEffect):
        mails()
    assert (passes, SENT) == ([1, 2], ["ada"])
