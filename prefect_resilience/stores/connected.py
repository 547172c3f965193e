"""What stores share: checked keys, values as text, scans in pages, and connections."""

from __future__ import annotations

import json
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from prefect_resilience.base.process import in_forked_child
from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.stores.base import Document, News

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


class CheckedStore(ABC):
    """A store that checks keys and encodes values, before it hands them to `_swap`, `_delete` and `_read`.

    `most` limits the size of a page.
    """

    most: int = 50_000

    def __init__(self, url: str) -> None:
        self.url = url
        self.closed: bool = False
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
        request = Swap(check_key(key), expected_version, encode(value), expires_at, open, publish)
        return self._swap(request) if 0 <= expected_version <= GREATEST_VERSION else 0

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

    def check_open(self) -> None:
        """Raise StoreUnavailable if the store has been closed."""
        if self.closed:
            raise StoreUnavailable(redact(f"the store {self.url} has been closed"))

    def after_fork(self) -> None:
        """In a child process: make locks that no thread of the parent holds."""
        self._lock = threading.Lock()

    def _scan(self, prefix: str, after: str | None, limit: int, only_open: bool) -> Found:
        check_text(prefix)
        # No key contains a NUL, so the same keys follow a text as follow its part before the first one.
        start = "" if after is None else check_text(after).partition("\0")[0]
        beyond = after is not None and start >= prefix
        page = Page(prefix, start if beyond else prefix, beyond, min(limit, self.most), only_open)
        entries, last = self._read(page) if limit > 0 and "\0" not in prefix else ([], None)
        while last is not None and len(entries) < limit:
            # Ended documents may be in the way: more at once.
            page = page._replace(start=last, beyond=True, size=min(self.most, 8 * page.size))
            documents, last = self._read(page)
            entries += documents
        return entries[:limit]

    @abstractmethod
    def _swap(self, asked: Swap) -> int:
        """`Store.swap`."""

    @abstractmethod
    def _delete(self, key: str, expected_version: int) -> bool:
        """`Store.delete`."""

    @abstractmethod
    def _read(self, page: Page) -> tuple[Found, str | None]:
        """The live documents of a page, and its last key if there may be more after it."""


class ConnectedStore(CheckedStore, Generic[T]):
    """A store that keeps connections. It opens them at the first use, and opens new ones after an error.

    `T` is the object that holds them: a pool or a client. `errors` are the driver's exceptions.
    """

    errors: tuple[type[Exception], ...] = ()

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._held: T | None = None

    def close(self) -> None:
        """Close the connections of this process."""
        self.closed = True
        self._let_go()

    @abstractmethod
    def open_connections(self) -> T:
        """New connections; may raise the driver's errors."""

    def _borrow(self, held: T) -> AbstractContextManager[Any]:
        """What an operation works with. After an error, other threads keep theirs."""
        return nullcontext(held)

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

    def _connect(self) -> T:
        if self.closed:  # asked here too: each operation passes here, and a call takes longer
            self.check_open()
        held = self._held
        if held is None or self._is_stale():
            with self._lock:
                held = self._held
                if held is None or self._is_stale():
                    held = self._held = self.open_connections()
        return held

    def _let_go(self) -> T | None:
        """Remove and return the connections; the next operation opens new ones."""
        with self._lock:
            held, self._held = self._held, None
        return held

    @contextmanager
    def translating(self) -> Generator[None]:
        """An operation on a connection of its own. The driver's errors become StoreUnavailable."""
        self.begin()
        try:
            yield
        except (OSError, *self.errors) as error:
            raise self.unavailable(error) from error

    def unavailable(self, error: Exception) -> StoreUnavailable:
        """The driver's error as one of ours."""
        return StoreUnavailable(redact(f"the store {self.url} could not answer: {error}"))

    def after_fork(self) -> None:
        """In a child process: keep a reference to the parent's connections, so that nothing closes them."""
        super().after_fork()
        _left_to_parents.append(self._held)
        self._held = None


S = TypeVar("S", bound=ConnectedStore[Any])


class ConnectedWatch(ABC, Generic[S]):
    """A watch over a connection of its own. The driver's errors become StoreUnavailable."""

    def __init__(self, store: S, prefix: str) -> None:
        self._store = store
        self._prefix = check_text(prefix)
        self._connection: Any = None
        self.closed: bool = False
        store.check_open()
        try:
            with store.translating():
                self._begin()
        except BaseException:
            self.close()
            raise

    def wait(self, seconds: float) -> list[News]:
        """The changes since the last call, as `Watch.wait`."""
        with self._store.translating():
            return self._wait(seconds)

    def close(self) -> None:
        """Stop watching."""
        self.closed = True
        if self._connection is not None:
            with suppress(OSError, *self._store.errors):
                self._connection.close()

    @abstractmethod
    def _begin(self) -> None:
        """Set `_connection`, and begin to watch."""

    @abstractmethod
    def _wait(self, seconds: float) -> list[News]:
        """The changes since the last call."""


_stores: weakref.WeakSet[CheckedStore] = weakref.WeakSet()
_left_to_parents: list[Any] = []


@in_forked_child
def _after_fork() -> None:
    for store in list(_stores):
        store.after_fork()


# -- keys and values as text

LONGEST_KEY = 2_000
"""Bytes of UTF-8; the limit of PostgreSQL's index is a little higher."""


def encode(value: Any) -> str:
    """`value` as JSON text that `decode` turns into an equal value.

    Raises TypeError for a value that is not JSON (a tuple, a set, a key that is not a string). Raises
    ValueError for NaN, infinities, and nesting or integers that Python's JSON cannot read back.
    """
    try:
        text = _dump(value)
        is_same = json.loads(text) == value
    except RecursionError:
        raise ValueError("a stored value is nested too deeply for JSON (or contains itself)") from None
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"a stored value must be JSON: {error}") from None
    if not is_same:
        raise TypeError("a stored value must be JSON: lists instead of tuples, and strings as keys")
    return text


_dump = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":")).encode


def read_document(text: str, key: str) -> Document:
    """The document under `key` as Redis keeps and PostgreSQL sends it: "version expires_at json".

    Raises ValueError when the text has another form.
    """
    version, expires_at, value = text.split(" ", 2)
    return Document(decode(value, key), int(version), None if expires_at == "-" else float(expires_at))


def news_of(key: str, text: str) -> list[News]:
    """The change that a swap published, as `read_document` reads it; none if the message is not ours."""
    try:
        return [News(key, read_document(text, key))]
    except (ValueError, StoreUnavailable):
        return []


def decode(text: str, key: str) -> Any:
    """The value that `encode` wrote. Raises StoreUnavailable when the text under `key` is damaged."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise StoreUnavailable(f"the document under {key!r} is no longer valid JSON") from None


def check_key(key: str) -> str:
    """Return `key` if every store can hold it. Raises TypeError or ValueError otherwise."""
    if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a key must be a string, not {type(key).__name__}")
    if not key or "\0" in key:
        raise ValueError(f"a key must not be empty or contain NUL characters: {key!r}")
    if len(check_text(key).encode()) > LONGEST_KEY:
        raise ValueError(f"a key may have at most {LONGEST_KEY:,} bytes: {key[:50]!r}...")
    return key


def check_text(text: str) -> str:
    """Return `text` if it can be written as UTF-8. Raises ValueError for a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"a key must be valid UTF-8: {text!r}") from None
    return text


def prefix_end(prefix: str) -> str | None:
    """The first string, by code points, after all strings that start with `prefix`; None if there is none."""
    while prefix:
        last = ord(prefix[-1])
        if last < sys.maxunicode:
            following = last + 1
            # Surrogates are not valid text: the next code point after U+D7FF is U+E000.
            return prefix[:-1] + chr(0xE000 if 0xD800 <= following <= 0xDFFF else following)
        prefix = prefix[:-1]
    return None
