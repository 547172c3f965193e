"""Checks of this machine: package versions, stores, clocks, circuits and effects in doubt."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement
from packaging.version import Version

from prefect_resilience.base.edge.settings import current_settings
from prefect_resilience.base.text import one_line
from prefect_resilience.dead_letters import list as list_letters
from prefect_resilience.durable.batches.edge.listing import list_batches
from prefect_resilience.durable.batches.edge.status import BatchStatus, batch_status
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits.fleet import get_circuits
from prefect_resilience.operations.diagnosis.findings import DiagnosisFinding, note, skewed, wrong
from prefect_resilience.stores import StoreUrl, open_store, parse_url
from prefect_resilience.stores.server_facts import PostgresFacts, RedisFacts, postgres_facts, redis_facts

# Data that a store's server may lose, according to its settings.
#
# `ledger`: whether the store has effects and dead letters, or only circuits, which may be lost.

NO_EVICTION = (
    "Run `redis-cli CONFIG SET maxmemory-policy noeviction` and write it to redis.conf, or set the "
    "parameter at the managed service."
)
TWICE = "an effect that was done may be repeated"
PERSIST = (
    "Set `appendonly yes` and `appendfsync always` in redis.conf, or switch persistence on at the managed "
    "service; or keep the ledger in PostgreSQL."
)


def of_redis(facts: RedisFacts, where: str, *, ledger: bool) -> Iterator[DiagnosisFinding]:
    """Problems of a Redis server that may lose data."""
    if facts.role in ("slave", "replica"):
        says = "it is a replica: it rejects writes, or loses them at its next synchronization"
        mend = "Use the primary in the URL, or the endpoint of Sentinel or of the cluster."
        yield wrong("store", f"{where} (role)", says, mend)
    policy = f"{where} (maxmemory-policy)"
    if facts.policy is None:
        says = "whether it evicts records is unknown: it allows neither CONFIG nor INFO"
        yield note("store", policy, says, "Make sure that maxmemory-policy is noeviction.")
    elif facts.policy != "noeviction":
        loses = f"records of effects, and {TWICE}" if ledger else "circuits that are open"
        says = f"it is {facts.policy}: when its memory is full, Redis deletes {loses}"
        yield (wrong if ledger else note)("store", policy, says, NO_EVICTION)
    # Lost circuits are learned again from new calls.
    if ledger and (lost := _lost_at_restart(facts)):
        level, says, mend = lost
        yield level("store", f"{where} (persistence)", says, mend)


def _lost_at_restart(facts: RedisFacts) -> tuple[Callable[..., DiagnosisFinding], str, str] | None:
    """The data loss at a crash or a restart of Redis: the level, the problem, and how to fix it."""
    if facts.appendonly:
        if facts.appendfsync == "no":
            return (
                wrong,
                f"appendfsync is no: a crash of its machine loses up to 30 seconds of records, and {TWICE}",
                PERSIST,
            )
        if facts.appendfsync == "everysec":
            says = f"appendfsync is everysec: a crash loses up to 1 second of records, and {TWICE}"
            return note, says, "Set `appendfsync always`."
        return None
    if facts.appendonly is None or (facts.snapshots is None and not facts.saved):
        known = "it has no append-only file, and " if facts.appendonly is False else ""
        says = f"{known}whether its data survive a restart is unknown: CONFIG is not allowed"
        return note, says, PERSIST
    if facts.snapshots or (facts.snapshots is None and facts.saved):
        says = f"it keeps snapshots only: a restart loses all records since the last one, and {TWICE}"
    else:
        says = f"it has neither an append-only file nor snapshots: a restart loses the ledger, and {TWICE}"
    return wrong, says, PERSIST


def of_postgres(facts: PostgresFacts, where: str, *, ledger: bool) -> Iterator[DiagnosisFinding]:
    """Problems of a PostgreSQL server, or a pooler in front of it, that may lose data."""
    if facts.in_recovery:
        says = "it is a replica (pg_is_in_recovery): it rejects writes"
        mend = "Use the primary in the URL; if it has several hosts, add `target_session_attrs=read-write`."
        yield wrong("store", f"{where} (replica)", says, mend)
    if _shares_connections(facts):
        says = (
            "a pooler in transaction mode is in front of it: connections share server processes, so timeouts "
            "that one connection sets are lost, or apply to others"
        )
        mend = "Connect to PostgreSQL itself, or set `pool_mode=session` for this database."
        yield wrong("store", f"{where} (pooler)", says, mend)
    elif facts.announced not in facts.first:
        says = "a pooler is in front of it; so far every connection had its own server process"
        mend = "Nothing to do if it is in session mode (`pool_mode=session`)."
        yield note("store", f"{where} (pooler)", says, mend)
    for name, value in (("synchronous_commit", facts.synchronous_commit), ("fsync", facts.fsync)):
        if value == "off":
            says = f"{name} is off: a crash loses changes that were confirmed"
            mend = (
                f"Run `ALTER SYSTEM SET {name} = on` and `SELECT pg_reload_conf()`, and check the settings "
                "of the URL, the role and the database."
            )
            report, more = (wrong, f", and {TWICE}") if ledger else (note, "")
            yield report("store", f"{where} ({name})", says + more, mend)


def _shares_connections(facts: PostgresFacts) -> bool:
    """Whether sessions share server processes, as with a pooler in transaction mode."""
    first, second = set(facts.first), set(facts.second)
    return len(first) > 1 or len(second) > 1 or bool(first & second)


PACKAGE = "prefect-resilience"
EXTRAS = {"postgresql": "postgres", "redis": "redis"}
REASONS = {
    "fastapi": "with it Prefect's list requests return 422, and from 0.155 on its server does not start"
}
"""Why a version is needed, where the bound alone does not say it."""
CLASHES: dict[str, tuple[str, str]] = {
    "jsonpath-python": (
        "python-jsonpath",
        "Nothing to do while your `$` paths work; otherwise run `pip install --force-reinstall "
        "python-jsonpath`.",
    )
}
"""Distributions that install a module of the same name as one of ours."""
TRIED: dict[str, tuple[str, ...]] = {"Python": ("3.11", "3.12", "3.13"), "prefect": ("3.8", "3.9")}
"""The versions with which the tests passed: the table of docs/versions.md."""
MOST_SKEW = 2.0
"""Seconds by which clocks may differ: leases and circuits use the store's time."""


def versions() -> Iterator[DiagnosisFinding]:
    """Packages that are missing, too old or too new."""
    for line in requires(PACKAGE) or []:
        needed = Requirement(line)
        for extra in ("", *_extras()):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                yield from _needed(needed)
                break
    for name, (ours, mend) in CLASHES.items():
        if _version(name) is not None:
            says = f"it overwrites files of {ours}, which {PACKAGE} needs"
            yield note("versions", name, says, mend)
    yield from _untried("Python", platform.python_version())
    yield from _untried("prefect", _version("prefect"))


def _untried(name: str, there: str | None) -> Iterator[DiagnosisFinding]:
    """A version with which the tests were not run."""
    tried = TRIED[name]
    if there is None or Version(there) < Version(tried[0]):
        return
    if ".".join(there.split(".")[:2]) not in tried:
        says = f"it is untested: the tests passed with {', '.join(tried)}"
        mend = f"Nothing to do if your flows run; otherwise use {name} {tried[-1]}."
        yield note("versions", f"{name} {there}", says, mend)


def _needed(needed: Requirement) -> Iterator[DiagnosisFinding]:
    there = _version(needed.name)
    if there is None or not needed.specifier.contains(there, prereleases=True):
        has = "is not installed" if there is None else f"is {there}"
        wanted = f"{needed.name}{needed.specifier}"
        why = f": {REASONS[needed.name]}" if there and needed.name in REASONS else ""
        says = f"it {has}, and {PACKAGE} needs {wanted}{why}"
        mend = f'Run `pip install "{wanted}"`.'
        yield wrong("versions", needed.name, says, mend)


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
        says = f"the settings cannot be read: {redact(one_line(error))}"
        yield wrong("store", "PREFECT_RESILIENCE_*", says, "Correct the variable that it names.")
        return
    for number, url in enumerate(urls):
        yield from _store(url, ledger=number == 0)


def _store(url: str, *, ledger: bool) -> Iterator[DiagnosisFinding]:
    shown = redact(url)
    try:
        opened = open_store(url)
        skew = _skew(opened.now)
        opened.load("doctor")
    except ConfigurationError as error:
        mend = "Correct PREFECT_RESILIENCE_STORE_URL or PREFECT_RESILIENCE_CIRCUIT_STORE_URL."
        yield wrong("store", shown, redact(str(error)), mend)
        return
    except StoreUnavailable as error:
        says = f"it is unavailable: {redact(one_line(error))}"
        mend = "Start its server or make the file writable, and check the URL and the network in between."
        yield wrong("store", shown, says, mend)
        # A replica may reject requests that the store needs, but it still answers that it is a replica.
        with suppress(StoreUnavailable):
            yield from _kept(parse_url(url), shown, ledger)
        return
    yield from _kept(parse_url(url), shown, ledger)
    if parse_url(url).kind == "memory":
        says = "it is the memory of one process: circuits, effects and dead letters are lost when it ends"
        mend = "Set PREFECT_RESILIENCE_STORE_URL to sqlite:///..., postgresql://... or redis://..."
        yield wrong("store", shown, says, mend)
    if abs(skew) > MOST_SKEW:
        yield skewed(shown, "the store's", skew, digits=1)


def _kept(parsed: StoreUrl, shown: str, ledger: bool) -> Iterator[DiagnosisFinding]:
    """Problems of a store's server that may lose confirmed data."""
    if parsed.kind == "redis":
        yield from of_redis(redis_facts(parsed), shown, ledger=ledger)
    elif parsed.kind == "postgresql":
        yield from of_postgres(postgres_facts(parsed), shown, ledger=ledger)


def _skew(now: Callable[[], float]) -> float:
    """Seconds by which the store's clock is ahead, without the uncertainty of the round trip."""
    before = time.time()
    there = now()
    after = time.time()
    # The delay may have been on the way there or on the way back.
    middle, half = (before + after) / 2, (after - before) / 2
    ahead = there - middle
    return 0.0 if abs(ahead) <= half else ahead - half if ahead > 0 else ahead + half


def circuits() -> Iterator[DiagnosisFinding]:
    """Circuits that an operator opened or disabled and did not reset."""
    settings = current_settings()
    try:
        found = get_circuits(settings.circuit_store_url or settings.store_url)
    except (ConfigurationError, StoreUnavailable):
        return
    for circuit in found:
        for_good = circuit.state == "forced_open" and circuit.retry_at is None
        if for_good or circuit.state == "disabled":
            says = f"it is {circuit.state.replace('_', ' ')}: {redact(circuit.reason or '?')}"
            mend = f'Run `prefect-resilience circuits reset "{circuit.name}"` when it is no longer needed.'
            yield note("circuits", circuit.name, says, mend)


SHOWN = 20


def leases() -> Iterator[DiagnosisFinding]:
    """Effects and dead letters that wait for a person."""
    try:
        letters = list_letters(status="in_doubt", limit=SHOWN)
        open_ones = [batch.batch_id for batch in list_batches(only_open=True) if batch.unknown]
        batches = [batch_id for batch_id in open_ones[:SHOWN] if _needs_a_person(batch_status(batch_id))]
    except (ConfigurationError, StoreUnavailable):
        return
    for letter in letters:
        says = f"a replay of {letter.name!r} was interrupted, and its outcome is unknown"
        mend = (
            f"Check with the receiver, then run `prefect-resilience dead-letters replay {letter.id} --force`."
        )
        yield note("leases", f"dead letter {letter.id}", says, mend)
    for batch_id in batches:
        says = "the outcome of one of its effects is unknown: its process died, or its call was interrupted"
        mend = f"Run `prefect-resilience batches show {batch_id}`, and settle the effects in doubt."
        yield note("leases", f"batch {batch_id}", says, mend)


def _needs_a_person(batch: BatchStatus) -> bool:
    """Whether it has an effect in doubt. A conditional or idempotent one is repeated by the next run."""
    return any(effect.kind == "external" and effect.state == "unknown" for effect in batch.effects)
