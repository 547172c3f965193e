"""What the doctor says of a store's server: the facts of real servers, and every judgement of them."""

from typing import Any

import pytest

from prefect_resilience.operations.diagnosis import environment
from prefect_resilience.operations.diagnosis.environment import of_postgres, of_redis
from prefect_resilience.stores import parse_url
from prefect_resilience.stores.postgres import PostgresFacts, postgres_facts
from prefect_resilience.stores.redis import RedisFacts, redis_facts
from tests.operations.diagnosis.pooler import Pooler

SAFE = RedisFacts("noeviction", True, "always", "master")
SOUND = PostgresFacts(False, "on", "on", False)


def said(findings: Any) -> dict[str, tuple[str, str]]:
    """What is the matter, by the part of the server that it is about."""
    return {one.where.removeprefix("url ").strip("()"): (one.level, one.says) for one in findings}


# -- judging


@pytest.mark.parametrize(
    ("facts", "part", "level", "says"),
    [
        ({"role": "slave"}, "role", "wrong", "it is a replica"),
        ({"policy": "allkeys-lru"}, "maxmemory-policy", "wrong", "Redis deletes records of effects"),
        ({"policy": "volatile-ttl"}, "maxmemory-policy", "wrong", "it is volatile-ttl"),
        ({"policy": None}, "maxmemory-policy", "note", "is unknown: it allows neither CONFIG nor INFO"),
        ({"appendfsync": "no"}, "persistence", "wrong", "loses up to 30 seconds of records"),
        ({"appendfsync": "everysec"}, "persistence", "note", "loses up to 1 second"),
        ({"appendonly": False}, "persistence", "wrong", "a restart loses the ledger"),
        ({"appendonly": None}, "persistence", "note", "whether its data survive a restart is unknown"),
    ],
)
def test_a_redis_that_may_lose_records(facts: dict[str, Any], part: str, level: str, says: str) -> None:
    (finding,) = of_redis(SAFE._replace(**facts), "url", ledger=True)
    assert (finding.check, finding.where, finding.level) == ("store", f"url ({part})", level)
    assert says in finding.says
    assert finding.mend


def test_a_redis_that_keeps_everything() -> None:
    assert list(of_redis(SAFE, "url", ledger=True)) == []
    assert list(of_redis(SAFE._replace(appendfsync=None), "url", ledger=True)) == [], "CONFIG is forbidden"


def test_circuits_alone_may_be_forgotten() -> None:
    loose = RedisFacts("allkeys-lru", False, None, "master")
    assert said(of_redis(loose, "url", ledger=False)) == {
        "maxmemory-policy": (
            "note",
            "it is allkeys-lru: when its memory is full, Redis deletes circuits that are open",
        )
    }
    assert said(of_redis(loose._replace(role="replica"), "url", ledger=False))["role"][0] == "wrong"
    fast = SOUND._replace(synchronous_commit="off")
    assert said(of_postgres(fast, "url", ledger=False)) == {
        "synchronous_commit": ("note", "synchronous_commit is off: a crash loses changes that were confirmed")
    }


@pytest.mark.parametrize(
    ("facts", "part", "level", "says"),
    [
        ({"in_recovery": True}, "replica", "wrong", "it rejects writes"),
        ({"synchronous_commit": "off"}, "synchronous_commit", "wrong", "may be repeated"),
        ({"fsync": "off"}, "fsync", "wrong", "may be repeated"),
        ({"pooler": True}, "pooler", "note", "transaction mode"),
    ],
)
def test_a_postgresql_that_does_not_keep_its_word(
    facts: dict[str, Any], part: str, level: str, says: str
) -> None:
    (finding,) = of_postgres(SOUND._replace(**facts), "url", ledger=True)
    assert (finding.check, finding.where, finding.level) == ("store", f"url ({part})", level)
    assert says in finding.says
    assert finding.mend


@pytest.mark.parametrize("setting", ["on", "local", "remote_write", "remote_apply"])
def test_a_postgresql_that_keeps_its_word(setting: str) -> None:
    assert list(of_postgres(SOUND._replace(synchronous_commit=setting), "url", ledger=True)) == []


def test_a_redis_of_every_kind(own_redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", own_redis.url(timeout=2))
    assert list(environment.store()) == [], "append-only, always"

    own_redis.stop()
    own_redis.start("--appendonly", "no", "--maxmemory-policy", "allkeys-lru")
    found = list(environment.store())
    assert [one.level for one in found] == ["wrong", "wrong"]
    assert "it is allkeys-lru" in found[0].says
    assert "no append-only file" in found[1].says

    own_redis.stop()
    own_redis.start(
        "--appendonly", "no", "--maxmemory-policy", "allkeys-lru", "--rename-command", "CONFIG", ""
    )
    assert redis_facts(parse_url(own_redis.url())) == RedisFacts("allkeys-lru", False, None, "master")
    assert [one.level for one in environment.store()] == ["wrong", "wrong"]

    own_redis.stop()
    own_redis.start("--rename-command", "CONFIG", "", "--rename-command", "INFO", "")
    assert redis_facts(parse_url(own_redis.url())) == RedisFacts()
    assert [one.level for one in environment.store()] == ["note", "note"]


def test_a_postgresql_of_every_kind(own_postgres: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own_postgres.stop()
    own_postgres.start("-c", "fsync=on")
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", own_postgres.url())
    assert list(environment.store()) == []

    own_postgres.stop()
    own_postgres.start("-c", "fsync=on", "-c", "synchronous_commit=off")
    list(environment.store())  # the first operation after a restart may notice it
    assert [one.where.rpartition(" ")[2] for one in environment.store()] == ["(synchronous_commit)"]


@pytest.mark.slow
def test_a_pooler(own_postgres: Any) -> None:
    pooler = Pooler(own_postgres.port, 2)
    try:
        facts = postgres_facts(parse_url(own_postgres.url(pooler.port, sslmode="disable")))
        assert "pooler" in said(of_postgres(facts._replace(fsync="on"), "url", ledger=True))
    finally:
        pooler.close()
    direct = postgres_facts(parse_url(own_postgres.url()))
    assert list(of_postgres(direct._replace(fsync="on"), "url", ledger=True)) == []


def test_a_replica_that_refuses_the_schema_still_says_what_it_is(
    own_postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_postgres.stop()
    (own_postgres.folder / "data" / "standby.signal").touch()
    own_postgres.start()
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", own_postgres.url())
    where = [one.where.rpartition(" ")[2] for one in environment.store()]
    assert where[1:] == ["(replica)", "(fsync)"], "the first says what it refused"
