"""Durability settings of a store's server. This module only reads them."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from prefect_resilience.stores.urls import StoreUrl

TURNS = (0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0)
"""Which of two connections asks next. Aperiodic (Thue-Morse), because a pooler may rotate its connections."""


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """Facts about a Redis server; None for a fact that the server does not tell.

    `saved`: whether it has written a snapshot since it started, from INFO.
    """

    policy: str | None = None
    appendonly: bool | None = None
    appendfsync: str | None = None
    snapshots: bool | None = None
    saved: bool | None = None
    role: str | None = None


@dataclass(frozen=True, slots=True)
class PostgresFacts:
    """Facts about a PostgreSQL server.

    `announced` is the process ID that the server announced to the connection. `first` and `second` are the
    process IDs that answered the statements of two simultaneous connections.
    """

    in_recovery: bool
    synchronous_commit: str
    fsync: str
    announced: int
    first: tuple[int, ...]
    second: tuple[int, ...]


def redis_facts(parsed: StoreUrl) -> RedisFacts:
    """Ask a Redis server by CONFIG and INFO; a managed service may forbid CONFIG."""
    from redis import ResponseError

    from prefect_resilience.stores.redis import RedisStore

    def ask(client: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        config, info = dict[str, Any](), dict[str, Any]()
        for name in ("maxmemory-policy", "appendonly", "appendfsync", "save"):
            with suppress(ResponseError):  # forbidden or unknown at this service
                config |= client.config_get(name)
        for name in ("server", "memory", "persistence", "replication"):
            with suppress(ResponseError):
                info |= client.info(name)
        with suppress(ResponseError):
            info["now"] = client.time()[0]
        return config, info

    with closing(RedisStore(parsed)) as store:
        return read_redis(*store.using(ask))


def read_redis(config: dict[str, str], info: dict[str, Any]) -> RedisFacts:
    """The facts from the answers to CONFIG GET, INFO and TIME ("now"). Any answer may be missing."""
    appendonly = info.get("aof_enabled")
    policy = config.get("maxmemory-policy") or info.get("maxmemory_policy")
    if "appendonly" in config:
        appendonly = config["appendonly"] == "yes"
    return RedisFacts(
        policy=policy,
        appendonly=None if appendonly is None else bool(appendonly),
        appendfsync=config.get("appendfsync"),
        snapshots=bool(config["save"].strip()) if "save" in config else None,
        saved=_has_snapshot(info),
        role=info.get("role"),
    )


def _has_snapshot(info: dict[str, Any]) -> bool | None:
    """Whether there was a snapshot. Before the first one, Redis reports its start time as the snapshot's."""
    if not all(name in info for name in ("rdb_last_save_time", "now", "uptime_in_seconds")):
        return None
    started = info["now"] - info["uptime_in_seconds"]
    return info["rdb_last_save_time"] > started + 2


def postgres_facts(parsed: StoreUrl) -> PostgresFacts:
    """Ask a PostgreSQL server through two simultaneous connections."""
    from prefect_resilience.stores.postgres import PostgresStore, connect

    store = PostgresStore(parsed)
    store.begin()
    try:
        with connect(parsed.path, store.deadline) as first, connect(parsed.path, store.deadline) as second:
            row: Any = first.execute(
                "SELECT pg_is_in_recovery(), current_setting('synchronous_commit'), current_setting('fsync')"
            ).fetchone()
            pids: tuple[list[int], list[int]] = ([], [])
            for turn in TURNS:
                answer: Any = (first, second)[turn].execute("SELECT pg_backend_pid()").fetchone()
                pids[turn].append(answer[0])
            announced = first.info.backend_pid
            return PostgresFacts(row[0], row[1], row[2], announced, tuple(pids[0]), tuple(pids[1]))
    except (OSError, *store.errors) as error:
        raise store.unavailable(error) from error
