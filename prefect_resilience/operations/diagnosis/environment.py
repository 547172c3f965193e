"""Checks of this machine: package versions, stores and clocks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from prefect_resilience.base.edge.current_settings import current_settings
from prefect_resilience.base.text import one_line
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.operations.diagnosis import DiagnosisFinding, finding, skew
from prefect_resilience.stores import StoreUrl, open_store, parse_url

if TYPE_CHECKING:
    from prefect_resilience.stores.postgres import PostgresFacts
    from prefect_resilience.stores.redis import RedisFacts

# Data that a store's server may lose, according to its settings.
#
# `ledger`: whether the store has effects and dead letters, or only circuits, which may be loss.


def of_redis(facts: RedisFacts, where: str, *, ledger: bool) -> Iterator[DiagnosisFinding]:
    """Problems of a Redis server that may lose data."""
    if facts.role in ("slave", "replica"):
        yield finding("store.redis-replica", f"{where} (role)")
    policy = f"{where} (maxmemory-policy)"
    if facts.policy is None:
        yield finding("store.policy-unknown", policy)
    elif facts.policy != "noeviction" and ledger:
        loses = "records of effects, and an effect that was done may be repeated"
        yield finding("store.policy", policy, policy=facts.policy, loses=loses)
    elif facts.policy != "noeviction":
        yield finding("store.policy", policy, "note", policy=facts.policy, loses="circuits that are open")
    # Lost circuits are learned again from new calls.
    if ledger and (loss := _loss_at_restart(facts)):
        yield finding(f"store.{loss}", f"{where} (persistence)")


def _loss_at_restart(facts: RedisFacts) -> str | None:
    """The finding about a crash or a restart of Redis."""
    if facts.appendonly:
        lossy = facts.appendfsync in ("no", "everysec")
        return f"appendfsync-{facts.appendfsync}" if lossy else None
    return "persistence-unknown" if facts.appendonly is None else "no-append-only-file"


def of_postgres(facts: PostgresFacts, where: str, *, ledger: bool) -> Iterator[DiagnosisFinding]:
    """Problems of a PostgreSQL server, or a pooler in front of it, that may lose data."""
    if facts.in_recovery:
        yield finding("store.postgresql-replica", f"{where} (replica)")
    if facts.pooler:
        yield finding("store.pooler", f"{where} (pooler)")
    level, more = ("wrong", ", and an effect that was done may be repeated") if ledger else ("note", "")
    for name, value in (("synchronous_commit", facts.synchronous_commit), ("fsync", facts.fsync)):
        if value == "off":
            yield finding("store.setting-off", f"{where} ({name})", level, name=name, more=more)


PACKAGE = "prefect-resilience"
EXTRAS = {"postgresql": "postgres", "redis": "redis"}
CLASHES = {"jsonpath-python": "python-jsonpath"}
"""Distributions that install a module of the same name as one of ours."""
MOST_SKEW = 2.0
"""Seconds by which clocks may differ: leases and circuits use the store's time."""


def versions() -> Iterator[DiagnosisFinding]:
    """Packages that are missing, too old or too new."""
    extras = ("", *_extras())
    for needed in map(Requirement, requires(PACKAGE) or []):
        marker, there = needed.marker, _version(needed.name)
        is_wanted = marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)
        if is_wanted and (there is None or not needed.specifier.contains(there, prereleases=True)):
            has = "is not installed" if there is None else f"is {there}"
            wanted = f"{needed.name}{needed.specifier}"
            yield finding("versions.needed", needed.name, has=has, wanted=wanted)
    for name, ours in CLASHES.items():
        if _version(name) is not None:
            yield finding("versions.clash", name, ours=ours)


def _extras() -> set[str]:
    """The extras that the configured stores need."""
    try:
        return {EXTRAS[kind] for url in _urls() if (kind := parse_url(url).kind) in EXTRAS}
    except (ConfigurationError, ValueError):
        return set()  # the check "store" reports this


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _urls() -> list[str]:
    settings = current_settings()
    return list(dict.fromkeys([settings.store_url, settings.circuit_store_url or settings.store_url]))


def store() -> Iterator[DiagnosisFinding]:
    """Stores that are unavailable, are not shared, or may lose records; clocks that differ."""
    try:
        urls = _urls()
    except ValueError as error:  # pydantic's, too
        yield finding("store.settings", "PREFECT_RESILIENCE_*", error=one_line(error))
        return
    for number, url in enumerate(urls):
        yield from _store(url, url, ledger=number == 0)


def _store(url: str, shown: str, *, ledger: bool) -> Iterator[DiagnosisFinding]:
    try:
        opened, before = open_store(url), time.time()
        there, after = opened.now(), time.time()
        opened.load("doctor")
    except ConfigurationError as error:
        yield finding("store.url", shown, error=str(error))
        return
    except StoreUnavailable as error:
        yield finding("store.unavailable", shown, error=one_line(error))
        # A replica may reject requests that the store needs, but it still answers that it is a replica.
        with suppress(StoreUnavailable):
            yield from _server(parse_url(url), shown, ledger)
        return
    yield from _server(parse_url(url), shown, ledger)
    if parse_url(url).kind == "memory":
        yield finding("store.memory", shown)
    yield from skew(shown, "the store's", before, there, after, MOST_SKEW)


def _server(parsed: StoreUrl, shown: str, ledger: bool) -> Iterator[DiagnosisFinding]:
    """Problems of a store's server that may lose confirmed data."""
    if parsed.kind == "redis":
        from prefect_resilience.stores.redis import redis_facts

        yield from of_redis(redis_facts(parsed), shown, ledger=ledger)
    elif parsed.kind == "postgresql":
        from prefect_resilience.stores.postgres import postgres_facts

        yield from of_postgres(postgres_facts(parsed), shown, ledger=ledger)


CHECKS = {"versions": versions, "store": store}
