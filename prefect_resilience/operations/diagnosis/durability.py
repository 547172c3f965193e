"""What a store's server may lose, judged from its facts.

`ledger`: whether effects and dead letters are kept there, or circuits alone, which may be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator

from prefect_resilience.operations.diagnosis.findings import Finding, Level
from prefect_resilience.stores.server_facts import PostgresFacts, RedisFacts

TWICE = "an effect that was done may be done again"
PERSIST = (
    "Set `appendonly yes` and `appendfsync always` in redis.conf, or switch persistence on at the managed "
    "service; or keep the ledger in PostgreSQL."
)


def of_redis(facts: RedisFacts, where: str, *, ledger: bool) -> Iterator[Finding]:
    """What a Redis server may lose."""
    if facts.role in ("slave", "replica"):
        yield _finding(
            f"{where} (role)",
            "it is a replica: it takes no writes, or loses them at its next synchronization",
            "Name the primary in the URL, or let Sentinel or the cluster's endpoint do so.",
        )
    yield from _eviction(facts, f"{where} (maxmemory-policy)", ledger)
    yield from _persistence(facts, f"{where} (persistence)", ledger)


def _eviction(facts: RedisFacts, where: str, ledger: bool) -> Iterator[Finding]:
    mend = (
        "Run `redis-cli CONFIG SET maxmemory-policy noeviction` and write it to redis.conf, or set the "
        "parameter at the managed service."
    )
    if facts.policy is None:
        says = "whether it evicts records is unknown: it allows neither CONFIG nor INFO"
        yield _finding(where, says, "Make sure that maxmemory-policy is noeviction.", "note")
    elif facts.policy != "noeviction":
        loses = f"records of effects: {TWICE}" if ledger else "circuits that are open"
        says = f"it is {facts.policy}: when its memory is full, Redis deletes {loses}"
        yield _finding(where, says, mend, _level(ledger))


def _persistence(facts: RedisFacts, where: str, ledger: bool) -> Iterator[Finding]:
    if not ledger:
        return  # what circuits had learnt is learnt again
    if facts.appendonly:
        if facts.appendfsync == "no":
            says = f"appendfsync is no: a crash of its machine loses the last half minute, and {TWICE}"
            yield _finding(where, says, PERSIST)
        elif facts.appendfsync == "everysec":
            says = f"appendfsync is everysec: a crash loses up to a second, and {TWICE}"
            yield _finding(where, says, "Set `appendfsync always`.", "note")
    elif facts.appendonly is None or (facts.snapshots is None and not facts.saved):
        known = "it has no append-only file, and " if facts.appendonly is False else ""
        says = f"{known}whether it keeps anything over a restart is unknown: CONFIG is not allowed"
        yield _finding(where, says, PERSIST, "note")
    elif facts.snapshots or (facts.snapshots is None and facts.saved):
        says = f"it keeps snapshots only: a restart loses all records since the last one, and {TWICE}"
        yield _finding(where, says, PERSIST)
    else:
        says = f"it has neither an append-only file nor snapshots: a restart loses the ledger, and {TWICE}"
        yield _finding(where, says, PERSIST)


def of_postgres(facts: PostgresFacts, where: str, *, ledger: bool) -> Iterator[Finding]:
    """What a PostgreSQL server, or what is in front of it, does not keep."""
    if facts.in_recovery:
        yield _finding(
            f"{where} (replica)",
            "it is a replica (pg_is_in_recovery): it takes no writes",
            "Name the primary in the URL; where it has several hosts, add `target_session_attrs=read-write`.",
        )
    if _shares_connections(facts):
        yield _finding(
            f"{where} (pooler)",
            "a pooler in transaction mode is in front of it: connections share server processes, so that the "
            "timeouts that one sets do not hold, or hit others",
            "Connect to PostgreSQL itself, or set `pool_mode=session` for this database.",
        )
    elif facts.announced not in facts.first:
        yield _finding(
            f"{where} (pooler)",
            "a pooler is in front of it, and so far every connection had a server process of its own",
            "Nothing, if it is in session mode (`pool_mode=session`).",
            "note",
        )
    for name, value in (("synchronous_commit", facts.synchronous_commit), ("fsync", facts.fsync)):
        if value == "off":
            says = f"{name} is off: a crash loses changes that were confirmed"
            yield _finding(
                f"{where} ({name})",
                f"{says}, and {TWICE}" if ledger else says,
                f"Run `ALTER SYSTEM SET {name} = on` and `SELECT pg_reload_conf()`, and look for it in the "
                f"URL, the role and the database.",
                _level(ledger),
            )


def _shares_connections(facts: PostgresFacts) -> bool:
    """A server process belongs to one session; a pooler in transaction mode hands it around."""
    first, second = set(facts.first), set(facts.second)
    return len(first) > 1 or len(second) > 1 or bool(first & second)


def _level(ledger: bool) -> Level:
    return "wrong" if ledger else "note"


def _finding(where: str, says: str, mend: str, level: Level = "wrong") -> Finding:
    return Finding(check="store", where=where, says=says, mend=mend, level=level)
