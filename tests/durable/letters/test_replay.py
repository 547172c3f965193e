"""Letters replayed against a real receiver that counts: each call once, in its batch, by one at a time."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from pydantic import SecretStr

from prefect_resilience import ConfigurationError, dead_letters
from prefect_resilience.durable.letters.edge.known import queue_of
from prefect_resilience.durable.letters.edge.replay import Replaying, replay_letters
from prefect_resilience.tasks.edge.run_hooks import dead_letter
from tests.durable.letters import shop
from tests.durable.letters.receiver import Receiver

pytestmark = [pytest.mark.api, pytest.mark.slow]


def fail(receiver: Receiver, *messages: Any) -> list[dead_letters.DeadLetter]:
    """Letters of these messages, the oldest first."""
    receiver.broken = True

    @flow
    def campaign() -> Any:
        return [shop.send(message, return_state=True) for message in messages]

    campaign(return_state=True)
    receiver.broken = False
    return dead_letters.list()[::-1]


def status_of(letter: dead_letters.DeadLetter) -> str:
    return dead_letters.get(letter.id).status


@pytest.mark.smoke
def test_each_is_sent_once_the_oldest_first(receiver: Receiver) -> None:
    fail(receiver, "a", "b", "c")
    told: list[tuple[int, int, str]] = []
    report = dead_letters.replay(progress=lambda done, total, one: told.append((done, total, one.result)))
    assert receiver.got == ["a", "b", "c"]
    assert report.replayed == 3
    assert report.summary() == "3 letters: 3 replayed"
    assert told == [(1, 3, "replayed"), (2, 3, "replayed"), (3, 3, "replayed")]
    assert {letter.status for letter in dead_letters.list()} == {"replayed"}
    assert dead_letters.replay().outcomes == ()
    again = dead_letters.replay([letter.id for letter in dead_letters.list()])
    assert (again.skipped, len(receiver.got)) == (3, 3)
    assert "already replayed" in again.outcomes[0].message


def test_the_ui_shows_the_replay_as_a_flow_run_with_the_task_in_it(receiver: Receiver, seen: Any) -> None:
    (letter,) = fail(receiver, "a")
    report = dead_letters.replay(letter.id)
    run = seen.task_run(UUID(report.outcomes[0].run_id))
    assert run.state.is_completed()
    with get_client(sync_client=True) as client:
        flow_run = client.read_flow_run(run.flow_run_id)
        flow_id = flow_run.flow_id
        assert client.read_flow(flow_id).name == "replay-dead-letters"
    assert flow_run.parameters["letters"] == [letter.id]
    (replayed,) = dead_letters.get(letter.id).replays
    assert (replayed.outcome, replayed.run_id) == ("replayed", str(run.id))
    (event,) = seen.events(
        "prefect-resilience.dead-letter.replayed", lambda event: event["payload"]["id"] == letter.id
    )
    assert event["payload"]["result"] == "replayed"


def test_a_dry_run_sends_nothing_and_changes_nothing(receiver: Receiver) -> None:
    letters = fail(receiver, "a", shop.Point(1, 2))
    report = dead_letters.replay(dry_run=True)
    assert [one.result for one in report.outcomes] == ["would_replay"] * 2
    assert "task send (tests.durable.letters.shop:send) with message='a'" in report.outcomes[0].message
    assert receiver.got == []
    assert dead_letters.list()[::-1] == letters


def test_choosing(receiver: Receiver) -> None:
    letters = fail(receiver, "a", "b", "c")
    with pytest.raises(ConfigurationError, match=r"no dead letter of a task 'sned'\. Did you mean 'send'"):
        dead_letters.replay(task="sned")
    assert dead_letters.replay(task="nobody").outcomes == ()
    assert dead_letters.replay(since=datetime.now(UTC) + timedelta(hours=1)).outcomes == ()
    assert dead_letters.replay(letters[1]).replayed == 1
    assert receiver.got == ["b"]
    assert dead_letters.replay(task="tests.durable.letters.shop:send", since=timedelta(hours=1)).replayed == 2
    with pytest.raises(ConfigurationError, match="either by their ids"):
        dead_letters.replay(letters[0], task="send")
    with pytest.raises(dead_letters.DeadLetterError, match=r"dead letter .* not found"):
        dead_letters.replay(str(uuid4()))
    with pytest.raises(ConfigurationError, match="rate=0"):
        dead_letters.replay(rate=0)
    with pytest.raises(ConfigurationError, match="did you mean 'waiting'"):
        dead_letters.replay(status="waitin")


def test_the_rate_is_kept(receiver: Receiver) -> None:
    letters = fail(receiver, "a", "b", "c", "d")
    now = [100.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    how = Replaying(queue_of(), rate=4, sleep=sleep, clock=lambda: now[0])

    @flow
    def replaying() -> int:
        return replay_letters(how, letters).replayed

    assert replaying() == 4
    assert slept == [0.25, 0.25, 0.25]


def test_async_variadic_and_method_tasks(receiver: Receiver) -> None:
    receiver.broken = True

    @flow
    async def outer() -> None:
        await shop.send_async("a", 1, 2, extra=(3,), return_state=True)

    asyncio.run(outer())

    @flow
    def mailing() -> None:
        shop.Mailer("ada").mail("hello", return_state=True)

    mailing()
    assert {str(letter.source).rpartition(":")[2]: letter.parameters for letter in dead_letters.list()} == {
        "send_async": {"message": "a", "more": (1, 2), "options": {"extra": (3,)}},
        "Mailer.mail": {"self": shop.Mailer("ada"), "message": "hello"},
    }
    assert dead_letters.replay().failed == 2
    receiver.broken = False
    report = dead_letters.replay()
    assert report.replayed == 2, report.outcomes
    assert receiver.got == ["('a', (1, 2), {'extra': (3,)})", "ada: hello"]


def test_secrets_must_be_given_and_leave_no_trace(receiver: Receiver) -> None:
    used: list[str] = []

    @task(on_failure=[dead_letter])
    def login(user: str, key: SecretStr) -> None:
        used.append(key.get_secret_value())
        if receiver.broken:
            raise ConnectionError("no")

    @flow
    def outer() -> None:
        login("ada", SecretStr("the-real-key-of-ada"), return_state=True)

    receiver.broken = True
    outer()
    receiver.broken = False
    (outcome,) = dead_letters.replay().outcomes
    assert outcome.result == "skipped"
    lacks = "needs key, which the letter does not have (secret, a pydantic.types.SecretStr)"
    assert f"{lacks}: pass the value, as in --set key=..." in outcome.message
    assert dead_letters.replay(dry_run=True).outcomes[0].result == "skipped"
    assert dead_letters.replay(values={"key": "the-real-key-of-ada"}).replayed == 1
    assert used == ["the-real-key-of-ada"] * 2


def test_a_task_that_is_not_to_be_found_is_skipped_with_the_reason(receiver: Receiver) -> None:
    letters = fail(receiver, "a")
    queue = queue_of()
    for changes, says in (
        ({"qualname": "gone"}, "gone is not in "),
        ({"module": "no.such.module", "file": None}, "cannot be imported here"),
        ({"qualname": "Point"}, "is no longer a task"),
        ({"qualname": "stream"}, "is a generator, which needs a reader"),
        ({"qualname": "f.<locals>.send"}, "top of its module"),
        ({"module": "__main__", "file": "/no/such/file.py"}, "file /no/such/file.py not found here"),
        ({"module": "__mp_main__", "file": "/no/such/file.py"}, "file /no/such/file.py not found here"),
    ):
        source = letters[0].source.model_copy(update=changes)
        queue._change(letters[0].id, lambda old, source=source: old.model_copy(update={"source": source}))
        (outcome,) = dead_letters.replay().outcomes
        assert outcome.result == "skipped"
        assert says in outcome.message
    assert status_of(letters[0]) == "waiting"


# -- one at a time, and once


def test_two_replays_at_once_send_each_once(receiver: Receiver, server_url: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", server_url)
    fail(receiver, *(f"m{n}" for n in range(6)))
    ready = threading.Barrier(3)
    reports: list[dead_letters.ReplayReport] = []

    def replaying() -> None:
        ready.wait(30)
        reports.append(dead_letters.replay())

    threads = [threading.Thread(target=replaying) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert receiver.counts == {f"m{n}": 1 for n in range(6)}
    assert sum(report.replayed for report in reports) == 6
    assert {letter.status for letter in dead_letters.list()} == {"replayed"}


def test_interrupted_by_hand_the_letter_is_in_doubt_at_once(receiver: Receiver) -> None:
    @task(on_failure=[dead_letter])
    def stops() -> None:
        raise KeyboardInterrupt if not receiver.broken else ConnectionError("no")

    @flow
    def outer() -> None:
        stops(return_state=True)

    receiver.broken = True
    outer()
    receiver.broken = False
    with pytest.raises(KeyboardInterrupt):
        dead_letters.replay()
    (letter,) = dead_letters.list()
    assert letter.status == "in_doubt"
    assert letter.replays[-1].run_id
    assert dead_letters.replay().skipped == 1
    with pytest.raises(KeyboardInterrupt):  # a person who has looked says so
        dead_letters.replay(letter.id, force=True)


def test_a_cut_off_replay_of_an_effect_is_taken_up_and_sends_nothing_that_was_done(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    @flow
    def billing() -> None:
        shop.pay(7, return_state=True)

    monkeypatch.setenv("RECEIVER", "http://127.0.0.1:9")  # refused: it never arrived
    billing()
    monkeypatch.setenv("RECEIVER", receiver.url)
    (letter,) = dead_letters.list()
    assert dead_letters.replay().replayed == 1
    assert receiver.got == ["pay 7"]
    # As if the process had died after the effect was done, before its letter was settled.
    queue = queue_of()
    queue._change(letter.id, lambda old: old.model_copy(update={"status": "waiting", "replays": ()}))
    queue.claim(letter.id, "dead", 0.0, run_id=str(uuid4()), despite_doubt=False)
    assert status_of(letter) == "in_doubt"
    assert dead_letters.replay().replayed == 1
    assert receiver.got == ["pay 7"]
    assert status_of(letter) == "replayed"
