"""A store that 0.1 wrote is read by today's package, and goes on."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from prefect_resilience import (
    InDoubt,
    NotRecorded,
    batch_status,
    dead_letters,
    get_budgets,
    get_circuits,
    list_batches,
    reopen,
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
    objectives = {budget.name: budget.objective for budget in get_budgets()}
    assert objectives["payments"] == 0.9
    (letter,) = dead_letters.list()
    assert (letter.name, letter.status, letter.category) == ("accept", "waiting", "unexpected")


@pytest.mark.api
@pytest.mark.usefixtures("old_store")
def test_a_batch_of_0_1_stops_until_a_person_reopens_it():
    with pytest.raises(NotRecorded, match=r"a version before 0\.2 recorded its effects.*batches reopen"):
        jobs.pay_to("cleo")
    assert jobs.SENT == []
    reopen(jobs.BATCH)
    assert jobs.book_alone() == "room of ada"
    with pytest.raises(InDoubt, match="unclear:bob"):
        jobs.unclear_alone()
    assert jobs.SENT == []
    assert jobs.pay_to("cleo") == {"paid": "cleo"}


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
