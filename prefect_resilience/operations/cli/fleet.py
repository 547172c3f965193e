"""The circuits as their store knows them at one moment; which store that is, and what to check without it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import ValidationError
from pydantic_settings import SettingsError

from prefect_resilience.base.edge.settings import circuit_store_url
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits import CircuitSnapshot, get_circuits
from prefect_resilience.stores import open_store, parse_url

ORDER = ("forced_open", "open", "half_open", "disabled", "closed")


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the store said, those in trouble first. `now` is its clock, `url` may be shown."""

    url: str
    now: float
    circuits: tuple[CircuitSnapshot, ...]


def store_url(given: str | None) -> str:
    """The URL of `--store`, else the configured one; ConfigurationError when no command can use it."""
    try:
        url = circuit_store_url() if given is None else given
    except (SettingsError, ValidationError) as error:
        first = " ".join(str(error).split())
        raise ConfigurationError(
            f"the settings cannot be read, check PREFECT_RESILIENCE_*: {first}"
        ) from None
    parsed = parse_url(url)
    if parsed.kind == "memory":
        raise ConfigurationError(
            f"the URL {url} means the memory of one process, which no command can see: "
            "name the fleet's store with --store or in PREFECT_RESILIENCE_STORE_URL"
        )
    return parsed.canonical


def read_fleet(url: str) -> Fleet:
    """Every circuit in the store; StoreUnavailable with a sentence for the operator."""
    with explained(url):
        circuits = get_circuits(url)
        now = open_store(url).now()
    circuits.sort(key=lambda circuit: (ORDER.index(circuit.state), circuit.name))
    return Fleet(redact(url), now, tuple(circuits))


@contextmanager
def explained(url: str) -> Generator[None, None, None]:
    """Turn a store's StoreUnavailable into one that says which store, why, and what to check."""
    try:
        yield
    except StoreUnavailable as error:
        raise StoreUnavailable(
            f"the store {redact(url)} does not answer ({_cause(error)}): {_advice(url)}"
        ) from error


def _cause(error: BaseException) -> str:
    """The driver's own words, which stand at the bottom."""
    while error.__cause__ is not None:
        error = error.__cause__
    return redact(" ".join(str(error).split()) or type(error).__name__)


def _advice(url: str) -> str:
    if url.startswith("sqlite"):
        return (
            "check that it is this fleet's file, that you may read and write it and its folder, "
            "and that no other program holds it locked"
        )
    return "check that its server runs and can be reached from here, and that the URL is right"
