"""A store that 0.1 wrote is read by today's package, and goes on."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from prefect_resilience import (
    Effect,
    InDoubt,
    batch_status,
    dead_letters,
    get_budgets,
    get_circuits,
    list_batches,
    rollback,
)
from tests.stores.migration import jobs

WRITTEN = Path(__file__).parent / "store_0_1.sql"


@pytest.fixture
def old_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of 0.1 as it was on that day; the documents that expire are given the time they had left."""
    connection = sqlite3.connect(tmp_path / "resilience.db")
    connection.executescript(WRITTEN.read_text())
    connection.execute(
        "UPDATE prefect_resilience_documents SET expires_at = unixepoch() + 3600 WHERE expires_at IS NOT NULL"
    )
    connection.commit()
    connection.close()
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"sqlite:///{tmp_path}/resilience.db")
    jobs.SENT.clear()
    jobs.MENDED.clear()


@pytest.mark.usefixtures("old_store")
def test_what_0_1_wrote_is_read():
    states = {circuit.name: circuit.state for circuit in get_circuits()}
    assert states == {"by-hand": "forced_open", "ledger": "half_open", "off": "disabled"}
    (batch,) = list_batches()
    assert (batch.batch_id, batch.done, batch.unknown, batch.open) == (jobs.BATCH, 3, 1, True)
    effects = {effect.key: effect.state for effect in batch_status(jobs.BATCH).effects}
    assert effects["pay:ada"] == effects["book:ada"] == "done"
    assert effects["unclear:bob"] == "unknown"
    (budget,) = get_budgets()
    assert (budget.name, budget.objective) == ("payments", 0.9)
    (letter,) = dead_letters.list()
    assert (letter.name, letter.status, letter.category) == ("accept", "waiting", "unexpected")


@pytest.mark.api
@pytest.mark.usefixtures("old_store")
def test_a_batch_of_0_1_goes_on_and_sends_nothing_twice():
    assert jobs.day(return_state=True).is_failed()
    with pytest.raises(InDoubt, match=r"'jobs\.bill:\w{64}'.* version 0\.1 recorded it.*batches settle"):
        jobs.bill_alone(jobs.bill)
    assert jobs.bill_alone(jobs.bill.with_options(effect=Effect(was="jobs.bill"))) == 7
    assert jobs.book_alone() == "room of ada"
    with pytest.raises(InDoubt, match="unclear:bob"):
        jobs.unclear_alone()
    assert jobs.SENT == []


@pytest.mark.api
@pytest.mark.usefixtures("old_store")
def test_new_effects_are_added_to_a_batch_of_0_1():
    assert jobs.pay_to("cleo") == {"paid": "cleo"}
    with pytest.raises(InDoubt, match=r"version 0\.1 recorded it"):  # 0.1 did not escape the colon
        jobs.pay_to("a:da")
    assert jobs.SENT == ["pay cleo"]


@pytest.mark.api
@pytest.mark.usefixtures("old_store")
def test_a_batch_of_0_1_is_undone():
    assert [one.key for one in rollback(jobs.BATCH).compensated] == ["book:ada"]
    assert jobs.SENT == ["cancel ada"]


@pytest.mark.api
@pytest.mark.usefixtures("old_store")
def test_a_letter_of_0_1_is_replayed():
    jobs.MENDED.append(True)
    (letter,) = dead_letters.list()
    dead_letters.replay(letter.id)
    assert dead_letters.get(letter.id).status == "replayed"
