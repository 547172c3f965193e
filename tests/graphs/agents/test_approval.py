"""Approvals and typed answers: the flow run is paused, a person sends the form, and the flow goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from prefect import flow, get_client, task
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.settings import get_current_settings
from prefect.states import Scheduled
from pydantic import BaseModel

import prefect_resilience
from prefect_resilience import (
    ConfigurationError,
    NotAnswered,
    Person,
    Rejected,
    aapprove,
    action,
    approve,
    classify,
    run_plan,
)
from prefect_resilience.graphs.plans.actions import REGISTERED
from prefect_resilience.testing import answers
from tests.graphs.agents.answering import Answering, in_flow

FAST = {"poll_interval": 0.05, "timeout": 20}
YES, NO = {"approved": True}, {"approved": False, "comment": "the wrong month"}


class Machine(BaseModel):
    name: str
    cores: int = 4


def ask(mode):
    return aapprove if mode.isasync else approve


def deciding(mode, person, question, **options):
    """Run a flow that asks the question; returns its decision and its final state."""
    options = {**FAST, **options}
    state = in_flow(mode, lambda: person.begin() or ask(mode)(question, **options), return_state=True)
    person.end()
    return state.result(raise_on_failure=False), state


def task_runs(until, flow_run_id):
    """The task runs of a flow run by name, once all are known."""
    chosen = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))

    def found(client):
        runs = client.read_task_runs(flow_run_filter=chosen)
        return runs if runs and all(run.state and run.state.is_final() for run in runs) else None

    with get_client(sync_client=True) as client:
        return {run.name: run for run in until(lambda: found(client))}


@pytest.mark.api
def test_the_run_waits_for_the_decision(mode, until, run_log):
    person = Answering(until, {"approved": True, "comment": "go"})
    decision, state = deciding(mode, person, "Send {it} to 12 customers?")
    assert state.is_completed()
    assert decision
    assert (decision.approved, decision.comment) == (True, "go")
    assert abs(datetime.now(UTC) - decision.answered_at) < timedelta(minutes=1)
    assert person.questions == ["Send {it} to 12 customers?"]
    assert list(task_runs(until, person.paused[0].id)) == ["Send {it} to 12 customers?"]
    said = [record.getMessage() for record in run_log]
    assert "Waiting up to 20 s for an answer: Send {it} to 12 customers?" in said


@pytest.mark.api
def test_a_rejection_is_an_error_where_the_approval_is_required(mode, until):
    _, state = deciding(mode, Answering(until, NO), "Send it?", required=True)
    error = state.result(raise_on_failure=False)
    assert isinstance(error, Rejected)
    assert str(error) == "'Send it?' was rejected: the wrong month"
    assert error.approval.comment == "the wrong month"
    assert not classify(error).retryable


@pytest.mark.api
def test_without_an_answer_in_time_the_run_is_no_longer_paused(mode):
    state = in_flow(mode, lambda: ask(mode)("Send it?", timeout=0.2, poll_interval=0.05), return_state=True)
    error = state.result(raise_on_failure=False)
    assert isinstance(error, NotAnswered)
    assert (state.name, str(error)) == ("Failed", "there was no answer to 'Send it?' within 0.2 s")
    assert not classify(error).retryable


def test_outside_of_a_flow_run_it_is_a_mistake(mode):
    with pytest.raises(ConfigurationError, match=r"no flow run that could wait .* 'Send it\?'"):
        asyncio.run(aapprove("Send it?")) if mode.isasync else approve("Send it?")
    with pytest.raises(ConfigurationError, match="inside of a @flow"):
        asyncio.run(Person("p").aask("Who?")) if mode.isasync else Person("p").ask("Who?")


@pytest.mark.api
@pytest.mark.parametrize(
    ("wanted", "sent", "value"),
    [
        (Machine, {"name": "db-8"}, Machine(name="db-8")),
        (int, {"value": 3}, 3),
    ],
)
def test_a_person_gives_a_typed_answer(mode, until, wanted, sent, value):
    person, operator = Answering(until, sent), Person("operator", answer=wanted, **FAST)
    which = operator.aask if mode.isasync else operator.ask
    given = in_flow(mode, lambda: person.begin() or which("Which one?"))
    person.end()
    assert given == value


@pytest.mark.api
def test_the_same_question_twice_is_asked_twice_but_not_after_a_retry(until):
    person = Answering(until, YES, NO)
    passes = []

    @flow(retries=3)  # Prefect counts each answer as a run
    def deciding():
        person.begin()
        passes.append([approve("Send one?", **FAST).approved for _ in range(2)])
        if len(passes) == 1:
            raise ConnectionError("the process ends here")

    deciding()
    person.end()
    assert passes == [[True, False]] * 2
    assert len(person.paused) == 2


KILLED = """
import os
import signal
from pathlib import Path

from prefect import flow

from prefect_resilience import approve
from prefect_resilience.graphs.agents.edge.asking import Question

given = Question._given


async def killed_by_the_answer(self, client, run_id):
    found = await given(self, client, run_id)
    if found is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return found


if "KILLED" in os.environ:
    Question._given = killed_by_the_answer


@flow
def deciding():
    Path("answer.txt").write_text(approve("Send it?", timeout=20, poll_interval=0.05).comment)
"""


@pytest.mark.api
@pytest.mark.slow
def test_an_answer_is_used_after_the_process_was_killed_that_waited_for_it(until, tmp_path):
    (tmp_path / "killed.py").write_text(KILLED)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("COV_")},
        "PREFECT_API_URL": str(get_current_settings().api.url),
        "PREFECT__FLOW_ENTRYPOINT": f"{tmp_path}/killed.py:deciding",
        "PYTHONPATH": str(Path(prefect_resilience.__file__).parents[1]),
    }

    def run(**more):
        env = {**environment, "PREFECT__FLOW_RUN_ID": str(run_id), **more}
        command = [sys.executable, "-m", "prefect.engine"]
        return subprocess.run(command, cwd=tmp_path, env=env, check=False).returncode

    with get_client(sync_client=True) as client:
        run_id = client.create_flow_run(flow(name="deciding")(lambda: None)).id
        person = Answering(until, {"approved": True, "comment": "go"})
        person.begin(run_id)
        assert run(KILLED="1") == -signal.SIGKILL
        person.end()
        client.set_flow_run_state(run_id, Scheduled(), force=True)
        assert run() == 0
        assert client.read_flow_run(run_id).state.is_completed()
    assert (tmp_path / "answer.txt").read_text() == "go"


@pytest.mark.api
def test_two_questions_at_the_same_time_wait_for_each_other(until):
    @task
    def part(name, sent):
        return name, sent, approve(f"Send {name}?", **FAST).comment

    @flow
    def deciding():
        person.begin()
        return [one.result() for one in [part.submit("a", 1), part.submit("b", 2)]]

    person = Answering(until, {"approved": True, "comment": "1"}, {"approved": True, "comment": "2"})
    given = {f"Send {name}?": comment for name, _, comment in deciding()}
    person.end()
    assert given == dict(zip(person.questions, ["1", "2"], strict=True))


@pytest.mark.api
def test_an_api_that_is_unavailable_for_a_moment_does_not_end_the_wait(mode, until, monkeypatch):
    person, read = Answering(until, YES), PrefectClient.read_flow_run
    failures = iter([httpx.ConnectError("down")] * 3)

    async def read_flow_run(self, *args):
        if person.paused and (failure := next(failures, None)):
            raise failure
        return await read(self, *args)

    monkeypatch.setattr(PrefectClient, "read_flow_run", read_flow_run)
    decision, _ = deciding(mode, person, "Send it?")
    assert decision
    assert next(failures, None) is None


@pytest.mark.api
def test_people_are_notified_once_and_a_broken_notification_does_not_end_the_wait(mode, until):
    notices = []

    def notify(notice):
        notices.append(notice)
        raise ConnectionError("no mail today")

    person = Answering(until, YES)
    decision, _ = deciding(mode, person, "Send it?", notify=notify, name="finance")
    assert decision
    [notice] = notices
    assert notice.subject == "finance: Send it?"
    assert str(person.paused[0].id) in notice.url
    assert notice.body.startswith("Send it?")


@pytest.mark.api
def test_prepared_answers_take_the_place_of_people(mode):
    @flow
    def asking():
        return (
            approve("One?").approved,
            approve("Two?").comment,
            Person("operator", answer=int).ask("How many?"),
        )

    @flow
    async def aasking():
        return (
            (await aapprove("One?")).approved,
            (await aapprove("Two?")).comment,
            await Person("operator", answer=int).aask("How many?"),
        )

    def run():
        return asyncio.run(aasking()) if mode.isasync else asking()

    with answers(True, NO, 7):
        assert run() == (True, "the wrong month", 7)
    with answers(True, None), pytest.raises(NotAnswered, match="'Two\\?' within 3600 s"):
        run()
    with answers(True), pytest.raises(ConfigurationError, match="no answer left for 'Two\\?'"):
        run()


@pytest.mark.api
def test_it_is_an_action_of_plans(monkeypatch):
    monkeypatch.setattr(REGISTERED, "_known", {})
    action("approve")(approve)
    action("send")(lambda: "sent")
    approved = {"type": "comparison", "operator": "equals", "path": "approved", "value": True}
    plan = {
        "tasks": [
            {
                "id": "ask",
                "type": "approve",
                "input": {"question": "Send it?"},
                "transitions": [{"condition": approved, "to": "send"}],
            },
            {"id": "send", "type": "send"},
        ]
    }
    for answer, status in ((True, "succeeded"), (False, "skipped")):
        with answers(answer):
            assert run_plan(plan).nodes["send"].status == status


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"timeout": 0}, "seconds above 0"),
        ({"timeout": "soon"}, "seconds above 0"),
        ({"answer": str}, "subclass of Approval"),
        ({"notify": 7}, "not 7"),
        ({"name": " "}, "needs a name"),
    ],
)
def test_mistakes_in_options(options, says):
    with pytest.raises(ConfigurationError, match=says):
        approve("Send it?", **options)
