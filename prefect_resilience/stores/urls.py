"""Which store a URL means. Reads the text only; opens and imports nothing."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact

POSTGRES = {"postgresql", "postgres", "postgresql+psycopg"}
REDIS = {"redis", "rediss", "unix"}
REDIS_OPTIONS = {
    "prefix",
    "db",
    "username",
    "password",
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_keyfile",
    "timeout",
}
OURS = {"timeout", "prefix"}
_PREFIX = re.compile(r"[\w.:/-]{1,100}", re.ASCII)


def read_postgres(url: str) -> tuple[str, str, dict[str, str]]:
    """The canonical URL, what libpq is given, and the options; ValueError says what is wrong."""
    split = _split(url)
    if not split.path.strip("/"):
        raise ValueError("it names no database")
    options = _options(split)
    base = f"postgresql://{_authority(split, '5432')}{split.path}"
    own = {name: value for name, value in options.items() if name != "timeout"}
    return _with(base, options), _with(base, own), options


def read_redis(url: str) -> tuple[str, str, dict[str, str]]:
    """The canonical URL, what redis-py is given, and the options; ValueError says what is wrong."""
    split = _split(url)
    options = _options(split)
    if unknown := options.keys() - REDIS_OPTIONS:
        raise ValueError(f"the option {min(unknown)} is not known: {', '.join(sorted(REDIS_OPTIONS))} are")
    if not _PREFIX.fullmatch(options.get("prefix", "p")):
        raise ValueError("its prefix may hold letters, digits and _ . : / - only")
    if split.scheme == "unix":
        if not split.path.strip("/"):
            raise ValueError("it names no socket")
        base = f"unix://{_authority(split, '')}{split.path}"
    else:
        database = split.path.strip("/") or options.pop("db", "0")
        if not database.isdecimal():
            raise ValueError("its path must be the database's number")
        base = f"{split.scheme}://{_authority(split, '6379') or 'localhost'}/{int(database)}"
    own = {name: value for name, value in options.items() if name not in OURS}
    return _with(base, options), _with(base, own), options


def _split(url: str) -> SplitResult:
    split = urlsplit(url)
    if split.fragment or "#" in url or "@" in split.path or "@" in split.query.partition("=")[0]:
        raise ValueError("in its user and password, write @ / ? # percent-encoded, as %40 %2F %3F %23")
    return split


def _authority(split: SplitResult, usual_port: str) -> str:
    """user:password@host:port in one spelling; there may be several hosts."""
    login, at, hosts = split.netloc.rpartition("@")
    user, colon, password = login.partition(":")
    shown = [_host(host, usual_port) for host in hosts.split(",")]
    return f"{_again(user)}{colon}{_again(password)}{at}{','.join(shown)}"


def _host(text: str, usual_port: str) -> str:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        return text.lower()
    if not port.isdecimal():
        raise ValueError("its port is not a number")
    return host.lower() if port == usual_port else f"{host.lower()}:{port}"


def _again(text: str) -> str:
    return quote(unquote(text), safe="")


def _options(split: SplitResult) -> dict[str, str]:
    options = dict(parse_qsl(split.query, keep_blank_values=True))
    timeout = options.get("timeout", "1")
    if not re.fullmatch(r"\d+(\.\d+)?", timeout) or not 0 < float(timeout) <= 300:
        raise ValueError("its timeout must be a number of seconds, at most 300")
    return options


def _with(base: str, options: dict[str, str]) -> str:
    return base + ("?" + urlencode(sorted(options.items()), quote_via=quote) if options else "")


FORMS = (
    "write sqlite:///path/to/file.db for a file, postgresql://user:password@host/database or "
    "redis://host:6379/0 for a server, or memory:// for this process alone"
)


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A URL that was understood.

    `canonical` is the same for every way to write one store (paths are absolute), `path` is the file or
    what the driver is given, `options` are the query's parameters. A server's password is in both: redact
    them before they are shown.
    """

    kind: Literal["memory", "sqlite", "postgresql", "redis"]
    canonical: str
    path: str
    options: dict[str, str]


def parse_url(url: str) -> StoreUrl:
    """What `url` means; ConfigurationError, in one sentence, when it means no store of ours."""
    if not isinstance(url, str) or "://" not in url:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"a store's URL cannot be {_shown(url)}: {FORMS}")
    scheme, rest = url.split("://", 1)
    if scheme == "memory":
        return StoreUrl("memory", f"memory://{rest.strip('/')}", rest.strip("/"), {})
    if scheme == "sqlite":
        return _sqlite(url, rest)
    try:
        if scheme in POSTGRES:
            return StoreUrl("postgresql", *read_postgres(url))
        if scheme in REDIS:
            return StoreUrl("redis", *read_redis(url))
    except ValueError as error:
        raise ConfigurationError(f"the URL {_shown(url)} cannot be meant: {error}; {FORMS}") from None
    raise ConfigurationError(f"no store is known for the URL {_shown(url)}: {FORMS}")


def _sqlite(url: str, rest: str) -> StoreUrl:
    path, _, query = rest.partition("?")
    if not path.startswith("/") or path in {"/", "/:memory:"}:
        raise ConfigurationError(f"the URL {_shown(url)} names no file: {FORMS}")
    options = dict(part.split("=", 1) for part in query.split("&") if "=" in part)
    if query and (set(options) != {"timeout"} or not re.fullmatch(r"\d+(\.\d+)?", options["timeout"])):
        raise ConfigurationError(
            f"the URL {_shown(url)} has an option that is not known: "
            "the only one is timeout, in seconds, as in sqlite:///file.db?timeout=5"
        )
    absolute = os.path.abspath(os.path.expanduser(path[1:]))
    return StoreUrl("sqlite", f"sqlite:///{absolute}{'?' + query if query else ''}", absolute, options)


def _shown(url: object) -> str:
    """`url` for a message, without its password, however that was written."""
    shown = re.sub(r"://.*@", "://***@", repr(url))
    return redact(re.sub(r"(?i)(password=)[^&]*", r"\1***", shown))
