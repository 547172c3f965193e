"""Work that succeeds or fails by itself, whatever transaction it is begun in."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

from prefect.transactions import Transaction


@contextmanager
def outside_transactions() -> Generator[None]:
    """Tasks that begin in this block are in no transaction.

    Within a node they would be in that of the node's task: there one that fails, though another takes over,
    would roll back those that succeeded before it, and the node around them.
    """
    token = Transaction.__var__.set(cast(Any, None))
    try:
        yield
    finally:
        Transaction.__var__.reset(token)
