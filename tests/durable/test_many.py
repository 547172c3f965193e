"""Lists, purges and counts read what they need: a page, one batch, what is open. Counted in documents."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from prefect_resilience import ConfigurationError, dead_letters, list_batches
from prefect_resilience.durable.batches.audit import Audit
from prefect_resilience.durable.batches.edge import known, listing
from prefect_resilience.durable.batches.edge.known import check_known, prune
from prefect_resilience.durable.batches.edge.listing import find_batches
from prefect_resilience.durable.effects.ledger import Ledger, place_of
from prefect_resilience.durable.effects.model import Doubted, Succeeded
from prefect_resilience.durable.letters.claims import entry_key
from prefect_resilience.durable.letters.model import DeadLetter, as_stored
from prefect_resilience.durable.letters.queue import OPEN, DeadLetterQueue, new_id
from prefect_resilience.operations import reports as reading
from prefect_resilience.operations.reports.api import Period
from prefect_resilience.stores import Store, open_store
from prefect_resilience.stores.base import write

NOW = datetime.now(UTC)


@pytest.fixture(params=["sqlite", "memory", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    urls = {"memory": f"memory://{tmp_path.name}", "sqlite": f"sqlite:///{tmp_path}/many.db"}
    store: Any = open_store(urls.get(request.param) or request.getfixturevalue("redis_url"))
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
        assert write(store, entry_key(letter.id), 0, as_stored(letter), status in OPEN)
        ids.append(letter.id)
    return ids


# -- letters


def test_pages_of_letters_follow_one_another(store: Store) -> None:
    ids = bury(store, 25, timedelta())
    pages, after = list[list[str]](), None
    while page := [one.id for one in dead_letters.list(limit=10, after=after, store=store)]:
        pages.append(page)
        after = page[-1]
    assert [len(page) for page in pages] == [10, 10, 5]
    assert [one for page in pages for one in page] == ids
    listed = dead_letters.list(limit=1, after=ids[3], store=store)
    assert [one.id for one in listed] == [ids[4]]
    with pytest.raises(ConfigurationError, match="after='x' must be the id of a dead letter"):
        dead_letters.list(after="x", store=store)


@pytest.mark.parametrize("status", ["waiting", "in_doubt"])
def test_what_is_open_is_found_among_many(store: Store, monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    bury(store, 200, timedelta())
    wanted = bury(store, 3, timedelta(days=2), status)
    bury(store, 50, timedelta(days=4), "settled")
    counting = Counting(store, monkeypatch)
    assert [one.id for one in dead_letters.list(status, store=store)] == wanted
    assert counting.read == 3


def test_a_purge_reads_what_is_old(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefect_resilience.stores.base.PAGE", 10)
    kept = bury(store, 200, timedelta())
    old = bury(store, 35, timedelta(days=40))
    waiting = bury(store, 5, timedelta(days=50), "waiting")
    queue, counting = DeadLetterQueue(store), Counting(store, monkeypatch)
    month = timedelta(days=30)
    assert [one.id for one in queue.purge(month, dry_run=True)] == old
    assert counting.read <= 40
    going = queue.purge(month)
    assert next(going).id == old[0]
    assert store.load(entry_key(old[0])) is None
    assert store.load(entry_key(old[1])) is not None
    assert [one.id for one in going] == old[1:]
    assert [one.id for one in queue.letters()] == kept + waiting
    assert [one.id for one in queue.purge(month, include_waiting=True)] == waiting


def test_the_report_reads_the_letters_of_its_period(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefect_resilience.stores.base.PAGE", 10)
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", store.url)
    monkeypatch.setattr(reading, "OLDER_READ", 30)
    bury(store, 100, timedelta())
    bury(store, 25, timedelta(days=5))
    bury(store, 200, timedelta(days=9))
    counting, unknown = Counting(store, monkeypatch), list[str]()
    made = reading._letters(Period(NOW - timedelta(days=6), NOW - timedelta(days=4)), unknown)
    assert (made.created, made.replayed) == (25, 25)
    assert counting.read <= 70
    (said,) = unknown
    assert "lower bounds" in said
    monkeypatch.setattr(reading, "OLDER_READ", 300)
    unknown.clear()
    assert reading._letters(Period(NOW - timedelta(days=6), NOW - timedelta(days=4)), unknown) == made
    assert not unknown


# -- batches


def begin(store: Store, batch: str, key: str, outcome: str = "done", **about: str) -> None:
    ledger, place = Ledger(store), place_of(batch, key)
    ledger.intend(place, key, "external", {"batch": batch, "key": key, "task": "shop.send", **about})
    event = Succeeded(key, {"json": 1}) if outcome == "done" else Doubted(key, {"code": "X", "message": "x"})
    ledger.report(place, event)


def fill(store: Store) -> None:
    for number in range(40):
        begin(store, f"batch-{number:02}", "a")
    for number in range(60):
        begin(store, "large", f"{number:02}")
    begin(store, "batch-07", "b", "doubt")
    begin(store, "batch-11", "b", "doubt")
    begin(store, "batch-11", "undo b", compensates="b")
    begin(store, "batch-12", "undo a", "doubt", compensates="a")


def test_open_batches_are_found_in_a_bounded_number_of_documents(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "EFFECTS_OF_EACH", 20)
    fill(store)
    counting = Counting(store, monkeypatch)
    assert {one.batch_id for one in list_batches(only_open=True, store=store)} == {"batch-07", "batch-11"}
    # The open effects, and all effects of the open batches.
    assert counting.read == 3 + 5
    for key in ("x", "y"):
        begin(store, "large", key, "doubt")
    found = find_batches(store, limit=2, only_open=True)
    assert [one.batch_id for one in found.batches] == ["large", "batch-11"]
    large, eleven = found.batches
    assert (large.unknown, large.done, large.uncounted) == (2, 20, True)
    assert (eleven.unknown, eleven.done, eleven.uncounted) == (1, 1, False)
    counts = found.counts
    assert (counts.total, counts.open, counts.in_doubt, counts.effects, counts.more) == (3, 3, 3, 4, False)
    every = find_batches(store, limit=2)
    assert (every.batches[0].done, every.counts.total, every.counts.open) == (60, 41, 3)
    monkeypatch.setattr(listing, "EFFECTS_READ", 3)
    bounded = find_batches(store)
    assert len(bounded.batches) <= 3
    assert (bounded.counts.more, bounded.left_out) == (True, True)


def test_an_unknown_batch_is_compared_with_a_bounded_number(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "NAMED", 10)
    for number in range(30):
        Audit(Ledger(store), f"batch-{number:02}").note("ada", "settle", outcome="settled")
    with pytest.raises(ConfigurationError, match="Did you mean 'batch-07'"):
        check_known(Ledger(store), "batch-x7")
    with pytest.raises(ConfigurationError, match="Check that PREFECT_RESILIENCE_STORE_URL"):
        check_known(Ledger(store), "somewhere else")


def test_pruning_removes_what_is_not_open(store: Store) -> None:
    fill(store)
    planned = prune(timedelta(), dry_run=True, store=store)
    assert prune(timedelta(), store=store) == planned
    assert len(planned) == 39
    assert {one.batch_id for one in list_batches(store=store)} == {"batch-07", "batch-11"}
