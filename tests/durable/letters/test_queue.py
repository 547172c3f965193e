"""The queue on every store, and the laws of claims."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience import ConfigurationError, dead_letters
from prefect_resilience.durable.letters import claims
from prefect_resilience.durable.letters.claims import entry_key
from prefect_resilience.durable.letters.model import (
    Claim,
    Contents,
    DeadLetter,
    Pass,
    Source,
    as_stored,
    letter_of,
)
from prefect_resilience.durable.letters.queue import DeadLetterQueue, is_of, new_id
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.stores import open_store

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def made(name: str = "send", **fields: Any) -> tuple[DeadLetter, Contents]:
    error = ErrorContext.from_exception(ConnectionError("no route"), timestamp=NOW, attempt=2)
    source = Source(module="shop", qualname=name)
    return letter_of(
        {"n": 1, "when": NOW},
        error,
        now=NOW,
        name=name,
        key=f"{name}-1",
        source=source,
        **fields,
    )


def letters_in(queue: DeadLetterQueue, *args: Any, **options: Any) -> list[DeadLetter]:
    return dead_letters.list(*args, store=queue.store, **options)


def purged(queue: DeadLetterQueue, *args: Any, **options: Any) -> list[str]:
    return [letter.name for letter in queue.purge(*args, **options)]


def bury(queue: DeadLetterQueue, *names: str, **fields: Any) -> list[DeadLetter]:
    return [queue.put(*made(name, **fields)) for name in names]


# -- every store


def test_letters_are_listed_the_newest_first_and_read_back_equal(queue: DeadLetterQueue) -> None:
    buried = bury(queue, "a", "b", "c")
    assert letters_in(queue) == buried[::-1]
    assert letters_in(queue, limit=2) == [buried[2], buried[1]]
    assert (
        letters_in(queue, task="b")
        == letters_in(queue, task="shop:b")
        == letters_in(queue, task="b-1")
        == [buried[1]]
    )
    assert letters_in(queue, since=timedelta(hours=1)) == buried[::-1]
    assert letters_in(queue, since=buried[1].created_at) == [buried[2], buried[1]]
    assert letters_in(queue, since=datetime.now(UTC) + timedelta(days=1)) == []
    assert letters_in(queue, status=["replayed", "in_doubt"]) == []
    (read,) = letters_in(queue, task="a")
    assert read.parameters == {"n": 1, "when": NOW}
    assert read.error is not None
    assert (read.error.attempt, read.attempts) == (2, 2)
    assert hash(read) == hash(queue.get(read.id))
    assert read.summary() == "NETWORK_ERROR network: no route"


def test_a_letter_has_one_owner_until_its_lease_is_over(queue: DeadLetterQueue) -> None:
    (letter,) = bury(queue, "a")
    taken, why = queue.claim(letter.id, "me", 60, run_id="r", despite_doubt=False)
    assert why is None
    assert taken.claim is not None
    refused, why = queue.claim(letter.id, "you", 60, run_id=None, despite_doubt=True)
    assert (refused.status, "me is replaying it" in (why or "")) == ("replaying", True)
    assert queue.settle(letter.id, "another token", "replayed") is None
    assert queue.settle(letter.id, taken.claim.token, "replayed", "fine").status == "replayed"
    assert "already" in (queue.claim(letter.id, "me", 60, run_id=None, despite_doubt=True)[1] or "")


def test_a_claim_that_has_run_out_is_a_doubt(queue: DeadLetterQueue) -> None:
    (letter,) = bury(queue, "a")
    queue.claim(letter.id, "dead", 0, run_id="r", despite_doubt=False)
    assert queue.get(letter.id).status == "in_doubt"
    assert letters_in(queue, status="in_doubt") == [queue.get(letter.id)]
    _, why = queue.claim(letter.id, "me", 60, run_id=None, despite_doubt=False)
    assert "interrupted" in (why or "")
    taken, why = queue.claim(letter.id, "me", 60, run_id=None, despite_doubt=True)
    assert why is None
    assert [(one.owner, one.outcome, one.run_id) for one in taken.replays] == [("dead", "in_doubt", "r")]
    assert queue.settle(letter.id, taken.claim.token, "in_doubt").status == "in_doubt"


def test_purging(queue: DeadLetterQueue) -> None:
    letters = bury(queue, "done", "waits", "doubtful", "being replayed")
    for letter, lease in ((letters[0], 60), (letters[2], 0), (letters[3], 60)):
        taken, _ = queue.claim(letter.id, "me", lease, run_id=None, despite_doubt=False)
        if letter is letters[0]:
            queue.settle(letter.id, taken.claim.token, "replayed")
    assert purged(queue, timedelta(hours=1)) == []
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert purged(queue, tomorrow, dry_run=True) == ["done"]
    assert purged(queue, tomorrow) == ["done"]
    with pytest.raises(dead_letters.DeadLetterError, match=r"dead letter .* not found"):
        queue.get(letters[0].id)
    assert {*purged(queue, tomorrow, include_waiting=True)} == {"waits", "doubtful"}
    assert [one.name for one in letters_in(queue)] == ["being replayed"]
    leftover = {key.partition(":")[0] for key, _ in queue.store.scan("dead-letter", limit=100)}
    assert leftover == {"dead-letter", "dead-letter-contents", "dead-letter-call"}
    assert len(queue.store.scan("dead-letter", limit=100)) == 3


def test_a_letter_that_changes_during_a_purge_stays(opened: Callable[[], DeadLetterQueue]) -> None:
    queue = opened()
    letters = bury(queue, "a", "b", "c", batch_id="x")
    for letter in letters:
        taken, _ = queue.claim(letter.id, "me", 60, run_id=None, despite_doubt=False)
        queue.settle(letter.id, taken.claim.token, "replayed")
    going = queue.purge(datetime.now(UTC) + timedelta(days=1))
    assert next(going).name == "c"
    assert [*opened().purge(datetime.now(UTC) + timedelta(days=1), dry_run=True)] == [
        queue.get(letters[1].id),
        queue.get(letters[0].id),
    ]
    document = queue.store.load(entry_key(letters[1].id))
    assert document is not None
    queue.store.delete(entry_key(letters[1].id), document.version)
    queue._change(letters[0].id, lambda old: old.model_copy(update={"status": "waiting"}))
    assert [*going] == []
    assert [letter.name for letter in queue.letters()] == ["a"]


def test_a_success_in_the_same_pass_is_of_another_call(opened: Callable[[], DeadLetterQueue]) -> None:
    (letter,) = bury(opened(), "a", batch_id="f", flow_run_id="f", task_run_id="t")
    success = Pass(at=NOW, outcome="succeeded", starts=(("f", 1),), task_run_id="t2")
    assert opened().call_succeeded(letter.identity, success, "f") is None
    assert opened().get(letter.id).status == "waiting"


def story(letter: DeadLetter) -> list[tuple[str, str]]:
    return [(one.starts[-1][0], one.outcome) for one in letter.passes]


@pytest.mark.parametrize("status", ["waiting", "replaying", "in_doubt", "replayed", "purged"])
def test_a_run_that_was_run_twice_has_one_letter(queue: DeadLetterQueue, status: str) -> None:
    """Dask runs a task run again if its worker died."""
    fields = {"batch_id": "f", "flow_run_id": "f", "task_run_id": "t"}
    (first,) = bury(queue, "a", **fields)
    lease = 60 if status == "replaying" else 0
    if status != "waiting":
        taken, _ = queue.claim(first.id, "me", lease, run_id=None, despite_doubt=True)
        if status in ("replayed", "purged"):
            queue.settle(first.id, taken.claim.token, "replayed")
    if status == "purged":
        purged(queue, datetime.now(UTC) + timedelta(days=1))
    letter, contents = made("a", **fields)
    again = queue.put(letter, contents)
    (listed,) = letters_in(queue)
    assert listed.id == again.id
    if status == "purged":
        assert (listed.status, listed.failures) == ("waiting", 1)
        return
    assert again.id == first.id
    assert listed.status == ("waiting" if status == "replayed" else status)
    assert [one.outcome for one in listed.passes] == ["failed", "failed"]
    assert queue.get(first.id).contents.parameters == contents.parameters


@pytest.mark.parametrize("how", ["one run", "two runs of a batch", "equal calls of two runs"])
def test_two_writers_at_once_leave_the_same_letters(queue: DeadLetterQueue, how: str) -> None:
    start = threading.Barrier(4)

    def fail(number: int) -> None:
        fields: dict[str, Any] = {"batch_id": "invoices", "flow_run_id": f"f{number % 2}"}
        if how == "one run":
            fields = {"batch_id": "f", "flow_run_id": "f", "task_run_id": "t"}
        if how == "two runs of a batch":
            fields["flow_run_id"] = f"f{number}"
        letter, contents = made("a", **fields)
        start.wait(60)
        queue.put(letter, contents)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fail, range(4)))
    letters = letters_in(queue)
    assert len(letters) == (2 if how == "equal calls of two runs" else 1)
    assert sum(len(one.passes) for one in letters) == 4
    for one in letters:
        assert how == "one run" or len({story[0] for story in story(one)}) == len(one.passes)


def test_the_same_call_of_a_retried_run_makes_no_second_letter(queue: DeadLetterQueue) -> None:
    first, second = bury(queue, "a", "a", batch_id="b", flow_run_id="f", run_count=1)
    again = bury(queue, "a", batch_id="b", flow_run_id="f", run_count=2, task_run_id="new")[0]
    assert again.id in (first.id, second.id)
    assert (again.failures, again.run_count, queue.get(again.id).task_run_id) == (2, 2, "new")
    other = bury(queue, "a", batch_id="b", flow_run_id="f", run_count=2)[0]
    assert {again.id, other.id} == {first.id, second.id}
    assert len(letters_in(queue)) == 2
    # A third call that fails in the same start, and one of another batch, are others.
    bury(queue, "a", batch_id="b", flow_run_id="f", run_count=2)
    bury(queue, "a", batch_id="other", flow_run_id="g", run_count=2)
    assert len(letters_in(queue)) == 4
    letter, contents = made("a", batch_id="b", flow_run_id="of the replay")
    assert queue.put(letter, contents, in_replay=True).failures >= 2
    assert len(letters_in(queue)) == 4
    for one in letters_in(queue):
        taken, _ = queue.claim(one.id, "me", 60, run_id=None, despite_doubt=False)
        queue.settle(one.id, taken.claim.token, "replayed")
    # What was replayed and fails again in a later pass waits again: its run asked for the call once more.
    bury(queue, "a", batch_id="b", flow_run_id="f", run_count=3)
    assert len(letters_in(queue)) == 4
    (reopened,) = letters_in(queue, status="waiting")
    assert (reopened.run_count, reopened.settled_at) == (3, None)
    assert [one.outcome for one in reopened.replays] == ["replayed"]


def test_what_cannot_be_meant(opened: Callable[[], DeadLetterQueue]) -> None:
    with pytest.raises(ConfigurationError, match="limit=0"):
        letters_in(opened(), limit=0)
    with pytest.raises(ConfigurationError, match="did you mean 'in_doubt'"):
        letters_in(opened(), status="indoubt")
    with pytest.raises(dead_letters.DeadLetterError):
        opened().get("")
    assert opened().contents(new_id(0, 0)) == Contents(parameters={})
    gone = new_id(0, 0)
    assert opened().settle(gone, "t", "failed") is None
    assert not is_of(DeadLetter(name="a", key="a", created_at=NOW), "b")


# -- laws


actions = st.sampled_from(["claim", "force", "replayed", "failed", "in_doubt", "wait"])


@settings(deadline=None)
@given(st.lists(st.tuples(actions, st.integers(0, 2)), max_size=25))
def test_nobody_claims_what_another_holds_and_what_is_replayed_stays_so(steps: list[tuple[str, int]]) -> None:
    letter, now, holder = made()[0], NOW, None
    for number, (action, who) in enumerate(steps):
        now += SECOND
        if action == "wait":
            now += 60 * SECOND
        letter = before = claims.standing(letter, now)
        token = f"{who}"
        is_own = letter.claim is not None and letter.claim.token == token
        assert is_own == (letter.claim is not None and holder == token)
        if action in ("claim", "force"):
            refused = claims.refusal(letter, now, despite_doubt=action == "force")
            assert (refused is None) == (
                before.status == "waiting" or (before.status == "in_doubt" and action == "force")
            )
            if refused is None:
                until = now + timedelta(seconds=30)
                claim = Claim(owner="me", token=token, since=now, until=until, run_id=str(number))
                letter = claims.begin_replay(letter, claim)
                holder = token
        elif is_own and action in ("replayed", "failed", "in_doubt"):
            letter = claims.end_replay(letter, action, now, "x")  # type: ignore[arg-type]
        if before.status == "replayed":
            assert letter.status == "replayed"
        assert DeadLetter.model_validate(json.loads(json.dumps(as_stored(letter)))) == letter
        assert len(letter.replays) <= 20


# -- small things


def test_a_store_of_ones_own(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/other.db"
    DeadLetterQueue(open_store(url)).put(*made())
    assert len(dead_letters.list(store=url)) == len(dead_letters.list(store=open_store(url))) == 1
    assert dead_letters.list() == []
    assert len(dead_letters.purge(timedelta(0), include_waiting=True, store=url)) == 1
