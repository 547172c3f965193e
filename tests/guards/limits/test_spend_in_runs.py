"""A cap of a run: its tasks and subflows spend from one, and its event is sent once."""

from uuid import uuid4

import pytest
from prefect import flow, runtime, task

from prefect_resilience import SpendCap, SpendCapReachedError, resilient
from prefect_resilience.guards.circuits.registry import read_documents
from prefect_resilience.guards.limits.spend import PREFIX
from tests.guards.limits.test_spend import MILLION, MODEL, answer


@pytest.mark.usefixtures("prefect_api")
def test_a_run_is_the_root_flow_run(seen):
    name = f"cap-{uuid4().hex[:8]}"

    @resilient(limits=SpendCap(usd=3.5 * MILLION / 10, name=name), retry=None)
    def ask(model=MODEL, max_tokens=100_000):
        return answer(100_000)

    @flow
    def agent():
        ask()
        return task(ask)()

    @flow
    def director():
        ask()
        agent()
        for _ in range(2):
            with pytest.raises(SpendCapReachedError):
                task(ask)()
        return runtime.flow_run.id

    root = director()
    (spending,) = (one for one in read_documents(PREFIX, None)[0].values() if one["name"] == name)
    assert (spending["scope"], spending["reached"]) == (root, True)
    assert spending["spent"] == pytest.approx(3 * MILLION / 10)
    mine = seen.events("prefect-resilience.cap.reached", lambda event: event["payload"]["name"] == name)
    assert [event["payload"]["spent"] for event in mine] == [spending["spent"]]
