"""What all stores share that keep connections, and all watches of them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, suppress
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from prefect_resilience.base.process import in_forked_child
from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.stores.base import Document, check_key, check_text, encode, read_document
from prefect_resilience.stores.watching import News

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
Found = list[tuple[str, Document]]

GREATEST_VERSION = 2**63 - 2
"""The version after this one still fits into 64 bits."""


class Swap(NamedTuple):
    """What `Store.swap` is asked for, checked and encoded."""

    key: str
    expected_version: int
    text: str
    expires_at: float | None
    open: bool
    publish: bool


class Page(NamedTuple):
    """What a scan reads at once: up to `size` keys with a prefix, from `start`, or only those `beyond` it.

    The keys of documents that have ended count, so that a page takes a bounded time.
    """

    prefix: str
    start: str
    beyond: bool
    size: int
    only_open: bool


class ConnectedStore(Generic[T]):
    """A store that keeps connections. It opens them at the first use, and opens new ones after an error.

    `T` is the object that holds them: a pool or a client. A store has `_swap`, `_delete` and `_read`, which
    get arguments that are checked. `errors` are the driver's exceptions; `most` limits the size of a page.
    """

    errors: tuple[type[Exception], ...] = ()
    most: int = 50_000

    def __init__(self, url: str) -> None:
        self.url = url
        self.closed: bool = False
        self._held: T | None = None
        self._lock = threading.Lock()
        _stores.add(self)

    def swap(
        self,
        key: str,
        expected_version: int,
        value: Any,
        expires_at: float | None = None,
        open: bool = False,
        publish: bool = False,
    ) -> int:
        """Write if the key still has `expected_version` (0: does not exist); the new version, or 0."""
        asked = Swap(check_key(key), expected_version, encode(value), expires_at, open, publish)
        return self._swap(asked) if 0 <= expected_version <= GREATEST_VERSION else 0

    def delete(self, key: str, expected_version: int) -> bool:
        """Remove the document if it still has `expected_version`."""
        check_key(key)
        return 0 < expected_version <= GREATEST_VERSION and self._delete(key, expected_version)

    def scan(self, prefix: str, after: str | None = None, limit: int = 100) -> list[tuple[str, Document]]:
        """Up to `limit` live documents with keys that start with `prefix` and follow `after`, by key."""
        return self._scan(prefix, after, limit, only_open=False)

    def scan_open(
        self, prefix: str, after: str | None = None, limit: int = 100
    ) -> list[tuple[str, Document]]:
        """As `scan`, only documents that are open, or that an older version wrote."""
        return self._scan(prefix, after, limit, only_open=True)

    def close(self) -> None:
        """Close the connections of this process."""
        self.closed = True
        self._let_go()

    def _scan(self, prefix: str, after: str | None, limit: int, only_open: bool) -> Found:
        check_text(prefix)
        # No key contains a NUL, so the same keys follow a text as follow its part before the first one.
        start = "" if after is None else check_text(after).partition("\0")[0]
        beyond = after is not None and start >= prefix
        page = Page(prefix, start if beyond else prefix, beyond, min(limit, self.most), only_open)
        found, last = self._read(page) if limit > 0 and "\0" not in prefix else ([], None)
        while last is not None and len(found) < limit:
            # Ended documents may be in the way: more at once.
            page = page._replace(start=last, beyond=True, size=min(self.most, 8 * page.size))
            documents, last = self._read(page)
            found += documents
        return found[:limit]

    def _swap(self, asked: Swap) -> int:
        raise NotImplementedError

    def _delete(self, key: str, expected_version: int) -> bool:
        raise NotImplementedError

    def _read(self, page: Page) -> tuple[Found, str | None]:
        """The live documents of a page, and its last key if there may be more after it."""
        raise NotImplementedError

    def _open(self) -> T:
        """New connections; may raise the driver's errors."""
        raise NotImplementedError

    def _borrow(self, held: T) -> AbstractContextManager[Any]:
        """What an operation works with."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin an operation in this thread; a store may start its deadline."""

    def _is_stale(self) -> bool:
        """Whether the database of the connections has been deleted or replaced."""
        return False

    def using(self, work: Callable[Concatenate[Any, P], R], *given: P.args, **named: P.kwargs) -> R:
        """The result of `work` with a connection. The driver's errors become StoreUnavailable."""
        self.begin()
        try:
            with self._borrow(self._connect()) as connection:
                return work(connection, *given, **named)
        except (OSError, *self.errors) as error:
            # The state of the connections is unknown, so the next operation opens new ones.
            self._let_go()
            raise self.unavailable(error) from error

    def check_open(self) -> None:
        """Raise StoreUnavailable if the store has been closed."""
        if self.closed:
            raise StoreUnavailable(redact(f"the store {self.url} has been closed"))

    def _connect(self) -> T:
        self.check_open()
        held = self._held
        if held is None or self._is_stale():
            with self._lock:
                held = self._held
                if held is None or self._is_stale():
                    held = self._held = self._open()
        return held

    def _let_go(self) -> T | None:
        """Remove and return the connections; the next operation opens new ones."""
        with self._lock:
            held, self._held = self._held, None
        return held

    def unavailable(self, error: Exception) -> StoreUnavailable:
        """The driver's error as one of ours."""
        return StoreUnavailable(redact(f"the store {self.url} could not answer: {error}"))

    def after_fork(self) -> None:
        """In a child process: keep a reference to the parent's connections, so that nothing closes them."""
        _left_to_parents.append(self._held)
        self._held, self._lock = None, threading.Lock()


_stores: weakref.WeakSet[ConnectedStore[Any]] = weakref.WeakSet()
_left_to_parents: list[Any] = []


@in_forked_child
def _after_fork() -> None:
    for store in list(_stores):
        store.after_fork()


S = TypeVar("S", bound=ConnectedStore[Any])


class ConnectedWatch(Generic[S]):
    """A watch over a connection of its own. The driver's errors become StoreUnavailable.

    A watch has `_begin`, which sets `_connection`, `_wait` and `_follow`.
    """

    def __init__(self, store: S, prefix: str) -> None:
        self._store = store
        self._prefix = check_text(prefix)
        self._connection: Any = None
        self.closed: bool = False
        store.check_open()
        store.begin()
        try:
            self._translate(self._begin)
        except BaseException:
            self.close()
            raise

    def wait(self, seconds: float) -> list[News]:
        """The changes since the last call, as `Watch.wait`."""
        return self._translate(self._wait, seconds)

    def follow(self, keys: Collection[str]) -> None:
        """Only the changes of these keys, as `Watch.follow`."""
        self._translate(self._follow, keys)

    def close(self) -> None:
        """Stop watching."""
        self.closed = True
        if self._connection is not None:
            with suppress(OSError, *self._store.errors):
                self._connection.close()

    def _translate(self, work: Callable[..., R], *arguments: Any) -> R:
        try:
            return work(*arguments)
        except (OSError, *self._store.errors) as error:
            raise self._store.unavailable(error) from error

    def _begin(self) -> None:
        raise NotImplementedError

    def _wait(self, seconds: float) -> list[News]:
        raise NotImplementedError

    def _follow(self, keys: Collection[str]) -> None:
        raise NotImplementedError


def news_of(key: str, text: str) -> list[News]:
    """The change that a swap published, as `read_document` reads it; none if the message is not ours."""
    try:
        return [News(key, read_document(text, key))]
    except (ValueError, StoreUnavailable):
        return []
