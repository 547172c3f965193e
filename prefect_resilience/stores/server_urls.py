"""The URLs of stores that are servers: PostgreSQL and Redis. Reads the text only."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

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
