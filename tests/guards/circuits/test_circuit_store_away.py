"""A store that is away, slow or fought over: circuits go on, say so once, and make up for it later."""

import threading
import time
from typing import Any

import pytest

from prefect_resilience import CircuitBreaker, get_circuits, reset_all_circuits
from prefect_resilience.errors.exceptions import CircuitOpenError, StoreUnavailable
from prefect_resilience.guards.circuits import link as link_module
from prefect_resilience.guards.circuits.listeners import StoreNotice, Transition
from prefect_resilience.guards.circuits.registry import set_default_store
from prefect_resilience.stores import MemoryStore
from prefect_resilience.testing.stores import wait_until
from tests.guards.circuits.tripping import trip


@pytest.fixture(autouse=True)
def _short_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "SHORTEST_REST", 0.1)


def rested() -> None:
    wait_until_after = time.monotonic() + 0.11
    wait_until(lambda: time.monotonic() > wait_until_after)


def test_calls_go_on_and_it_is_said_once(
    breaker: CircuitBreaker, store: Any, notices: list[StoreNotice], caplog: pytest.LogCaptureFixture
) -> None:
    store.away = True
    for _ in range(50):
        assert breaker.call(lambda: "called") == "called"
    assert [(n.available, n.reason) for n in notices] == [(False, "the store is away")]
    assert [r.name for r in caplog.records] == ["prefect_resilience.circuits"]
    assert "continue with the state in this process" in caplog.text
    rested()
    breaker.call(int)
    assert len(notices) == 1
    store.away = False
    rested()
    breaker.call(int)
    assert [n.available for n in notices] == [False, True]
    assert breaker.snapshot().window_calls == 52


def test_it_opens_and_recovers_by_itself_without_a_store(store: Any, transitions: list[Transition]) -> None:
    store.away = True
    breaker = CircuitBreaker("service", store=store, open_for=1, success_threshold=1, sync_interval=1e-9)
    trip(breaker)
    with pytest.raises(CircuitOpenError):
        breaker.call(int)
    wait_until(lambda: breaker.state == "half_open")
    assert breaker.call(int) == 0
    assert breaker.state == "closed"
    assert [t.after for t in transitions] == ["open", "half_open", "closed"]
    store.away = False
    rested()
    assert breaker.snapshot().state == "closed", "old failures are no debt after a recovery"


def test_failures_are_merged_when_it_is_back(breaker: CircuitBreaker, store: Any) -> None:
    breaker.call(int)
    store.away = True
    trip(breaker, times=4)
    store.away = False
    rested()
    assert breaker.snapshot().consecutive_failures == 4
    trip(breaker, times=1)
    other = CircuitBreaker("other", store=store)
    assert [(s.name, s.state) for s in get_circuits(store)] == [("service", "open")]
    assert other.state == "closed"


def test_the_store_wins_where_it_has_moved_on(breaker: CircuitBreaker, store: Any) -> None:
    breaker.call(int)
    # Another process, by its own link to the same documents.
    other = CircuitBreaker("service", store=Twin(store), sync_interval=1e-9)
    store.away = True
    trip(breaker)
    with pytest.raises(CircuitOpenError):
        breaker.call(int)
    store.away = False
    other.force_closed("somebody looked")
    rested()
    seen = breaker.snapshot()
    assert (seen.state, seen.reason, seen.consecutive_failures) == ("closed", "somebody looked", 0)
    assert breaker.call(int) == 0


def test_results_of_private_generations_do_not_count_in_the_stores(store: Any) -> None:
    """Alone, a process opens and recovers; the fleet meanwhile gets to a generation of the same number."""
    breaker = CircuitBreaker("service", store=store, sync_interval=1e-9, open_for=0)
    other = CircuitBreaker("service", store=Twin(store), sync_interval=1e-9)
    breaker.call(int)
    store.away = True
    trip(breaker)
    breaker.call(int)
    breaker.call(int)
    alone = breaker.snapshot()
    assert (alone.state, alone.generation) == ("closed", 4)
    late = [breaker._current().admit() or breaker._current().ask() for _ in range(9)]
    other.force_open("a")
    other.force_closed("b")
    other.reset()
    store.away = False
    rested()
    assert breaker.snapshot().generation == 4
    for permit in late:
        breaker._current().settle(permit, TimeoutError())
    breaker.flush()
    seen = breaker.snapshot()
    assert (seen.state, seen.window_calls) == ("closed", 0)


def test_commands_that_cannot_be_told_change_nothing(breaker: CircuitBreaker, store: Any) -> None:
    breaker.call(int)
    store.away = True
    for command in (breaker.force_open, breaker.force_closed, breaker.disable, breaker.reset):
        with pytest.raises(StoreUnavailable):
            command()
    with pytest.raises(StoreUnavailable):
        get_circuits(store)
    with pytest.raises(StoreUnavailable):
        reset_all_circuits(store)
    assert breaker.call(int) == 0
    store.away = False
    # Nobody has to wait for the end of a rest to act by hand.
    breaker.force_open("now")
    assert breaker.state == "forced_open"


def test_a_default_url_that_means_no_store_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, notices: list[StoreNotice]
) -> None:
    set_default_store(lambda: "nonsense://user:secret@host")
    try:
        assert CircuitBreaker("service").call(int) == 0
    finally:
        set_default_store(None)
    assert [n.available for n in notices] == [False]
    assert "secret" not in notices[0].reason


def test_no_password_of_the_url_is_told(notices: list[StoreNotice], caplog: pytest.LogCaptureFixture) -> None:
    class Away(MemoryStore):
        def load(self, key: str) -> Any:
            raise StoreUnavailable(f"no answer from {self.url}")

    breaker = CircuitBreaker("service", store=Away("postgresql://fleet:hunter2hunter2@db/x"))
    assert breaker.call(int) == 0
    assert "hunter2hunter2" not in f"{notices} {caplog.text}"
    assert "db/x" in caplog.text


def test_a_slow_store_slows_one_call_and_then_rests(
    store: Any, monkeypatch: pytest.MonkeyPatch, notices: list[StoreNotice]
) -> None:
    monkeypatch.setattr(link_module, "SLOW", 0.05)
    monkeypatch.setattr(link_module, "REST_PER_SECOND", 1000.0)
    load = store.load

    def slowly(key: str) -> Any:
        threading.Event().wait(0.1)
        return load(key)

    store.load = slowly
    breaker = CircuitBreaker("service", store=store, sync_interval=1e-9)
    for _ in range(100):
        breaker.call(int)
    trip(breaker)
    with pytest.raises(CircuitOpenError):
        breaker.call(int)
    # The first contact may take its time; the next one was slow, and no other followed.
    assert store.contacts <= 3
    assert [notice.available for notice in notices] == [False]
    assert notices[0].reason.startswith("an answer took 0.")


def test_a_document_that_others_keep_changing_stops_nobody(store: Any) -> None:
    breaker = CircuitBreaker("service", store=store, sync_interval=1e-9)
    breaker.call(int)
    swap = store.swap
    store.swap = lambda *args, **kwargs: 0
    assert breaker.call(int) == 0
    with pytest.raises(StoreUnavailable, match="too many concurrent changes"):
        breaker.reset()
    store.swap = swap
    assert breaker.snapshot().window_calls == 2


def test_a_listener_that_fails_hurts_nobody(
    breaker: CircuitBreaker, transitions: list[Transition], caplog: pytest.LogCaptureFixture
) -> None:
    from prefect_resilience.guards.circuits.listeners import transition_listeners

    def broken(transition: Transition) -> None:
        raise ZeroDivisionError

    def asking(transition: Transition) -> None:
        states.append(breaker.snapshot().state)

    states: list[str] = []
    for listener in (broken, asking):
        transition_listeners.add(listener)
    try:
        trip(breaker)
    finally:
        for listener in (broken, asking):
            transition_listeners.remove(listener)
    assert len(transitions) == 1
    assert states == ["open"], "no lock is held while a listener is called"
    assert "a listener failed" in caplog.text


class Twin(MemoryStore):
    """Another way to the documents of a store."""

    def __init__(self, other: Any) -> None:
        super().__init__("memory://twin")
        self._other = other

    def now(self) -> float:
        return self._other.now() if hasattr(self, "_other") else 0.0

    def load(self, key: str) -> Any:
        return MemoryStore.load(self._other, key)

    def swap(self, key: str, *args: Any, **kwargs: Any) -> int:
        return MemoryStore.swap(self._other, key, *args, **kwargs)
