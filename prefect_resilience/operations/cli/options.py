"""The options that several commands share, and the parsing of their values."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter, validators
from pydantic_core import from_json
from rich.console import RenderableType

from prefect_resilience.base.durations import LONGEST, seconds_of
from prefect_resilience.base.edge.current_settings import circuit_store_url, current_settings
from prefect_resilience.base.text import one_line, plural
from prefect_resilience.errors.exceptions import ConfigurationError, NotRecorded, StoreUnavailable
from prefect_resilience.operations.cli import look
from prefect_resilience.stores import parse_url

T = TypeVar("T")
Flag = Annotated[bool, Parameter(show_default=False)]
Json = Annotated[Flag, Parameter(name="--json", help="Print JSON on stdout, and nothing else.")]
Store = Annotated[
    str | None, Parameter(help="The store's URL, as in sqlite:////srv/fleet.db. Default: the configured one.")
]
Limit = Annotated[int, Parameter(validator=validators.Number(gte=1))]
Yes = Annotated[Flag, Parameter(help="Do not ask for confirmation.")]
Reason = Annotated[str | None, Parameter(help="The reason, for the audit log.")]
DryRun = Annotated[Flag, Parameter(help="Only report what would be done.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Answering:
    """The options of every command on a store."""

    store: Store = None
    json: Json = False

    @contextmanager
    def at_store(self, *, circuits: bool = False) -> Generator[str, None, None]:
        """The URL of the store. Inside, StoreUnavailable says what to check."""
        url = store_url(self.store, circuits=circuits)
        try:
            yield url
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
            why = one_line(cause)
            raise StoreUnavailable(f"the store {url} is unavailable ({why}): {advice}") from error

    def answer(self, value: Any, *parts: RenderableType) -> int:
        """Print the answer as JSON or as text, and return exit code 0."""
        return look.answer(value, *parts, json=self.json)


@Parameter(name="*")
@dataclass(frozen=True)
class Asking(Answering):
    """The options of a command that asks a person before it changes several things."""

    yes: Yes = False

    def confirm(
        self, deed: str, columns: look.Columns | None = None, items: Sequence[Any] = (), number: int = 0
    ) -> None:
        """Ask a person about the deed, unless --yes confirms it. Raises ConfigurationError for no."""
        if not self.yes:
            look.confirm(deed, columns, items, number)


@Parameter(name="*")
@dataclass(frozen=True)
class Planning(Asking):
    """The options of a command that can say what it would change."""

    dry_run: DryRun = False

    def sweep(
        self,
        verb: str,
        noun: str,
        several: str,
        columns: look.Columns,
        work: Callable[..., Iterable[T]],
    ) -> tuple[list[T], str]:
        """Preview what `work(dry_run=True)` yields, ask, and do it.

        Returns its items (without --json only the first ones) and a sentence.
        """
        items, number = self._take(work(dry_run=True))
        if number and not self.dry_run:
            self.confirm(f"{verb} {plural(number, noun, several)}", columns, items, number)
            items, number = self._take(work())
        was = "would be" if self.dry_run else "was" if number == 1 else "were"
        return items, f"{plural(number, noun, several)} {was} {verb}d."

    def _take(self, items: Iterable[T]) -> tuple[list[T], int]:
        """The items, or the first ones of very many, and their number."""
        rest = iter(items)
        first = list(islice(rest, None if self.json else look.ASKED_ABOUT))
        return first, len(first) + sum(1 for _ in rest)


@Parameter(name="*")
@dataclass(frozen=True)
class Recovering(Planning):
    """The options of every command that recovers, rolls back or abandons a batch."""

    reason: Reason = None
    force: Annotated[
        Flag,
        Parameter(help="Also if Prefect shows the run as running. Only if its process has certainly ended."),
    ] = False


ANSWERING, ASKING, PLANNING, RECOVERING = Answering(), Asking(), Planning(), Recovering()


def pairs(option: str, texts: Iterable[str], example: str) -> dict[str, str]:
    """The values of an option that is repeated, by their names: --set a=1 --set b=2."""
    values: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise ConfigurationError(f"{option} {text!r} must be {example}")
        if name.strip() in values:
            raise ConfigurationError(f"{option} {name.strip()}=... is given twice: give each once")
        values[name.strip()] = value
    return values


def json_pairs(option: str, texts: Iterable[str], example: str) -> dict[str, Any]:
    """`pairs`, with each value that is valid JSON as JSON."""
    return {name: json_or_text(text) for name, text in pairs(option, texts, example).items()}


def json_or_text(value: str) -> Any:
    """A value that is valid JSON as JSON (3, true, [1, 2], "3"), anything else as text."""
    try:
        return from_json(value, allow_inf_nan=False)
    except ValueError:
        return value


# -- times


def _moment(option: str, text: str, spans: str, now: datetime, example: datetime) -> datetime | timedelta:
    """The value of an option that is a span or a time. A time without an offset is in the zone of `now`."""
    written = text.strip()
    seconds = seconds_of(written.lower()) if written[-1:].isalpha() else None
    if seconds is not None and not 0 < seconds <= LONGEST:
        raise ConfigurationError(f"{option} {text} must be longer than 0 s and at most ten years")
    try:
        moment = datetime.fromisoformat(written.upper()) if seconds is None else timedelta(seconds=seconds)
    except ValueError:
        raise ConfigurationError(
            f"{option} {text!r} is not a time: write a span as in {spans}, or a time as in "
            f"{example:%Y-%m-%dT%H:%M}"
        ) from None
    return moment.replace(tzinfo=now.tzinfo) if isinstance(moment, datetime) and not moment.tzinfo else moment


def until(text: str, now: datetime) -> datetime | timedelta:
    """The value of `--until`: a span from now, or a time. Raises ConfigurationError for a past time."""
    moment = _moment("--until", text, "10m or 1h30m", now, now + timedelta(hours=1))
    if isinstance(moment, datetime) and moment <= now:
        raise ConfigurationError(f"--until {text} is in the past: write a future time, or leave it out")
    return moment


def since(option: str, text: str) -> datetime | timedelta:
    """A span before now ("24h") or a time. A time without an offset is in this host's zone."""
    now = datetime.now().astimezone()
    return _moment(option, text, "24h or 7d", now, now - timedelta(days=1))


# -- stores


def store_url(option: str | None, *, circuits: bool = False) -> str:
    """The URL of `--store`, else the configured one. Raises ConfigurationError if no command can use it."""
    url = option
    if url is None:
        url = circuit_store_url() if circuits else current_settings().store_url
    parsed = parse_url(url)
    if parsed.kind == "memory":
        raise ConfigurationError(
            f"the store {url} is in the memory of one process, so no command can read it: "
            "pass the fleet's store as --store, or set PREFECT_RESILIENCE_STORE_URL"
        )
    return parsed.canonical
