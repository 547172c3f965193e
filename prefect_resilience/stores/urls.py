"""Which store a URL means. Reads the text only; opens and imports nothing."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.stores.server_urls import POSTGRES, REDIS, read_postgres, read_redis

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
