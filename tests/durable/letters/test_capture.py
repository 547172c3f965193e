"""What finally fails becomes a letter, through the hooks or by `dead_letter=True`, and nothing else does."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from prefect import flow, task
from prefect.task_runners import ProcessPoolTaskRunner, ThreadPoolTaskRunner
from pydantic import SecretStr

from prefect_resilience import (
    ConfigurationError,
    ErrorCategory,
    NotSent,
    ResilientTask,
    Retry,
    batch_status,
    dead_letters,
    resilient_task,
)
from prefect_resilience.durable.batches.batch import batch
from prefect_resilience.durable.letters.edge.known import queue_of, spool_of
from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.tasks.edge.run_hooks import dead_letter
from tests.durable.letters import shop
from tests.durable.letters.receiver import Receiver

pytestmark = pytest.mark.api

WHEN = datetime(2026, 11, 20, tzinfo=UTC)


@flow
def campaign(*messages: Any, **options: Any) -> Any:
    return [shop.send(message, **options, return_state=True) for message in messages]


def one_letter() -> dead_letters.DeadLetter:
    (letter,) = dead_letters.list()
    return letter


@pytest.mark.smoke
def test_a_plain_task_that_failed_is_a_letter_with_everything_in_it(receiver: Receiver) -> None:
    receiver.broken = True
    order = shop.Order(id=1, items=[], placed=WHEN)
    ended = campaign((order, b"\xff"), to="ada", return_state=True)
    letter = one_letter()
    assert letter.parameters == {"message": (order, b"\xff"), "to": "ada"}
    assert (letter.status, letter.name) == ("waiting", "send")
    assert str(letter.source) == "tests.durable.letters.shop:send"
    assert (letter.category, letter.code) == ("unavailable", "503")
    assert letter.flow_run_id == letter.batch_id == str(ended.state_details.flow_run_id)
    error = letter.error
    assert error is not None
    assert error.category is ErrorCategory.UNAVAILABLE
    assert (error.node_id, error.task_run_id) == ("send", letter.task_run_id)
    assert "raise_for_status" in (error.stack_trace or "")
    assert dead_letters.get(letter.id) == letter
    assert dead_letters.get(letter.id).error == error


def _also_fails(*_: Any, **__: Any) -> None:
    raise TimeoutError("the other one")


ASKED_FOR: dict[str, Any] = {"dead_letter": True}
FINAL_FAILURES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "no attempt left": ({"retry": Retry(attempts=3, backoff=Backoff.none())}, [3]),
    "a permanent error": ({"retry": Retry(attempts=3, give_up_on="unavailable")}, [1]),
    "no letter asked for": ({"retry": None, "dead_letter": False}, []),
    "a fallback answered": ({"retry": None, "fallback": lambda *_, **__: "kept for later"}, []),
    "the fallback failed too": ({"retry": None, "fallback": _also_fails}, [1]),
}


@pytest.mark.requirement("002.29")
@pytest.mark.parametrize("name", FINAL_FAILURES)
def test_a_final_failure_and_nothing_else_is_a_letter(name: str, receiver: Receiver) -> None:
    receiver.broken = True
    options, attempts = FINAL_FAILURES[name]
    guarded: Any = resilient_task(**ASKED_FOR | options)(shop.send.fn)

    @flow
    def outer() -> None:
        guarded("lost", to="ada", return_state=True)

    outer()
    letters = dead_letters.list()
    assert [letter.attempts for letter in letters] == attempts
    assert all(letter.parameters == {"message": "lost", "to": "ada"} for letter in letters)
    assert all((letter.category, letter.status) == ("unavailable", "waiting") for letter in letters)


def test_events_tell_of_a_letter_without_its_parameters(receiver: Receiver, seen: Any) -> None:
    receiver.broken = True
    campaign("a-message-of-its-own", return_state=True)
    letter = one_letter()
    (event,) = seen.events(
        "prefect-resilience.dead-letter.created", lambda event: event["payload"]["id"] == letter.id
    )
    assert event["payload"]["code"] == "503"
    assert "a-message-of-its-own" not in json.dumps(event["payload"])


def test_the_hook_of_a_flow_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="dead_letter is a hook of tasks"):
        dead_letter(campaign, None, None)  # type: ignore[arg-type]


# -- trouble


SECRET = "hunter2-never-to-be-seen"


def test_no_secret_is_in_the_stores_bytes(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"sqlite:///{tmp_path}/letters.db")

    @task(on_failure=[dead_letter])
    def login(user: str, key: SecretStr, nested: dict[str, Any]) -> None:
        raise PermissionError(f"{user} may not log in with {key.get_secret_value()}")

    @flow
    def outer() -> None:
        login("ada", SecretStr(SECRET), {"deep": [f"Bearer {SECRET}", SECRET]}, return_state=True)

    outer()
    letter = one_letter()
    assert letter.parameters["user"] == "ada"
    assert {one.path for one in letter.left_out} == {"key", "nested.deep.0", "nested.deep.1"}
    raw = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"may not log in with" in raw
    assert SECRET.encode() not in raw
    with sqlite3.connect(tmp_path / "letters.db") as connection:
        assert SECRET not in "".join(connection.iterdump())


def test_while_the_store_is_away_letters_wait_on_the_disk(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.broken = True
    folder = tmp_path / "not-there"
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"sqlite:///{folder}/letters.db")
    folder.write_text("a file where a folder should be")
    campaign("kept", "kept too", return_state=True)
    spool = spool_of(queue_of())
    waiting = list(spool.iterdir())
    assert len(waiting) == 2
    assert {path.stat().st_mode & 0o777 for path in waiting} == {0o600}
    folder.unlink()
    folder.mkdir()
    letters = dead_letters.list()
    assert [letter.parameters["message"] for letter in letters] == ["kept too", "kept"]
    assert list(spool.iterdir()) == []
    assert len(dead_letters.list()) == 2


def test_a_letter_that_nothing_can_keep_is_told_to_the_log_and_fails_nothing(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.broken = True
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"sqlite:///{blocked}/letters.db")
    spool = spool_of(queue_of())
    spool.parent.mkdir(exist_ok=True)
    spool.write_text("a file where a folder should be")
    (state,) = campaign("lost", return_state=True).result(raise_on_failure=False)
    assert state.is_failed()
    assert "503" in state.message
    assert "is lost, because it could not be stored" in caplog.text


def test_switched_off_it_does_nothing(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver.broken = True
    monkeypatch.setenv("RESILIENCE_ENABLED", "false")
    campaign("a", return_state=True)
    assert dead_letters.list() == []


@resilient_task(effect="external", retry=2, dead_letter=True)
def charge(order: dict[str, Any], lines: list[int], fails: bool = True) -> str:
    order["status"] = "charged"
    lines.clear()
    if FAILING and fails:
        raise NotSent("no")
    return "charged"


@resilient_task(retry=None, dead_letter=True)
async def pack(order: shop.Order, box: dict[str, Any]) -> None:
    order.items.append("pen")
    box["order"] = order
    raise RuntimeError("full")


@task(on_failure=[dead_letter])
def pick(orders: list[dict[str, Any]], client: Any = None) -> None:
    orders.pop()["picked"] = True
    raise RuntimeError("gone")


FAILING = [True]


def test_parameters_are_those_before_the_call_changed_them() -> None:
    @flow
    def day() -> None:
        charge({"id": 1}, [1, 2], return_state=True)
        asyncio.run(pack(shop.Order(id=1, items=[], placed=WHEN), {}, return_state=True))
        pick.submit([{"id": 1}, {"id": 2}], object()).wait()

    day()
    letters = {letter.name: letter.parameters for letter in dead_letters.list()}
    assert letters["charge"] == {"order": {"id": 1}, "lines": [1, 2], "fails": True}
    assert letters["pack"] == {"order": shop.Order(id=1, items=[], placed=WHEN), "box": {}}
    assert letters["pick"]["orders"] == [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize("before", [True, False])
def test_a_replay_finds_the_effect_although_the_call_changed_its_parameters(before: bool) -> None:
    """The run is retried and makes the call, which settles the letter, or the letter is replayed."""
    FAILING[:] = [True]

    @flow
    def bill(order: dict[str, Any], lines: list[int]) -> Any:
        return charge(order, lines, return_state=True)

    order, lines = {"id": 1}, [1, 2]
    with batch(f"bill-{before}"):
        bill(order, lines, return_state=True)
    FAILING.clear()
    try:
        if before:
            with batch(f"bill-{before}"):
                assert bill(order, lines).name == "Completed"
        report = dead_letters.replay()
        assert [one.message for one in report.outcomes] == ([] if before else ["Completed"])
        assert [effect.state for effect in batch_status(f"bill-{before}").effects] == ["done"]
    finally:
        FAILING[:] = [True]


def fails(message: str = "none") -> str:
    raise ConnectionError(message)


def run(made: Any, *args: Any, **kwargs: Any) -> Any:
    """The final state of one run of the task in a flow."""

    @flow
    def scenario() -> Any:
        return [made(*args, return_state=True, **kwargs)]

    return scenario()[0]


def messages() -> list[Any]:
    return sorted(letter.parameters["message"] for letter in dead_letters.list())


@pytest.mark.smoke
def test_one_letter_after_the_last_attempt_and_it_can_be_replayed(receiver: Receiver) -> None:
    receiver.broken = True
    assert run(shop.notify, "hello").is_failed()
    (letter,) = dead_letters.list()
    assert (letter.parameters, letter.attempts) == ({"message": "hello"}, 2)
    assert str(letter.source) == "tests.durable.letters.shop:notify"
    # Replayed in vain, it is still the same letter.
    assert dead_letters.replay().failed == 1
    assert len(dead_letters.list()) == 1
    receiver.broken = False
    assert dead_letters.replay().replayed == 1
    assert receiver.got == ["hello"]


@pytest.mark.parametrize("runner", ["threads", "processes", "dask"])
@pytest.mark.timeout(240)
def test_task_runners(
    runner: str, receiver: Receiver, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"sqlite:///{tmp_path}/letters.db")
    receiver.broken = True

    @flow(task_runner=_runner(runner))
    def campaign() -> None:
        shop.notify.map(["a", "b"]).wait()

    campaign(return_state=True)
    assert messages() == ["a", "b"]
    assert {letter.attempts for letter in dead_letters.list()} == {2}


def _runner(name: str) -> Any:
    if name == "threads":
        return ThreadPoolTaskRunner(max_workers=2)
    if name == "processes":
        return ProcessPoolTaskRunner(max_workers=1)
    from prefect_dask.task_runners import DaskTaskRunner

    cluster = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": None, "processes": False}
    return DaskTaskRunner(cluster_kwargs=cluster)


def test_generators() -> None:
    @resilient_task(dead_letter=True, retry=None)
    def generator(message: str) -> Any:
        yield "first"
        fails(message)

    @flow
    def reading() -> None:
        with pytest.raises(ConnectionError):
            list(generator("generator"))

    reading()
    assert messages() == ["generator"]


# -- where the option is written


def test_it_is_kept_and_changed_by_with_options_and_taken_by_wrap() -> None:
    kept = resilient_task(dead_letter=True, retry=None)(fails)
    for made in (kept, kept.with_options(name="other"), cloudpickle.loads(cloudpickle.dumps(kept))):
        run(made, "kept")
    off = kept.with_options(dead_letter=False)
    run(off, "off")
    run(off.with_options(dead_letter=True), "on again")
    run(ResilientTask.wrap(task(fails), dead_letter=True, retry=None), "wrapped")
    run(ResilientTask.wrap(task(fails), retry=None), "off")
    assert messages() == ["kept", "kept", "kept", "on again", "wrapped"]


def test_it_stands_beside_the_users_own_hooks_and_makes_one_letter_with_them() -> None:
    called: list[str] = []

    def mine(task: Any, task_run: Any, state: Any) -> None:
        called.append(state.message)

    made = resilient_task(dead_letter=True, retry=None, on_failure=[mine, dead_letter])(fails)
    run(made, "once")
    assert (messages(), len(called)) == (["once"], 1)
    # Whatever is switched off or added later, the user's own hooks stay theirs.
    run(made.with_options(dead_letter=False), "once more")
    assert (messages(), len(called)) == (["once", "once more"], 2)
    later = resilient_task(dead_letter=True, retry=None)(fails)
    later.on_failure(mine)
    later.on_failure(dead_letter)
    run(later, "later")
    run(later.with_options(on_failure=[mine]), "replaced")
    assert messages() == ["later", "once", "once more", "replaced"]
    assert len(called) == 4


def test_what_cannot_be_meant() -> None:
    with pytest.raises(ConfigurationError, match="dead_letter='yes' is not a boolean"):
        resilient_task(dead_letter="yes")(fails)
    with pytest.raises(ConfigurationError, match="no option 'dead_leter'; did you mean 'dead_letter'"):
        resilient_task(dead_leter=True)(fails)
