"""Which circuit a name means in this process, and where circuits live by default."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from prefect_resilience import CircuitBreaker, CircuitPolicy, get_circuits, reset_all_circuits
from prefect_resilience.errors.exceptions import CircuitOpenError, ConfigurationError
from prefect_resilience.guards.circuits.breaker import get_circuit
from prefect_resilience.guards.circuits.registry import set_default_store
from prefect_resilience.stores import open_store
from tests.guards.circuits.tripping import trip


@pytest.fixture
def default_store() -> Iterator[str]:
    name = f"memory://default-{threading.get_ident()}-{id(object())}"
    set_default_store(name)
    yield name
    set_default_store(None)


def test_another_policy_for_the_same_name_is_refused(store: Any) -> None:
    first = CircuitBreaker("service", store=store)
    with pytest.raises(ConfigurationError, match=r"open_for=30\.0 and cannot have open_for=5\.0") as caught:
        CircuitBreaker("service", store=store, open_for=5)
    for words in ("reuse the first", "choose another name", "forget_circuits"):
        assert words in str(caught.value)
    assert CircuitBreaker("service", open_for=5, store="memory://elsewhere").policy.open_for == 5
    assert first.call(int) == 0


def test_templates_agree_as_well(store: Any) -> None:
    first = CircuitBreaker("llm:{provider}", store=store)
    with pytest.raises(ConfigurationError, match="probes"):
        CircuitBreaker("llm:{provider}", probes=2, store=store)
    plain = CircuitBreaker("llm:x", probes=3, store=store)
    with pytest.raises(ConfigurationError, match="llm:x"):
        first.bind({"provider": "x"})
    assert plain.name == "llm:x"


def test_a_circuit_is_found_by_name(store: Any) -> None:
    declared = CircuitBreaker("service", store=store, open_for=5, sync_interval=1e-9)
    assert get_circuit("service", store).policy == declared.policy
    get_circuit("service", store).force_open("by name")
    assert declared.state == "forced_open"
    unknown = get_circuit("nobody:{has}:this", store)
    assert (unknown.fields, unknown.state, unknown.policy) == ((), "closed", CircuitPolicy())


@pytest.mark.requirement("003.18")
def test_every_circuit_of_a_store_is_listed_and_reset(store: Any) -> None:
    breakers = [CircuitBreaker(f"service-{n:03}", store=store) for n in range(120)]
    for breaker in breakers:
        breaker.call(int)
    breakers[7].force_open("x")
    listed = get_circuits(store)
    assert [s.name for s in listed] == [b.name for b in breakers]
    assert [s.window_calls for s in listed] == [1] * 120
    assert [s.state for s in listed].count("forced_open") == 1
    assert reset_all_circuits(store) == 120
    assert {s.state for s in get_circuits(store)} == {"closed"}
    assert breakers[7].call(int) == 0


def test_the_default_store_is_looked_up_at_the_first_call(default_store: str) -> None:
    asked: list[int] = []

    def url() -> str:
        asked.append(1)
        return default_store

    set_default_store(url)
    breaker = CircuitBreaker("service")
    assert asked == []
    breaker.call(int)
    breaker.call(int)
    assert asked == [1]
    assert [s.name for s in get_circuits()] == ["service"]
    assert reset_all_circuits() == 1


def test_breakers_in_use_move_to_a_new_default_store(default_store: str) -> None:
    breaker = CircuitBreaker("service")
    breaker.force_open("here")
    set_default_store(f"{default_store}-other")
    assert breaker.call(int) == 0
    set_default_store(default_store)
    with pytest.raises(CircuitOpenError):
        breaker.call(int)


def test_the_settings_name_the_default_store(monkeypatch: pytest.MonkeyPatch, default_store: str) -> None:
    CircuitBreaker("where", open_for=1).force_open("in the one that was set")
    monkeypatch.setenv("PREFECT_RESILIENCE_CIRCUIT_STORE_URL", f"{default_store}-of-the-settings")
    set_default_store(None)
    CircuitBreaker("where-else").force_open("in that of the settings")
    assert [circuit.name for circuit in get_circuits(f"{default_store}-of-the-settings")] == ["where-else"]


def test_a_wrong_default_url_is_refused_where_it_is_set() -> None:
    with pytest.raises(ConfigurationError, match="sqlite:///"):
        set_default_store("postgre")


def test_a_store_may_be_given_as_it_is_or_by_its_url(url: str) -> None:
    opened = open_store(url)
    first = CircuitBreaker("service", store=url, sync_interval=1e-9)
    first.call(int)
    first.force_open("x")
    second = CircuitBreaker("service", store=opened, sync_interval=1e-9)
    with pytest.raises(CircuitOpenError):
        second.call(int)


def test_closed_and_fresh_asks_no_store(store: Any) -> None:
    breaker = CircuitBreaker("service", store=store, sync_interval=60)
    breaker.call(int)
    contacts = store.contacts
    for _ in range(1000):
        breaker.call(int)
        permit = breaker._current().admit()
        assert permit is not None
        assert breaker._current().settle(permit) is False
    assert store.contacts == contacts
    assert breaker.snapshot().window_calls == 2001


def test_open_and_fresh_refuses_without_asking(store: Any) -> None:
    breaker = CircuitBreaker("service", store=store, sync_interval=60)
    breaker.force_open("x")
    contacts = store.contacts
    for _ in range(1000):
        with pytest.raises(CircuitOpenError):
            breaker.call(int)
    assert store.contacts == contacts


def test_the_hosts_clock_plays_no_part(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    breaker = CircuitBreaker("service", store=store, sync_interval=1e-9)
    trip(breaker)
    monkeypatch.setattr("time.time", lambda: 9e9)
    with pytest.raises(CircuitOpenError) as caught:
        breaker.call(int)
    assert caught.value.retry_in == pytest.approx(30, abs=0.5)
