"""News of circuits is pushed: it comes without a call, once, in order, and its loss costs only time."""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fleet_processes import Lost
from prefect_resilience import CircuitBreaker
from prefect_resilience.errors.exceptions import CircuitOpenError
from prefect_resilience.guards.circuits import link as link_module
from prefect_resilience.guards.circuits import machine, merger
from prefect_resilience.guards.circuits.circuit import Circuit
from prefect_resilience.guards.circuits.link import PREFIX
from prefect_resilience.guards.circuits.merger import Merger
from prefect_resilience.guards.circuits.registry import forget_circuits
from prefect_resilience.guards.circuits.sharing import COUNTED, LOOK_WITHIN, MEMORY
from prefect_resilience.stores import Document, open_store
from prefect_resilience.testing.stores import wait_until
from tests.stores_servers import RedisServer

POLICY: dict[str, Any] = {"sync_interval": 3600, "open_for": 3600}
"""Nobody would poll within an hour."""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(merger, "FOLLOW_AFTER", 0.0)
    yield
    forget_circuits()
    wait_until(lambda: not any("circuit-news" in thread.name for thread in threading.enumerate()))


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/news.db"
    return request.getfixturevalue(f"{request.param}_url")


def elsewhere(url: str) -> str:
    """The same store over connections of its own, as another process has them."""
    return f"{url}{'&' if '?' in url else '?'}timeout=4"


def circuit_of(breaker: CircuitBreaker) -> Circuit:
    return breaker._circuit  # pyright: ignore[reportPrivateUsage]


def merger_of(circuit: Circuit) -> Merger:
    return circuit._merger  # pyright: ignore[reportPrivateUsage]


def following(url: str, **policy: Any) -> tuple[CircuitBreaker, Circuit]:
    """A breaker that follows its document."""
    breaker = CircuitBreaker("news", store=url, **{**POLICY, **policy})
    breaker.snapshot()
    breaker.snapshot()
    circuit = circuit_of(breaker)
    wait_until(lambda: merger_of(circuit).is_followed)
    breaker.snapshot()
    return breaker, circuit


def test_an_opening_elsewhere_comes_without_a_call(url: str) -> None:
    breaker, circuit = following(url)
    other = CircuitBreaker("news", store=elsewhere(url), **POLICY)
    other.force_open("maintenance")
    wait_until(lambda: circuit.shown.view.refused)
    with pytest.raises(CircuitOpenError, match="maintenance"):
        breaker.call(int)
    other.force_closed()
    wait_until(lambda: not circuit.shown.view.refused)
    assert breaker.call(int) == 0


def test_late_and_doubled_news_changes_nothing(url: str) -> None:
    _, circuit = following(url)
    store = open_store(url)
    old = store.load(PREFIX + "news")
    other = CircuitBreaker("news", store=elsewhere(url), **POLICY)
    other.force_open("first")
    first = store.load(PREFIX + "news")
    other.force_open("second")
    wait_until(lambda: circuit.shown.view.document["reason"] == "second")
    view = circuit.shown.view
    for late in (old, first, store.load(PREFIX + "news")):
        if late is not None:
            merger_of(circuit).hear(late)
            merger_of(circuit).hear(late)
    assert circuit.shown.view is view


def test_one_thread_for_many_circuits(redis_url: str) -> None:
    breakers = [CircuitBreaker(f"many {number}", store=redis_url, **POLICY) for number in range(20)]
    for breaker in breakers * 2:
        breaker.snapshot()
    assert sum("circuit-news" in thread.name for thread in threading.enumerate()) == 1
    wait_until(lambda: all(merger_of(circuit_of(breaker)).is_followed for breaker in breakers))


def test_after_a_cut_it_polls_and_then_follows_again(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "SHORTEST_REST", 0.1)
    breaker, circuit = following(own_redis.url(), sync_interval=0.05)
    own_redis.stop()
    wait_until(lambda: not circuit.link.news.heard)
    assert circuit.shown.view.until <= time.monotonic() + 0.1
    assert breaker.call(int) == 0
    own_redis.start()
    wait_until(lambda: circuit.link.news.heard and breaker.snapshot().state == "closed")
    wait_until(lambda: circuit.link.is_ready)
    breaker.snapshot()
    CircuitBreaker("news", store=elsewhere(own_redis.url()), **POLICY).force_open("after the cut")
    wait_until(lambda: circuit.shown.view.refused)


@pytest.mark.parametrize("share", [1.0, 0.01, 1e-5])
def test_with_every_message_lost_it_looks_itself(redis_url: str, share: float) -> None:
    """At the latest after LOOK_WITHIN seconds, in a fleet of any size."""
    store: Any = Lost(open_store(redis_url))
    breaker = CircuitBreaker("news", store=store, **POLICY)
    crowd = {"sum": COUNTED * MEMORY / share, "at": store.now()}
    store.swap(PREFIX + "news", 0, {**machine.new(), "share": share, "demand": crowd})
    breaker.snapshot()
    breaker.snapshot()
    circuit = circuit_of(breaker)
    wait_until(lambda: merger_of(circuit).is_followed)
    for _ in range(100):
        breaker.snapshot()
        assert circuit.shown.view.until <= time.monotonic() + LOOK_WITHIN


def test_a_process_that_sits_out_counts_nothing_until_its_turn(redis_url: str) -> None:
    random.seed(5)
    store: Any = open_store(redis_url)
    now = store.now()
    crowd = {"sum": 1e6, "at": now}
    store.swap(PREFIX + "news", 0, {**machine.new(), "share": 1e-4, "demand": crowd, "published_at": now})
    breaker, circuit = following(redis_url)
    before = store.load(PREFIX + "news")
    for _ in range(4):
        breaker.record_failure(TimeoutError("no answer"))
        breaker.call(int)
    assert circuit.shown.view.document["share"] < 1e-3
    assert store.load(PREFIX + "news").value["window"] == before.value["window"]
    assert breaker.snapshot().share_counted < 1e-3


def test_a_document_that_is_older_than_the_news_is_not_taken(redis_url: str) -> None:
    """A thread that was slow with its exchange does not take the circuit back."""
    _, circuit = following(redis_url)
    store: Any = open_store(redis_url)
    opened, _ = machine.step(machine.new(), machine.Force("forced_open", "news"), time.time(), circuit.policy)
    old = merger.Merged(machine.new(), time.time(), 1)
    seen = merger_of(circuit)._version  # pyright: ignore[reportPrivateUsage]
    merger_of(circuit).hear(Document(opened, int(store.now() * 1e6) + 10_000_000))
    merger_of(circuit)._adopt(old, [], seen)  # pyright: ignore[reportPrivateUsage]
    assert circuit.shown.view.refused
