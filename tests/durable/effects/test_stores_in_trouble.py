"""A store that is full, may only be read, or is gone: nothing is sent, the error says what to do, and
whatever else there is goes on."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prefect import flow

from prefect_resilience import Backoff, NotRecorded, NotSent, Retry, StoreUnavailable, resilient_task
from prefect_resilience.durable.effects import ledger
from prefect_resilience.effects import Effect, batch, batch_status
from prefect_resilience.errors.exceptions import InDoubt
from prefect_resilience.stores import open_store
from tests.durable.effects.receiver import Receiver

pytestmark = pytest.mark.api

Trouble = Callable[[], Any]


@dataclass
class Home:
    """A store, and a trouble that it gets into, of which the error says `words`. `readable`: it answers."""

    url: str
    trouble: Trouble
    words: str
    readable: bool = True


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """This process may write no file beyond half of what the store's has come to: as with a quota."""
    size = Path(f"{path}-wal").stat().st_size // 2
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def read_only_file(path: Path) -> Iterator[None]:
    """By SQLite's format, a file whose write version is not known may be read only: by root, too."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    locked = path.parent.with_name("locked")
    locked.mkdir()
    bytes_of = bytearray(path.read_bytes())
    bytes_of[18] = 3
    (locked / path.name).write_bytes(bytes_of)
    with in_place_of(path.parent, locked):
        yield


@contextmanager
def in_place_of(folder: Path, other: Path) -> Iterator[None]:
    """Another folder, or file, stands where a folder was."""
    away = folder.with_name("away")
    folder.rename(away)
    other.rename(folder)
    try:
        yield
    finally:
        folder.rename(other)
        away.rename(folder)


@contextmanager
def gone(path: Path) -> Iterator[None]:
    file = path.parent.with_name("file")
    file.write_text("a file where a folder should be")
    with in_place_of(path.parent, file):
        yield


@contextmanager
def stopped(server: Any) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


@contextmanager
def full_memory(server: Any) -> Iterator[None]:
    server.client().config_set("maxmemory-policy", "noeviction")
    server.client().config_set("maxmemory", "100kb")
    try:
        yield
    finally:
        server.client().config_set("maxmemory", "0")


@contextmanager
def read_only_database(server: Any) -> Iterator[None]:
    import psycopg

    def set_to(value: str) -> None:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(f"ALTER ROLE tester SET default_transaction_read_only = {value}".encode())

    set_to("on")
    # Sessions that are open already do not come to know of it.
    server.stop()
    server.start()
    try:
        yield
    finally:
        set_to("off")


TROUBLES: dict[str, tuple[Callable[[Any], Any], str, bool]] = {
    "sqlite-full": (full_disk, "its disk is full, over its quota or failing: free some space", True),
    "sqlite-read-only": (read_only_file, "it is read-only: give this program write access", True),
    "sqlite-gone": (gone, "give this program write access, or set another store", False),
    "postgres-read-only": (read_only_database, "it is read-only", True),
    "redis-full": (full_memory, "give Redis more memory", True),
    "redis-gone": (stopped, "start it, or correct its address", False),
}


@pytest.fixture
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    name: str = request.param
    make, words, readable = TROUBLES[name]
    kind = name.partition("-")[0]
    if kind == "sqlite":
        path = tmp_path / "store" / "effects.db"
        found = Home(f"sqlite:///{path}?timeout=0.2", lambda: make(path), words, readable)
    else:
        server = request.getfixturevalue(f"own_{kind}")
        found = Home(server.url(timeout=2), lambda: make(server), words, readable)
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", found.url)
    monkeypatch.setattr(ledger, "RECORD_FOR", 0.3)
    store = open_store(found.url)
    store.swap("filling", 0, "x" * 2_000_000)
    yield found
    store.close()


@pytest.fixture
def send(post: Any) -> Any:
    # Connections that were opened while there was trouble may bear marks of it.
    @resilient_task(effect=Effect(key="{order}"), retry=Retry(attempts=2, backoff=Backoff.none()))
    def send(order: int) -> str:
        return post()

    return send


@pytest.mark.parametrize("home", TROUBLES, indirect=True)
def test_nothing_is_sent_and_nothing_else_is_held_up(home: Home, send: Any, receiver: Receiver) -> None:
    again = send.with_options(effect=Effect(kind="idempotent", key="{order}"))
    plain = send.with_options(effect=None)

    @flow
    def scenario(*calls: tuple[Any, int]) -> list[Any]:
        with batch("b"):
            return [task(order, return_state=True) for task, order in calls]

    assert scenario((send, 1))[0].name == "Completed"
    with home.trouble():
        new, done, idempotent, no_effect = scenario((send, 2), (send, 1), (again, 3), (plain, 4))
    with pytest.raises(NotRecorded, match="nothing was sent: ") as caught:
        new.result()
    assert home.words in str(caught.value)
    assert isinstance(caught.value, NotSent)
    assert isinstance(caught.value, StoreUnavailable)
    assert receiver.taken["2"] == 0
    if home.readable:
        assert (done.name, done.result()) == ("Replayed", "m-1")
    else:
        assert isinstance(done.result(raise_on_failure=False), NotRecorded)
    assert idempotent.is_completed()
    assert no_effect.is_completed()
    # Mended, the same batch goes on, and nothing that was done is done again.
    states = scenario((send, 1), (send, 2))
    assert [(state.name, state.result()) for state in states] == [("Replayed", "m-1"), ("Completed", "m-2")]
    assert (receiver.taken["1"], receiver.taken["2"]) == (1, 1)


@pytest.mark.parametrize("home", ["sqlite-full", "redis-full"], indirect=True)
def test_between_the_intention_and_the_record(home: Home, send: Any, receiver: Receiver, until: Any) -> None:
    """What cannot be recorded is not handed on; as soon as it can be, it is replayed."""
    trouble = home.trouble()

    def happens(key: str) -> int:
        trouble.__enter__()
        return 200

    @flow
    def scenario() -> Any:
        with batch("b"):
            return [send(1, return_state=True)]

    receiver.says(happens)
    try:
        (first,) = scenario()
    finally:
        trouble.__exit__(None, None, None)
    with pytest.raises(InDoubt, match="it was done, but its outcome could not be recorded"):
        first.result()
    until(lambda: batch_status("b").effects[0].state == "done")
    assert (scenario()[0].name, receiver.taken) == ("Replayed", {"1": 1})
