"""Databases as receivers: a message is a row, and the rows of a message are how often it was taken."""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psycopg
from psycopg import sql

from tests.durable.effects.ways.clients import Client
from tests.durable.effects.ways.receiver import Receiver, answer_to
from tests.durable.effects.ways.steps import Busy, Cut, Refused, Step
from tests.stores.proxy import Proxy

_numbers = itertools.count(1)


class SqliteFile(Receiver):
    """A table in a file. `Busy`: somebody else holds its lock."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"messages-{next(_numbers)}.db"
        self._own = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self._own.execute("CREATE TABLE messages (message TEXT)")
        super().__init__()

    @property
    def taken(self) -> Counter[str]:
        return Counter(row[0] for row in self._own.execute("SELECT message FROM messages"))

    def play(self, steps: Sequence[Step]) -> None:
        if self._own.in_transaction:
            self._own.execute("ROLLBACK")
        if list(steps) == [Busy()]:
            self._own.execute("BEGIN EXCLUSIVE")

    def close(self) -> None:
        super().close()
        self._own.close()


class SqliteInsert(Client):
    def post(self, message: str) -> str:
        connection = sqlite3.connect(self.world.receiver.path, timeout=0.05)
        try:
            with connection:
                connection.execute("INSERT INTO messages VALUES (?)", (message,))
        finally:
            connection.close()
        return answer_to(message)


class PostgresTable(Receiver):
    """A table of a server, reached through a proxy that cuts the connection at the INSERT."""

    def __init__(self, server_url: str) -> None:
        self.server_url = server_url
        self.table = sql.Identifier(f"ways_{os.getpid()}_{next(_numbers)}")
        self._own = psycopg.connect(server_url, autocommit=True)
        self._own.execute(sql.SQL("CREATE TABLE {} (message text)").format(self.table))
        self._proxy = Proxy(self._own.info.port)
        self._refuses_all = False
        super().__init__()

    @property
    def taken(self) -> Counter[str]:
        rows = self._own.execute(sql.SQL("SELECT message FROM {}").format(self.table)).fetchall()
        return Counter(row[0] for row in rows)

    def play(self, steps: Sequence[Step]) -> None:
        self._refuses_all = list(steps) == [Refused()]
        self._proxy.marker = None
        for step in steps:
            if isinstance(step, Cut):
                taken = step.when == "taken"
                self._proxy.cut = "after" if taken else "before"
                self._proxy.marker = b"COMMIT" if taken else b"INSERT"

    def port(self, dead: int) -> int:
        """Where to connect to; `dead` while nobody is to listen."""
        return dead if self._refuses_all else self._proxy.port

    def close(self) -> None:
        super().close()
        self._proxy.close()
        self._own.execute(sql.SQL("DROP TABLE {}").format(self.table))
        self._own.close()


class PostgresInsert(Client):
    def post(self, message: str) -> str:
        table: PostgresTable = self.world.receiver
        port = table.port(self.world.dead_port)
        with psycopg.connect(table.server_url, host="127.0.0.1", port=port) as connection:
            query = sql.SQL("INSERT INTO {} VALUES (%s)").format(table.table)
            connection.execute(query, (message,))
        return answer_to(message)
