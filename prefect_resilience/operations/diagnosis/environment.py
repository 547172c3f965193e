"""What can be seen on this machine: versions, the store, and the clocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from prefect_resilience.base.edge.settings import current_settings
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits import get_circuits
from prefect_resilience.operations.diagnosis import durability
from prefect_resilience.operations.diagnosis.findings import Finding
from prefect_resilience.stores import StoreUrl, open_store, parse_url
from prefect_resilience.stores.server_facts import postgres_facts, redis_facts

PACKAGE = "prefect-resilience"
EXTRAS = {"postgresql": "postgres", "redis": "redis"}
CLASHES = (
    (
        "fastapi",
        SpecifierSet(">=0.151"),
        "with it Prefect's listings answer 422, and from 0.155 on its server does not start",
        'pip install "fastapi<0.151"',
    ),
)
"""What is allowed by Prefect's own requirements, and does not work."""
MOST_SKEW = 2.0
"""Seconds by which clocks may differ: leases and circuits reckon with the store's."""


def versions() -> Iterator[Finding]:
    """Packages that are missing, too old or too new."""
    for line in requires(PACKAGE) or []:
        needed = Requirement(line)
        for extra in ("", *_extras()):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                yield from _needed(needed)
                break
    for name, clashing, says, command in CLASHES:
        there = _version(name)
        if there is not None and there in clashing:
            yield Finding(
                check="versions", where=f"{name} {there}", says=says, mend=f"Run `{command}` where it is."
            )


def _needed(needed: Requirement) -> Iterator[Finding]:
    there = _version(needed.name)
    if there is None or not needed.specifier.contains(there, prereleases=True):
        has = "is not installed" if there is None else f"is {there}"
        wanted = f"{needed.name}{needed.specifier}"
        yield Finding(
            check="versions",
            where=needed.name,
            says=f"it {has}, and {PACKAGE} needs {wanted}",
            mend=f'Run `pip install "{wanted}"`.',
        )


def _extras() -> set[str]:
    """The extras that the configured stores need."""
    try:
        return {EXTRAS[kind] for url in _urls() if (kind := parse_url(url).kind) in EXTRAS}
    except (ConfigurationError, ValueError):
        return set()  # the check of the store says so


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _urls() -> list[str]:
    settings = current_settings()
    return list(dict.fromkeys([settings.store_url, settings.circuit_store_url or settings.store_url]))


def store() -> Iterator[Finding]:
    """Stores that do not answer, that nobody shares, that may lose records, and clocks that differ."""
    try:
        urls = _urls()
    except ValueError as error:  # pydantic's, too
        says = f"the settings cannot be read: {redact(' '.join(str(error).split()))}"
        yield Finding(
            check="store", where="PREFECT_RESILIENCE_*", says=says, mend="Mend the variable it names."
        )
        return
    for number, url in enumerate(urls):
        yield from _store(url, ledger=number == 0)


def _store(url: str, *, ledger: bool) -> Iterator[Finding]:
    shown = redact(url)
    try:
        parsed = parse_url(url)
    except ConfigurationError as error:
        yield _wrong_url(shown, error)
        return
    try:
        opened = open_store(url)
        skew = _skew(opened.now)
        opened.load("doctor")
    except ConfigurationError as error:
        yield _wrong_url(shown, error)
        return
    except StoreUnavailable as error:
        yield Finding(
            check="store",
            where=shown,
            says=f"it does not answer: {redact(' '.join(str(error).split()))}",
            mend="Start its server or make the file writable, and check the URL and the network in between.",
        )
        # A replica may refuse what the store needs, and still say that it is one.
        with suppress(StoreUnavailable):
            yield from _kept(parsed, shown, ledger)
        return
    yield from _kept(parsed, shown, ledger)
    if parsed.kind == "memory":
        yield Finding(
            check="store",
            where=shown,
            says="it is the memory of one process, so that no circuit, effect or dead letter outlives it",
            mend="Set PREFECT_RESILIENCE_STORE_URL to sqlite:///..., postgresql://... or redis://...",
        )
    if abs(skew) > MOST_SKEW:
        way = "ahead of" if skew > 0 else "behind"
        yield Finding(
            check="clocks",
            where=shown,
            says=f"the store's clock is {abs(skew):.1f} s {way} this machine's",
            mend="Let both machines set their clocks by NTP (chrony or systemd-timesyncd).",
        )


def _wrong_url(shown: str, error: ConfigurationError) -> Finding:
    return Finding(
        check="store",
        where=shown,
        says=redact(str(error)),
        mend="Mend PREFECT_RESILIENCE_STORE_URL or PREFECT_RESILIENCE_CIRCUIT_STORE_URL.",
    )


def _kept(parsed: StoreUrl, shown: str, ledger: bool) -> Iterator[Finding]:
    """How safely the store's server keeps what it confirms."""
    if parsed.kind == "redis":
        yield from durability.of_redis(redis_facts(parsed), shown, ledger=ledger)
    elif parsed.kind == "postgresql":
        yield from durability.of_postgres(postgres_facts(parsed), shown, ledger=ledger)


def _skew(now: Callable[[], float]) -> float:
    """How far the store's clock is ahead, as nearly as the way there and back allows."""
    before = time.time()
    there = now()
    after = time.time()
    # What the way took may have been at either end.
    middle, half = (before + after) / 2, (after - before) / 2
    ahead = there - middle
    return 0.0 if abs(ahead) <= half else ahead - half if ahead > 0 else ahead + half


def circuits() -> Iterator[Finding]:
    """Circuits that somebody opened or switched off by hand, and nobody put back."""
    settings = current_settings()
    try:
        found = get_circuits(settings.circuit_store_url or settings.store_url)
    except (ConfigurationError, StoreUnavailable):
        return
    for circuit in found:
        for_good = circuit.state == "forced_open" and circuit.retry_at is None
        if for_good or circuit.state == "disabled":
            yield Finding(
                check="circuits",
                where=circuit.name,
                says=f"it is {circuit.state.replace('_', ' ')} by hand: {redact(circuit.reason or '?')}",
                mend=f'Run `prefect-resilience circuits reset "{circuit.name}"` when that is over.',
                level="note",
            )
