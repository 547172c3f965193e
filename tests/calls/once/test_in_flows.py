"""Tools inside flows: the flow's retry is another pass, and its run is marked."""

from __future__ import annotations

from collections import Counter

import pytest
from prefect import flow, task

from prefect_resilience import Effect, NotRecorded, batch_status, once, resilient_task
from prefect_resilience.durable.effects.opening import batches

pytestmark = pytest.mark.api
SENT: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def bank():
    SENT.clear()


@once(scope="turn-{to}")
def pay(to: str) -> str:
    SENT[to] += 1
    return "paid"


@resilient_task(effect=Effect(key="mail:{to}"), retry=None)
def mail(to: str) -> str:
    SENT[f"mail to {to}"] += 1
    return "sent"


def test_a_retry_of_the_flow_replays_and_effects_of_the_flow_are_not_missed():
    answers = []

    @task
    def agent() -> None:
        answers.append([pay("bob"), pay("bob")])

    @flow(retries=1)
    def work() -> None:
        mail("bob")
        agent()
        if len(answers) == 1:
            raise ConnectionError("the model")

    work()
    (first, told), second = answers
    assert first == second[0] == "paid"
    assert told == second[1]
    assert told.startswith("Not repeated")
    assert SENT == {"bob": 1, "mail to bob": 1}
    assert [effect.state for effect in batch_status("turn-bob").effects] == ["done"]


def test_a_ledger_that_was_emptied_is_missed_by_the_run(empty):
    lost = []

    @flow(retries=1)
    def work() -> None:
        try:
            pay("ann")
        except NotRecorded as error:
            lost.append(str(error))
            return
        empty()
        batches.counts.clear()  # as in another process
        batches.open.clear()
        raise ConnectionError("the worker")

    work()
    assert "its run was marked" in lost[0]
    assert SENT == {"ann": 1}
