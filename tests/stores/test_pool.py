"""Connections that are kept: who gets which, and what becomes of those that are no good."""

import sqlite3

import pytest

from prefect_resilience.stores.sql import KEPT, MOST, ConnectionPool, Deadline


class Opened:
    """Connections to databases in memory, and whether a pool takes them for usable."""

    def __init__(self) -> None:
        self.all: list[sqlite3.Connection] = []
        self.asked: list[sqlite3.Connection] = []
        self.good = True
        self.deadline = Deadline(0.05)
        self.pool = ConnectionPool(self)  # pyright: ignore[reportArgumentType]

    def connect(self) -> sqlite3.Connection:
        self.all.append(sqlite3.connect(":memory:", check_same_thread=False))
        return self.all[-1]

    def is_usable(self, connection: sqlite3.Connection) -> bool:
        self.asked.append(connection)
        return self.good

    @property
    def open(self) -> int:
        return sum(_is_open(connection) for connection in self.all)


def _is_open(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return False
    return True


def taken(pool: ConnectionPool, number: int) -> None:
    """So many connections at a time, given back in the order in which they were taken."""
    if number:
        with pool.connection():
            taken(pool, number - 1)


def test_a_few_are_kept_and_the_others_closed() -> None:
    opened = Opened()
    taken(opened.pool, MOST)
    assert (len(opened.all), opened.open) == (MOST, KEPT)


def test_one_more_than_there_may_be_waits_and_gives_up() -> None:
    opened = Opened()
    with pytest.raises(TimeoutError, match=r"10 connections were in use for 0\.05 s"):
        taken(opened.pool, MOST + 1)
    taken(opened.pool, MOST)  # every place was given back


def test_a_block_that_raises_closes_its_connection() -> None:
    opened = Opened()
    with pytest.raises(ZeroDivisionError), opened.pool.connection():
        raise ZeroDivisionError
    assert opened.open == 0
    taken(opened.pool, 1)
    assert opened.open == 1


def test_a_connection_that_comes_back_to_a_closed_pool_is_closed() -> None:
    opened = Opened()
    with opened.pool.connection():
        opened.pool.close()
        assert opened.open == 1
    assert opened.open == 0
