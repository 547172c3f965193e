"""Lists, purges and counts read what they need: a page, one batch, what is open. Counted in documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from prefect_resilience import ConfigurationError, dead_letters, list_batches
from prefect_resilience.durable.batches.edge.known import NAMED, batch_ids, prune, unknown
from prefect_resilience.durable.batches.edge.listing import BatchCounts, each_batch, in_order
from prefect_resilience.durable.effects.ledger import Ledger, place_of
from prefect_resilience.durable.effects.model import Doubted, Succeeded
from prefect_resilience.durable.letters.claims import entry_key
from prefect_resilience.durable.letters.model import DeadLetter, as_stored, new_id
from prefect_resilience.durable.letters.queue import DeadLetterQueue
from prefect_resilience.stores import MemoryStore, Store, open_store

NOW = datetime.now(UTC)


@pytest.fixture(params=["sqlite", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    store: Any = MemoryStore() if request.param == "memory" else open_store(f"sqlite:///{tmp_path}/many.db")
    yield store
    store.close()


class Counting:
    """The documents that a store's scans returned."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = 0
        for name in ("scan", "scan_open"):
            if hasattr(store, name):
                monkeypatch.setattr(store, name, self._counted(getattr(store, name)))

    def _counted(self, scan: Any) -> Any:
        def counted(*given: Any, **more: Any) -> Any:
            found = scan(*given, **more)
            self.read += len(found)
            return found

        return counted


def bury(store: Store, number: int, age: timedelta, status: str = "replayed") -> list[str]:
    """Letters of this age, a second apart, the newest first."""
    ids = list[str]()
    for one in range(number):
        at = NOW - age - timedelta(seconds=one)
        letter = DeadLetter(
            id=new_id(at.timestamp(), one),
            status=status,  # pyright: ignore[reportArgumentType]
            kind="task",
            name="send",
            key="send-1",
            created_at=at,
            settled_at=at if status in ("replayed", "settled") else None,
        )
        assert store.swap(entry_key(letter.id), 0, as_stored(letter))
        ids.append(letter.id)
    return ids


# -- letters


def test_pages_of_letters_follow_one_another(store: Store) -> None:
    ids = bury(store, 25, timedelta())
    queue = DeadLetterQueue(store)
    pages, after = list[list[str]](), None
    while page := [one.id for one in queue.list(limit=10, after=after)]:
        pages.append(page)
        after = page[-1]
    assert [len(page) for page in pages] == [10, 10, 5]
    assert [one for page in pages for one in page] == ids
    listed = dead_letters.list(limit=1, after=ids[3], store=store)
    assert [one.id for one in listed] == [ids[4]]
    with pytest.raises(ConfigurationError, match="after='x' must be the id of a dead letter"):
        queue.list(after="x")


def test_a_page_costs_the_same_wherever_it_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefect_resilience.stores.base.PAGE", 10)
    ids = bury(store, 300, timedelta())
    queue, counting = DeadLetterQueue(store), Counting(store, monkeypatch)
    for after in (None, ids[150], ids[280]):
        counting.read = 0
        assert len(queue.list(limit=10, after=after)) == 10
        assert counting.read <= 20


@pytest.mark.parametrize("status", ["waiting", "in_doubt"])
def test_what_is_open_is_found_among_many(store: Store, monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    bury(store, 200, timedelta())
    wanted = bury(store, 3, timedelta(days=2), status)
    bury(store, 50, timedelta(days=4), "waiting" if status == "in_doubt" else "settled")
    queue, counting = DeadLetterQueue(store), Counting(store, monkeypatch)
    assert [one.id for one in queue.list(status)] == wanted
    indexed = hasattr(store, "scan_open")
    assert counting.read == (3 if indexed else 253)


def test_a_purge_reads_what_is_old_and_keeps_pages(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_resilience.stores.base.PAGE", 10)
    monkeypatch.setattr("prefect_resilience.durable.letters.queue.PAGE", 10)
    kept = bury(store, 200, timedelta())
    old = bury(store, 35, timedelta(days=40))
    waiting = bury(store, 5, timedelta(days=50), "waiting")
    queue, counting = DeadLetterQueue(store), Counting(store, monkeypatch)
    month, archive = timedelta(days=30), tmp_path / "letters.jsonl"
    assert [one.id for one in queue.purge(month, dry_run=True)] == old
    assert counting.read <= 40
    going = queue.purging(month, archive=archive)
    assert next(going).id == old[0]
    # One page is in the archive, and one letter is gone.
    assert len(archive.read_text().splitlines()) == 10
    assert store.load(entry_key(old[0])) is None
    assert store.load(entry_key(old[1])) is not None
    assert [one.id for one in going] == old[1:]
    assert [json.loads(line)["id"] for line in archive.read_text().splitlines()] == old
    assert [one.id for one in queue.letters()] == kept + waiting
    assert [one.id for one in queue.purge(month, include_waiting=True)] == waiting


def test_a_purge_at_the_end_of_time(store: Store) -> None:
    ids = bury(store, 3, timedelta())
    queue = DeadLetterQueue(store)
    assert queue.purge(datetime.min.replace(tzinfo=UTC) + timedelta(days=1)) == []
    assert [one.id for one in queue.purge(datetime.max)] == ids


# -- batches


def begin(store: Store, batch: str, key: str, outcome: str = "done") -> None:
    ledger, place = Ledger(store), place_of(batch, key)
    ledger.intend(place, key, "external", {"batch": batch, "key": key, "task": "shop.send"})
    event = Succeeded(key, {"json": 1}) if outcome == "done" else Doubted(key, {"code": "X", "message": "x"})
    ledger.report(place, event)


def fill(store: Store) -> None:
    for number in range(40):
        begin(store, f"batch-{number:02}", "a")
    for number in range(60):
        begin(store, "large", f"{number:02}")
    begin(store, "batch-07", "b", "doubt")
    begin(store, "batch-11", "b", "doubt")


def test_open_batches_are_those_of_the_whole_list(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store)
    every = list_batches(store=store)
    assert len(every) == 41
    counting = Counting(store, monkeypatch)
    opened = list_batches(only_open=True, store=store)
    assert opened == [one for one in every if one.open]
    assert {one.batch_id for one in opened} == {"batch-07", "batch-11"}
    # The open effects (without an index: all of them), and all effects of their batches.
    assert counting.read == (2 if hasattr(store, "scan_open") else 102) + 4


def test_the_first_batches_and_the_counts_of_all(store: Store) -> None:
    fill(store)
    counts = BatchCounts()
    first = in_order(counts.counting(each_batch(Ledger(store))), 2)
    assert first == list_batches(store=store)[:2]
    assert (counts.total, counts.open, counts.in_doubt, counts.effects) == (41, 2, 2, 2)


def test_the_names_of_batches_skip_their_effects(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store)
    counting = Counting(store, monkeypatch)
    ids = [*batch_ids(Ledger(store))]
    assert len(ids) == len(set(ids)) == 41
    assert counting.read == 41
    monkeypatch.setattr("prefect_resilience.durable.batches.edge.known.NAMED", 10)
    assert len([*batch_ids(Ledger(store))]) == 10


def test_an_unknown_batch_among_very_many_says_so() -> None:
    known = [f"b{number}" for number in range(NAMED)]
    assert unknown("somewhere else", known).endswith("'b4' and more.")
    assert unknown("somewhere else", known[:7]).endswith("'b4' and 2 more.")


def test_a_batch_is_read_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store)
    counting = Counting(store, monkeypatch)
    assert len([*islice(Ledger(store).each_effect("batch-07"), 10)]) == 2
    assert counting.read == 2


def test_archived_batches_are_those_that_left(store: Store) -> None:
    fill(store)
    gone = prune(timedelta(seconds=-0.0), store=store)
    assert {one.batch_id for one in gone} >= {"large", "batch-00"}
    begin(store, "batch-00", "new")
    archived = list_batches(archived=True, store=store)
    assert len(archived) == len(gone) - 1
    assert "batch-00" not in {one.batch_id for one in archived}
    assert next(one for one in archived if one.batch_id == "large").done == 60
