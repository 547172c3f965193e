"""Which receiver each client sends to, and the servers that these need."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.durable.effects.ways import clients as http
from tests.durable.effects.ways.clients import Client
from tests.durable.effects.ways.databases import PostgresInsert, PostgresTable, SqliteFile, SqliteInsert
from tests.durable.effects.ways.http_receiver import HttpReceiver
from tests.durable.effects.ways.mail import MailServer, Smtp
from tests.durable.effects.ways.receiver import Receiver

CLIENTS: dict[str, type[Client]] = {
    "httpx": http.Httpx,
    "httpx async": http.HttpxAsync,
    "httpx, a transport that retries": http.HttpxTransportRetries,
    "httpx async, a transport that retries": http.HttpxAsyncTransportRetries,
    "httpx, a loop around it": http.HttpxLoop,
    "openai": http.OpenAI,
    "requests": http.Requests,
    "requests, urllib3 retries": http.RequestsRetrying,
    "requests in asyncio.to_thread": http.RequestsInThread,
    "urllib": http.Urllib,
    "smtplib": Smtp,
    "sqlite3": SqliteInsert,
    "psycopg": PostgresInsert,
}


class Places:
    """Makes receivers. `postgres_url` is called when a way first needs that server."""

    def __init__(self, postgres_url: Callable[[], str]) -> None:
        self._postgres_url = postgres_url
        self._folder = tempfile.TemporaryDirectory(prefix="ways-")

    def receiver(self, client: type[Client]) -> Receiver:
        if client is Smtp:
            return MailServer()
        if client is SqliteInsert:
            return SqliteFile(Path(self._folder.name))
        if client is PostgresInsert:
            return PostgresTable(self._postgres_url())
        return HttpReceiver()

    def receiver_of(self, client: str) -> Receiver:
        return self.receiver(CLIENTS[client])

    def folder(self) -> Path:
        """A new one."""
        return Path(tempfile.mkdtemp(dir=self._folder.name))

    def close(self) -> None:
        self._folder.cleanup()
