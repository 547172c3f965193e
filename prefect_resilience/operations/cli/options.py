"""The options that several commands share, and the parsing of their values."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from cyclopts import App, Parameter
from pydantic import ValidationError
from pydantic_settings import SettingsError

from prefect_resilience.base.durations import LONGEST, seconds_of
from prefect_resilience.base.edge.settings import circuit_store_url, current_settings
from prefect_resilience.base.text import one_line
from prefect_resilience.errors.exceptions import ConfigurationError, NotRecorded, StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.stores import parse_url

Flag = Annotated[bool, Parameter(show_default=False)]
Json = Annotated[Flag, Parameter(name="--json", help="Print JSON on stdout, and nothing else.")]
Store = Annotated[
    str | None, Parameter(help="The store's URL, as in sqlite:////srv/fleet.db. Default: the configured one.")
]
Yes = Annotated[Flag, Parameter(help="Do not ask for confirmation.")]
DryRun = Annotated[Flag, Parameter(help="Only report what would be done.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Answering:
    """The options of every command on a store."""

    store: Store = None
    json: Json = False


@Parameter(name="*")
@dataclass(frozen=True)
class Asking:
    """The options of a command that asks before it changes a store."""

    dry_run: DryRun = False
    yes: Yes = False
    store: Store = None
    json: Json = False


ANSWERING, ASKING = Answering(), Asking()


def group(name: str, about: str) -> App:
    """The app of a group of commands."""
    return App(name=name, help=about, help_format="plaintext", version_flags=[])


def was(number: int, dry_run: bool) -> str:
    return "would be" if dry_run else "was" if number == 1 else "were"


def check_limit(limit: int) -> None:
    if limit < 1:
        raise ConfigurationError(f"--limit {limit} must be 1 or more")


# -- times


def _time(text: str) -> datetime | timedelta:
    """Parse a span (10m, 1h30m) or a time. Raises ValueError, or OverflowError for a span out of range."""
    written = text.strip()
    seconds = seconds_of(written.lower()) if written[-1:].isalpha() else None
    if seconds is None:
        return datetime.fromisoformat(written.upper())
    if not 0 < seconds <= LONGEST:
        raise OverflowError
    return timedelta(seconds=seconds)


def _moment(option: str, text: str, spans: str, now: datetime, example: datetime) -> datetime | timedelta:
    """The value of an option that is a span or a time. A time without an offset is in the zone of `now`."""
    try:
        found = _time(text)
    except OverflowError:
        raise ConfigurationError(f"{option} {text} must be longer than 0 s and at most ten years") from None
    except ValueError:
        raise ConfigurationError(
            f"{option} {text!r} is not a time: write a span as in {spans}, or a time as in "
            f"{example:%Y-%m-%dT%H:%M}"
        ) from None
    if isinstance(found, datetime) and found.tzinfo is None:
        return found.replace(tzinfo=now.tzinfo)
    return found


def until(text: str, now: datetime) -> datetime | timedelta:
    """The value of `--until`: a span from now, or a time. Raises ConfigurationError for a past time."""
    found = _moment("--until", text, "10m or 1h30m", now, now + timedelta(hours=1))
    if isinstance(found, datetime) and found <= now:
        raise ConfigurationError(f"--until {text} is in the past: write a future time, or leave it out")
    return found


def since(option: str, text: str) -> datetime | timedelta:
    """A span before now ("24h") or a time. A time without an offset is in this host's zone."""
    now = datetime.now().astimezone()
    return _moment(option, text, "24h or 7d", now, now - timedelta(days=1))


# -- stores


def store_url(given: str | None, *, circuits: bool = False) -> str:
    """The URL of `--store`, else the configured one. Raises ConfigurationError if no command can use it."""
    try:
        configured = circuit_store_url if circuits else lambda: current_settings().store_url
        url = configured() if given is None else given
    except (SettingsError, ValidationError) as error:
        raise ConfigurationError(
            f"the settings cannot be read: check the variables PREFECT_RESILIENCE_* ({one_line(error)})"
        ) from None
    parsed = parse_url(url)
    if parsed.kind == "memory":
        raise ConfigurationError(
            f"the store {url} is in the memory of one process, so no command can read it: "
            "pass the fleet's store as --store, or set PREFECT_RESILIENCE_STORE_URL"
        )
    return parsed.canonical


@contextmanager
def explained(url: str) -> Generator[None, None, None]:
    """Re-raise StoreUnavailable with the store's URL, the cause, and what to check."""
    try:
        yield
    except NotRecorded:
        raise
    except StoreUnavailable as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            # The first error of the chain is the driver's.
            cause = cause.__cause__
        advice = (
            "check that it is this fleet's file, that you may read and write it and its folder, "
            "and that no other program has locked it"
            if url.startswith("sqlite")
            else "check that its server runs and can be reached from here, and that the URL is correct"
        )
        why = redact(one_line(cause))
        raise StoreUnavailable(f"the store {redact(url)} is unavailable ({why}): {advice}") from error
