"""A person as the last step: the flow run waits for the form, or the chain says that somebody is needed."""

from __future__ import annotations

import asyncio

import pytest
from prefect import flow
from pydantic import BaseModel

from prefect_resilience import AgentChain, Person, PersonNeeded, classify, resilient_task
from tests.graphs.agents.answering import Answering, in_flow

pytestmark = pytest.mark.api


class Spec(BaseModel):
    text: str
    floors: int = 1


def refuses(spec):
    raise ValueError(f"{spec} is too hard")


@pytest.mark.parametrize(
    ("wanted", "answer", "value"),
    [(Spec, {"text": "by hand"}, Spec(text="by hand")), (str, {"value": "by hand"}, "by hand")],
)
def test_the_run_waits_for_a_person_s_answer(mode, until, seen, wanted, answer, value):
    told = []
    person = Person(
        "manual-mode",
        answer=wanted,
        timeout=40,
        question="Please build {spec}.",
        poll_interval=0.1,
        notify=told.append,
        degraded=True,
    )
    agents = {
        "builder": mode.task(refuses, retry=None),
        "builder-simple": mode.function(refuses),
        "manual-mode": person,
    }
    chain = AgentChain("builder", ["builder-simple", "manual-mode"], agents=agents)
    helper = Answering(until, answer)

    result = in_flow(mode, lambda: helper.begin() or chain("a hut"))
    helper.end()
    assert (result.value, result.answered_by, result.degraded) == (value, "manual-mode", True)
    assert list(result.errors) == ["builder", "builder-simple"]
    [description] = helper.questions
    assert "Please build a hut." in description
    assert "- builder-simple: ValueError unexpected: a hut is too hard" in description
    [notice] = told
    assert notice.subject == "builder: manual-mode is asked"
    assert str(helper.paused[0].id) in notice.url
    assert seen.task_run(result.errors["builder"].task_run_id).state.name == "Degraded"


def test_who_does_not_answer_in_time_is_still_needed(mode):
    chain = AgentChain(
        "builder",
        [Person("manual-mode", timeout=0.2, poll_interval=0.1)],
        agents={"builder": mode.task(refuses, retry=None)},
    )

    error = in_flow(mode, lambda: chain("a hut"), return_state=True).result(raise_on_failure=False)
    assert isinstance(error, PersonNeeded)
    assert error.why == "there was no answer within 0.2 s"
    assert (error.chain, error.person) == ("builder", "manual-mode")
    assert isinstance(error.__cause__, ValueError)
    assert classify(error).retryable is False


def test_where_no_flow_can_wait_people_are_told_and_the_chain_ends(mode):
    told = []
    chain = AgentChain(
        "builder",
        [Person("manual-mode", notify=told.append)],
        agents={"builder": mode.task(refuses, retry=None)},
    )
    with pytest.raises(PersonNeeded, match="no flow run that could wait") as caught:
        asyncio.run(chain.acall("a hut")) if mode.isasync else chain.call("a hut")
    assert isinstance(caught.value.__cause__, ValueError)
    assert told[0].errors["builder"].message == "a hut is too hard"
    assert told[0].url is None


def test_an_outer_task_does_not_try_a_chain_again_that_waits_for_a_person(mode):
    calls = []

    def build(spec):
        calls.append(spec)
        raise ConnectionError("down")

    chain = AgentChain(
        "builder",
        [Person("manual-mode", timeout=0.1, poll_interval=0.1)],
        agents={"builder": resilient_task(retry=None)(build)},
    )

    @resilient_task
    def outer(spec):
        return chain.call(spec)

    @flow
    def building():
        with pytest.raises(PersonNeeded):
            outer("a hut")

    building()
    assert calls == ["a hut"]
