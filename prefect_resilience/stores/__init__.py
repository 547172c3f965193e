"""Stores: versioned JSON documents with compare-and-swap, in memory, SQLite, PostgreSQL or Redis; by URLs."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from prefect_resilience.base.process import per_process
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.stores.base import Document, Store
from prefect_resilience.stores.memory import MemoryStore

__all__ = ["Document", "MemoryStore", "Store", "StoreUrl", "open_store", "parse_url"]

_opened: dict[str, MemoryStore | Store] = {}
_DRIVERS = {"postgresql": ("psycopg 3", "postgres"), "redis": ("redis-py", "redis")}
"""The library that a kind of store needs, and the extra that installs it."""


class _Opening:
    def __init__(self) -> None:
        self.lock = threading.Lock()


_opening = per_process(_Opening)


def open_store(url: str) -> Store:
    """The store at `url`, one object per URL in this process: "sqlite:///path/to/file.db", "memory://",
    "postgresql://user:password@host/database", "redis://host:6379/0".

    Does not connect yet: if the database is unavailable, the first operation fails. Raises
    ConfigurationError for an invalid URL, and if the database's driver is not installed.

    Example:
        >>> store = open_store("memory://greetings")
        >>> version = store.swap("greeting", 0, {"text": "hello"})  # 0: must not exist
        >>> store.load("greeting").value
        {'text': 'hello'}
    """
    store = _opened.get(url) if isinstance(url, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if store is not None and not getattr(store, "closed", False):
        return store
    parsed = parse_url(url)
    with _opening.lock:
        store = _opened.get(parsed.canonical)
        if store is None or getattr(store, "closed", False):
            store = _opened[parsed.canonical] = _open(parsed)
        return store


def _open(parsed: StoreUrl) -> Store:
    try:
        if parsed.kind == "postgresql":
            from prefect_resilience.stores.postgres import PostgresStore

            return PostgresStore(parsed)
        if parsed.kind == "redis":
            from prefect_resilience.stores.redis import RedisStore

            return RedisStore(parsed)
    except ImportError as error:
        name, extra = _DRIVERS[parsed.kind]
        raise ConfigurationError(
            f"this store needs {name}, which cannot be imported here ({error}): "
            f"pip install 'prefect-resilience[{extra}]'"
        ) from error
    if parsed.kind == "memory":
        return MemoryStore(parsed.canonical)
    from prefect_resilience.stores.sqlite import SqliteStore

    return SqliteStore(parsed)


# -- the URLs of stores: parsing opens and imports nothing

REDIS_OPTIONS = {
    *("prefix", "timeout", "db", "username", "password", "ssl_ca_certs", "ssl_ca_path", "ssl_cert_reqs"),
    *("ssl_certfile", "ssl_check_hostname", "ssl_keyfile"),
}
FORMS = (
    "write sqlite:///path/to/file.db for a file, postgresql://user:password@host/database or "
    "redis://host:6379/0 for a server, or memory:// for this process alone"
)


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A parsed URL.

    `canonical` is the same for every spelling of one store's URL (paths are absolute). `path` is the file, or
    the URL for the driver. `options` are the query's parameters. `canonical` and `path` contain a server's
    password: redact them before you show them.
    """

    kind: Literal["memory", "sqlite", "postgresql", "redis"]
    canonical: str
    path: str
    options: dict[str, str]

    @property
    def seconds(self) -> float:
        """The `timeout` of an operation: by default 3 s, and 5 s for a file's lock."""
        return float(self.options.get("timeout", 5.0 if self.kind == "sqlite" else 3.0))


def parse_url(url: str) -> StoreUrl:
    """Parse `url`. Raises ConfigurationError, in one sentence, when it is not the URL of a store."""
    if not isinstance(url, str) or "://" not in url:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"{_show(url)} is not the URL of a store: {FORMS}")
    read = _READERS.get(url.partition("://")[0])
    if read is None:
        raise ConfigurationError(f"no store has URLs such as {_show(url)}: {FORMS}")
    try:
        return read(url)
    except ValueError as error:
        raise ConfigurationError(f"the URL {_show(url)} is invalid: {error}; {FORMS}") from None


def _memory(url: str) -> StoreUrl:
    name = url.partition("://")[2].strip("/")
    return StoreUrl("memory", f"memory://{name}", name, {})


def _sqlite(url: str) -> StoreUrl:
    path, _, query = url.partition("://")[2].partition("?")
    if not path.startswith("/") or path in {"/", "/:memory:"}:
        raise ValueError("the path of the file is missing")
    options = _options(query, {"timeout"})
    absolute = os.path.abspath(os.path.expanduser(path[1:]))
    return StoreUrl("sqlite", _with_options(f"sqlite:///{absolute}", options), absolute, options)


def _postgres(url: str) -> StoreUrl:
    split = _split(url)
    if not split.path.strip("/"):
        raise ValueError("the name of the database is missing")
    base = f"postgresql://{_authority(split, '5432')}{split.path}"
    return _server("postgresql", base, _options(split.query))


def _redis(url: str) -> StoreUrl:
    split = _split(url)
    options = _options(split.query, REDIS_OPTIONS)
    if not re.fullmatch(r"[\w.:/-]{1,100}", options.get("prefix", "p"), re.ASCII):
        raise ValueError("the prefix may contain only letters, digits and _ . : / -")
    path = split.path.strip("/")
    if split.scheme == "unix":
        if not path:
            raise ValueError("the path of the socket is missing")
        return _server("redis", f"unix://{_authority(split, '')}{split.path}", options)
    database = path or options.pop("db", "0")
    if not database.isdecimal():
        raise ValueError("the database must be a number, as in redis://host:6379/0")
    host = _authority(split, "6379") or "localhost"
    return _server("redis", f"{split.scheme}://{host}/{int(database)}", options)


def _server(kind: Literal["postgresql", "redis"], base: str, options: dict[str, str]) -> StoreUrl:
    """The URL of a server; `path` is without our own options, which the driver does not know."""
    ours = ("timeout", "prefix") if kind == "redis" else ("timeout",)
    theirs = {name: value for name, value in options.items() if name not in ours}
    return StoreUrl(kind, _with_options(base, options), _with_options(base, theirs), options)


_READERS: dict[str, Callable[[str], StoreUrl]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    **dict.fromkeys(("postgresql", "postgres", "postgresql+psycopg"), _postgres),
    **dict.fromkeys(("redis", "rediss", "unix"), _redis),
}


def _split(url: str) -> SplitResult:
    split = urlsplit(url)
    if split.fragment or "#" in url or "@" in split.path or "@" in split.query.partition("=")[0]:
        raise ValueError("percent-encode @ / ? # in the user and the password, as %40 %2F %3F %23")
    return split


def _authority(split: SplitResult, usual_port: str) -> str:
    """user:password@host:port in canonical form; there may be several hosts."""
    login, at, hosts = split.netloc.rpartition("@")
    if not re.fullmatch(r"((\[[^]]*\]|[^:,]*)(:\d+)?(,|$))*", hosts):
        raise ValueError("the port is not a number")
    shown = ":".join(quote(unquote(part), safe="") for part in login.split(":", 1))
    return f"{shown}{at}{re.sub(rf':{usual_port}(?=,|$)', '', hosts.lower())}"


def _options(query: str, allowed: Collection[str] = ()) -> dict[str, str]:
    """The parameters of a query. Without `allowed` the driver judges them."""
    options = dict(parse_qsl(query, keep_blank_values=True))
    if allowed and (unknown := options.keys() - allowed):
        raise ValueError(f"unknown option {min(unknown)}; write one of {', '.join(sorted(allowed))}")
    timeout = options.get("timeout", "1")
    if not re.fullmatch(r"\d+(\.\d+)?", timeout) or not 0 < float(timeout) <= 300:
        raise ValueError("the timeout must be a number of seconds, at most 300")
    return options


def _with_options(base: str, options: dict[str, str]) -> str:
    return base + ("?" + urlencode(sorted(options.items()), quote_via=quote) if options else "")


def _show(url: object) -> str:
    """`url` for a message, without its password, in any place of the URL."""
    shown = re.sub(r"://.*@", "://***@", repr(url))
    return redact(re.sub(r"(?i)(password=)[^&]*", r"\1***", shown))
