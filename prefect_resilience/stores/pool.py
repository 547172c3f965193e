"""Connections to a database that are kept for the next operation, the one used last first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

KEPT = 5
MOST = 10
"""So many connections of one process at a time; who needs one more waits."""

Connection = Any
"""The driver's own. Both drivers of ours take `connection.execute(text, parameters)` and return a cursor."""


class Pool:
    """`connect` makes a connection, `usable` says whether one that was kept is still good.

    `patience` is in seconds; TimeoutError when all connections are in use for longer.
    """

    def __init__(
        self, connect: Callable[[], Connection], usable: Callable[[Connection], bool], patience: float
    ) -> None:
        self._connect = connect
        self._usable = usable
        self._patience = patience
        self._idle: list[Connection] = []
        self._places = threading.Semaphore(MOST)
        self._closed = False

    @contextmanager
    def connection(self) -> Generator[Connection]:
        """A connection that nobody else uses meanwhile. It is closed when the block raises: nobody knows how
        far it got."""
        if not self._places.acquire(timeout=self._patience):
            raise TimeoutError(f"its {MOST} connections were in use for {self._patience:g} s")
        try:
            connection = self._kept() or self._connect()
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            if self._closed or len(self._idle) >= KEPT:
                connection.close()
            else:
                self._idle.append(connection)
        finally:
            self._places.release()

    def close(self) -> None:
        """Close what is kept now, and what is in use when it comes back."""
        self._closed = True
        self._close_idle()

    def _kept(self) -> Connection | None:
        # Appending and popping are atomic: each connection has one taker.
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if self._usable(connection):
                return connection
            connection.close()
            self._close_idle()  # the others were used earlier, and are no better
        return None

    def _close_idle(self) -> None:
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                return
