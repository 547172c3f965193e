"""A flow run that is run again: one letter for one call, settled when the call succeeds in a later pass."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.flow_engine import run_flow
from prefect.states import AwaitingRetry
from prefect.task_engine import run_task

from prefect_resilience import batch, dead_letters
from prefect_resilience.durable.batches.edge import tags
from prefect_resilience.durable.letters.edge import known
from tests.durable.letters import shop
from tests.durable.letters.receiver import Receiver

pytestmark = pytest.mark.api


def again(run_flow_id: Any, subject: Any, parameters: Any = None) -> Any:
    """What the Retry button and a worker do: the same flow run, in an engine of its own."""
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run_flow_id, AwaitingRetry(), force=True)
        run = client.read_flow_run(run_flow_id)
    ended = run_flow(subject, flow_run=run, parameters=parameters or {}, return_type="state")
    return asyncio.run(ended) if asyncio.iscoroutine(ended) else ended


def story(letter: dead_letters.DeadLetter) -> list[str]:
    return [one.outcome for one in letter.passes]


@pytest.fixture
def broken(receiver: Receiver) -> Receiver:
    receiver.broken = True
    return receiver


def test_a_flow_that_succeeds_at_its_second_pass_leaves_no_waiting_letter(broken: Receiver) -> None:
    @flow(retries=1)
    def retried() -> None:
        state = shop.send("once", return_state=True)
        broken.broken = False
        state.result()

    retried()
    (letter,) = dead_letters.list()
    assert (letter.status, story(letter)) == ("settled", ["failed", "succeeded"])
    assert dead_letters.list(status="waiting") == []
    assert dead_letters.replay().outcomes == ()
    (outcome,) = dead_letters.replay(letter.id).outcomes
    assert (outcome.result, outcome.reason) == ("skipped", "settled")
    assert broken.got == ["once"]


def test_equal_calls_of_one_pass_are_different_ones(broken: Receiver) -> None:
    """Of four equal calls each fails, in a map and in a loop; later two of them succeed."""
    passes: list[int] = []

    @flow(retries=1)
    def retried() -> None:
        passes.append(1)
        states = shop.send.map(["same", "same"], return_state=True)
        if len(passes) > 1:
            broken.broken = False
        states += [shop.send("same", return_state=True) for _ in range(2)]
        for state in states:
            state.result()

    retried(return_state=True)
    letters = dead_letters.list()
    assert sorted(letter.status for letter in letters) == ["settled", "settled", "waiting", "waiting"]
    assert sorted(letter.failures for letter in letters) == [1, 1, 2, 2]
    assert broken.got == ["same", "same"]


def test_a_first_pass_asks_no_store_and_a_later_one_asks_once(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    given = known.queue_of
    monkeypatch.setattr(known, "queue_of", lambda: asked.append(1) or given())
    passes: list[int] = []

    @flow(retries=1)
    def retried() -> None:
        for message in "abc":
            shop.send(message)
        passes.append(len(asked))
        if len(passes) == 1:
            raise RuntimeError("once more")

    retried()
    assert passes == [0, 1]


def test_the_retry_button_in_another_process(broken: Receiver) -> None:
    @flow
    def sending() -> None:
        shop.notify("same")

    first = sending(return_state=True)
    run_id = first.state_details.flow_run_id
    known.letters_before.cache_clear()
    tags._passes.clear()
    again(run_id, sending)
    (letter,) = dead_letters.list()
    assert (letter.status, story(letter)) == ("waiting", ["failed", "failed"])
    broken.broken = False
    again(run_id, sending)
    (letter,) = dead_letters.list()
    assert (letter.status, story(letter)) == ("settled", ["failed", "failed", "succeeded"])
    assert broken.got == ["same"]


@pytest.mark.parametrize("way", ["in a flow", "in a subflow", "in a script", "submitted"])
def test_another_run_of_a_batch_with_a_name_is_a_later_pass(broken: Receiver, way: str) -> None:
    """One letter for each of its calls, whatever flow run makes it; settled when a later run makes it."""

    def calls(order: str) -> None:
        for _ in range(2):
            shop.notify(f"equal {way}", return_state=True)
        shop.notify(order, return_state=True)
        if way == "submitted":
            shop.notify.submit("more").wait()

    inner = flow(name="inner")(calls)

    def work() -> None:
        with batch(f"day {way}"):
            (inner if way == "in a subflow" else calls)("third")

    run = work if way == "in a script" else flow(name="work")(work)
    count = 4 if way == "submitted" else 3
    for number in (1, 2, 3):
        run()
        letters = [one for one in dead_letters.list() if one.batch_id == f"day {way}"]
        assert [story(one) for one in letters] == [["failed"] * number] * count
    broken.broken = False
    run()
    letters = [one for one in dead_letters.list() if one.batch_id == f"day {way}"]
    assert [(one.status, story(one)[-1]) for one in letters] == [("settled", "succeeded")] * count
    assert all(one.reason == "settled" for one in dead_letters.replay([one.id for one in letters]).outcomes)
    assert len(broken.got) == count


@pytest.mark.parametrize("ends", ["failed", "succeeded"])
def test_a_task_run_that_dask_runs_again_has_one_letter(broken: Receiver, ends: str) -> None:
    """After a worker died, another one gets the same task run, with the same id, in the same pass."""
    task_run_id = uuid4()

    @flow
    def fan_out() -> None:
        around = FlowRunContext.get()
        assert around is not None
        with around.model_copy(update={"detached": True}):
            for number in (1, 2):
                broken.broken = number == 1 or ends == "failed"
                given = {"message": f"again {ends}"}
                run_task(shop.notify, task_run_id=task_run_id, parameters=given, return_type="state")

    fan_out(return_state=True)
    (letter,) = [one for one in dead_letters.list() if one.task_run_id == str(task_run_id)]
    assert (letter.status, story(letter)) == (
        "waiting" if ends == "failed" else "settled",
        ["failed", ends],
    )
    broken.broken = False
    report = dead_letters.replay(letter.id)
    assert report.outcomes[0].result == ("replayed" if ends == "failed" else "skipped")
    assert len(broken.got) == 1
