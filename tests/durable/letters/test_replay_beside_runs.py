"""A replay leaves a letter to its flow run while that goes on; one whose call the run made is settled."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect import flow
from prefect import states as of_prefect
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.settings import PREFECT_API_URL, temporary_settings

from prefect_resilience import dead_letters
from prefect_resilience.durable.letters.edge.known import queue_of
from prefect_resilience.durable.letters.edge.operations import replay_dead_letters
from prefect_resilience.durable.letters.edge.replay import Replaying, replay_letters
from prefect_resilience.tasks.edge import run_hooks
from tests.durable.letters import shop
from tests.durable.letters.receiver import Receiver
from tests.durable.letters.test_passes_of_runs import again, story

pytestmark = pytest.mark.api

LATER = datetime.now(UTC) + timedelta(hours=1)
STATES: dict[str, Callable[[], State]] = {
    "Running": of_prefect.Running,
    "Cancelling": of_prefect.Cancelling,  # a run that is not under way would be cancelled at once
    "Retrying": of_prefect.Retrying,
    "Pending": of_prefect.Pending,
    "Scheduled": of_prefect.Scheduled,
    "AwaitingRetry": lambda: of_prefect.AwaitingRetry(scheduled_time=LATER),
    "Late": lambda: State(type=StateType.SCHEDULED, name="Late"),
    "Paused": lambda: of_prefect.Paused(timeout_seconds=60),
    "Suspended": lambda: of_prefect.Suspended(timeout_seconds=60),
}
ENDS: dict[str, Callable[[], State]] = {
    "Failed": of_prefect.Failed,
    "Crashed": of_prefect.Crashed,
    "Cancelled": of_prefect.Cancelled,
}


@flow
def sending(message: str = "a") -> None:
    shop.send(message)


def fail(receiver: Receiver, subject: Any = sending) -> dead_letters.DeadLetter:
    """The letter of a run of this flow, which failed."""
    receiver.broken = True
    subject(return_state=True)
    receiver.broken = False
    return dead_letters.list()[0]


def comes_to(letter: dead_letters.DeadLetter, state: State) -> None:
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(UUID(letter.flow_run_id), state, force=True)


@pytest.fixture
def unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a pass had been cut off right after its calls, before it could tell of them."""
    monkeypatch.setattr(run_hooks, "settle_for_task", lambda *_: None)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path}/letters.db"
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", url)
    return url


def test_while_its_flow_run_goes_on_a_letter_is_left_to_it(receiver: Receiver) -> None:
    letter = fail(receiver)
    for name, state in STATES.items():
        comes_to(letter, state())
        report = dead_letters.replay()
        assert (report.skipped, report.left_to_runs, report.well) == (1, 1, True), name
        (outcome,) = report.outcomes
        assert outcome.reason == "run_goes_on"
        assert f"is {name}: it may make the call itself" in outcome.message
        assert dead_letters.replay(dry_run=True).outcomes[0].reason == "run_goes_on"
        assert dead_letters.get(letter.id).status == "waiting"
    assert receiver.got == []
    assert dead_letters.get(letter.id).replays == ()
    comes_to(letter, of_prefect.Failed())
    assert dead_letters.replay().replayed == 1
    assert receiver.got == ["a"]


def test_a_letter_of_a_run_that_ended_badly_is_replayed(receiver: Receiver) -> None:
    for number, state in enumerate(ENDS.values(), 1):
        comes_to(fail(receiver), state())
        assert dead_letters.replay().replayed == 1
        assert len(receiver.got) == number


def test_the_root_of_a_subflow_counts(receiver: Receiver) -> None:
    @flow
    def root() -> None:
        sending()

    letter = fail(receiver, root)
    assert letter.flow_run_id != letter.batch_id
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(UUID(letter.batch_id), of_prefect.Running(), force=True)
    assert dead_letters.replay().left_to_runs == 1
    assert receiver.got == []


def test_a_person_may_replay_one_letter_all_the_same(receiver: Receiver) -> None:
    first, second = fail(receiver), fail(receiver)
    for letter in (first, second):
        comes_to(letter, of_prefect.Running())
    assert dead_letters.replay(force=True).skipped == 2
    assert dead_letters.replay([first.id, second.id], force=True).skipped == 2
    assert dead_letters.replay(task="send", limit=1, force=True).skipped == 1
    assert replay_dead_letters(force=True, limit=1)["outcomes"][0]["reason"] == "run_goes_on"
    assert receiver.got == []
    assert dead_letters.replay(first.id, force=True).replayed == 1
    assert replay_dead_letters(letters=[second.id], force=True)["outcomes"][0]["result"] == "replayed"
    assert receiver.got == ["a", "a"]


def test_when_prefect_cannot_be_asked_nothing_is_called(receiver: Receiver) -> None:
    letter = fail(receiver)
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        report = replay_letters(Replaying(queue_of()), [letter])
    assert (report.skipped, report.well) == (1, False)
    assert report.outcomes[0].reason == "api_unavailable"
    assert "unknown whether its flow run is active" in report.outcomes[0].message
    assert (receiver.got, dead_letters.get(letter.id).status) == ([], "waiting")


def test_a_run_that_starts_again_between_the_look_and_the_call(receiver: Receiver) -> None:
    """It is looked at when the rate lets it go."""
    letter = fail(receiver)
    seen: list[str] = []

    def sleep(seconds: float) -> None:
        seen.append(dead_letters.get(letter.id).status)
        comes_to(letter, of_prefect.Running())

    how = Replaying(queue_of(), rate=1, sleep=sleep, clock=lambda: 0.0)
    how.next_at = 1.0

    @flow
    def replaying() -> Any:
        return replay_letters(how, [letter])

    report = replaying()
    assert seen == ["waiting"]
    assert report.left_to_runs == 1
    after = dead_letters.get(letter.id)
    assert (after.status, after.claim, after.replays, receiver.got) == ("waiting", None, (), [])


# -- what the run did in the meantime


@pytest.mark.parametrize("in_subflow", [False, True])
@pytest.mark.parametrize("end", ["Completed", "Crashed"])
def test_a_call_without_a_record_is_left_to_a_person(
    receiver: Receiver, unnoticed: None, end: str, in_subflow: bool
) -> None:
    """The later pass had made it, and died before it could tell, or had no store."""

    @flow
    def root() -> None:
        sending("a")

    subject = root if in_subflow else sending
    letter = fail(receiver, subject)
    again(UUID(letter.batch_id), subject)
    if end == "Crashed":
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(UUID(letter.batch_id), of_prefect.Crashed(), force=True)
    (outcome,) = dead_letters.replay(letter.id).outcomes
    assert (outcome.result, outcome.reason) == ("skipped", "unclear")
    assert f"is {end}; it is unknown whether" in outcome.message
    assert receiver.got == ["a"]


def test_an_effect_is_replayed_although_nobody_knows(receiver: Receiver, monkeypatch: Any) -> None:
    @flow
    def billing() -> None:
        shop.pay(7)

    monkeypatch.setenv("RECEIVER", "http://127.0.0.1:9")  # refused: it never arrived
    run_id = billing(return_state=True).state_details.flow_run_id
    monkeypatch.setenv("RECEIVER", receiver.url)
    monkeypatch.setattr(run_hooks, "settle_for_task", lambda *_: None)
    again(run_id, billing)
    (letter,) = dead_letters.list()
    comes_to(letter, of_prefect.Crashed())
    assert (letter.status, receiver.got) == ("waiting", ["pay 7"])
    assert dead_letters.replay(dry_run=True).outcomes[0].result == "would_replay"
    assert dead_letters.replay().replayed == 1
    assert receiver.got == ["pay 7"]  # the ledger knew


def test_a_failed_call_after_its_replay_waits_again(receiver: Receiver) -> None:
    letter = fail(receiver)
    assert dead_letters.replay().replayed == 1
    receiver.broken = True
    again(UUID(letter.flow_run_id), sending)
    (reopened,) = dead_letters.list()
    assert (reopened.id, reopened.status, story(reopened)) == (letter.id, "waiting", ["failed"] * 2)
    assert [one.outcome for one in reopened.replays] == ["replayed"]
    # Purged, nothing is known of it any more: it is a new one.
    dead_letters.purge(timedelta(0), include_waiting=True)
    again(UUID(letter.flow_run_id), sending)
    (anew,) = dead_letters.list()
    assert anew.id != letter.id


def test_a_letter_of_no_run_needs_no_prefect(receiver: Receiver) -> None:
    receiver.broken = True
    with pytest.raises(Exception, match="503"):
        shop.notify("alone")
    receiver.broken = False
    (letter,) = dead_letters.list()
    assert letter.flow_run_id is None
    queue_of()._change(letter.id, lambda old: old.model_copy(update={"batch_id": f"b-{uuid4()}"}))
    assert dead_letters.replay().replayed == 1
