"""Guarding calls: every spelling, many threads, event loops, and which circuit a name means."""

import asyncio
import copy
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

from prefect_resilience import CircuitBreaker, CircuitPolicy, get_circuits, reset_all_circuits
from prefect_resilience.errors.exceptions import CircuitOpenError, ConfigurationError
from prefect_resilience.guards.circuits.breaker import get_circuit
from prefect_resilience.guards.circuits.registry import set_default_store
from prefect_resilience.stores import open_store
from prefect_resilience.testing.stores import wait_until
from tests.guards.circuits.tripping import failing, trip

# -- spellings


@pytest.mark.parametrize("sync_interval", [1e-9, 60])
def test_call_refuses_an_async_function(store: Any, sync_interval: float) -> None:
    async def later() -> None: ...

    breaker = CircuitBreaker("service", store=store, sync_interval=sync_interval)
    breaker.call(int)
    for function in (later, lambda: later()):
        with pytest.raises(ConfigurationError, match="acall"):
            _ = breaker.call(function)


# -- threads


def test_many_threads_lose_no_count(store: Any) -> None:
    breaker = CircuitBreaker("service", store=store, window=10_000, sync_interval=0.01)
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        for _ in range(500):
            breaker.call(int)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert breaker.snapshot().window_calls == 8 * 500


def test_one_of_many_threads_probes(store: Any) -> None:
    breaker = CircuitBreaker("service", store=store, open_for=0, success_threshold=1)
    trip(breaker)
    made, refused = [], []
    start, answered = threading.Barrier(16), threading.Event()

    def work() -> None:
        start.wait()
        try:
            breaker.call(lambda: (made.append(1), answered.wait(30)))
        except CircuitOpenError:
            refused.append(1)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(refused) == 15)
    answered.set()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert breaker.state == "closed"


async def test_the_event_loop_never_waits_for_a_store(store: Any) -> None:
    breaker = CircuitBreaker("service", store=store, sync_interval=1e-9)

    async def work() -> int:
        return threading.get_ident()

    for _ in range(3):
        assert await breaker.acall(work) == threading.get_ident()
        async with breaker:
            pass
    with pytest.raises(TimeoutError):
        await breaker.acall(failing(TimeoutError()))
    assert store.contacts > 3
    assert threading.get_ident() not in store.threads


async def test_a_probe_that_is_cancelled_makes_room(store: Any) -> None:
    breaker = CircuitBreaker("service", store=store, sync_interval=1e-9)
    trip(breaker)
    store.time += 30
    task = asyncio.create_task(breaker.acall(asyncio.sleep, 60))
    await asyncio.to_thread(wait_until, lambda: breaker.snapshot().probes_in_flight == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(wait_until, lambda: breaker.snapshot().probes_in_flight == 0)
    assert breaker.state == "half_open"


# -- handles


def test_a_breaker_goes_through_pickle_and_copy(url: str) -> None:
    breaker = CircuitBreaker("service", failure_threshold=2, store=url)
    trip(breaker, times=2)
    for copied in (
        pickle.loads(pickle.dumps(breaker)),
        cloudpickle.loads(cloudpickle.dumps(breaker)),
        copy.deepcopy(breaker),
        copy.copy(breaker),
    ):
        assert copied is not breaker
        assert (copied.name, copied.policy) == (breaker.name, breaker.policy)
        with pytest.raises(CircuitOpenError):
            copied.call(int)


def test_a_policy_goes_through_json(store: Any) -> None:
    policy = CircuitPolicy(window="2m", counts=["timeout"], slow_call=3)
    again = CircuitPolicy.model_validate_json(policy.model_dump_json())
    assert again == policy
    assert CircuitBreaker.from_policy("service", again, store).policy == policy
    assert CircuitBreaker("service", window="120s", counts=["timeout"], slow_call=3.0, store=store)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"failure_threshold": 0}, "at least 1"),
        ({"failure_threshold": True}, "write a number"),
        ({"failure_threshold": 1.5}, "whole number"),
        ({"open_for": -1}, "at least 0"),
        ({"open_for": float("nan")}, "not a duration"),
        ({"probe_lease": 0}, "more than 0"),
        ({"failure_rate": 50}, "at most 1"),
        ({"open_backoff": 0.5}, "at least 1"),
        ({"window": "soon"}, 'write "60s"'),
        ({"counts": ["timeot"]}, "did you mean 'timeout'"),
        ({"counts": []}, "empty"),
        ({"counts": "timeout"}, "list"),
        ({"name": ""}, "needs a name"),
        ({"name": "a{b"}, "braces"),
        ({"name": "a{}"}, "is not a parameter"),
        ({"store": "postgre"}, "sqlite:///"),
        ({"store": 5}, "not a store"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_sentence(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        CircuitBreaker(**{"name": "service", **wrong})
    assert "\n" not in str(caught.value)


# -- templates


def test_a_name_is_filled_from_the_parameters(store: Any) -> None:
    class Config:
        host = "h1"

    breaker = CircuitBreaker("http:{config.host}:{ports[0]}:{config.host}", store=store, sync_interval=1e-9)
    assert breaker.fields == ("config", "ports")
    bound = breaker.bind({"config": Config(), "ports": [80], "more": 1})
    assert (bound.name, bound.fields) == ("http:h1:80:h1", ())
    assert breaker.bind({"config": Config(), "ports": [80]}) is bound
    assert bound.bind({}) is bound
    with pytest.raises(ConfigurationError, match="unknown parameter 'ports'"):
        breaker.bind({"config": Config()})
    with pytest.raises(ConfigurationError, match="AttributeError"):
        breaker.bind({"config": 1, "ports": [80]})
    with pytest.raises(ConfigurationError, match="template"):
        breaker.call(int)


def test_a_decorated_template_guards_each_service_apart(store: Any) -> None:
    breaker = CircuitBreaker("llm:{provider}", store=store, sync_interval=1e-9)

    @breaker
    def ask(question: str, provider: str = "primary") -> str:
        if provider == "primary":
            raise TimeoutError
        return provider

    for _ in range(5):
        with pytest.raises(TimeoutError):
            ask("?")
    with pytest.raises(CircuitOpenError, match="llm:primary"):
        ask("?")
    assert ask("?", "other") == "other"
    assert get_circuit("llm:primary", store).state == "open"
    again = pickle.loads(pickle.dumps(breaker))
    assert again.fields == ("provider",)


def test_bound_names_are_taken_literally_and_kept_short(store: Any) -> None:
    breaker = CircuitBreaker("llm:{provider}", store=store, sync_interval=1e-9)
    bound = breaker.bind({"provider": "{odd}"})
    assert (bound.name, bound.fields, bound.call(int)) == ("llm:{odd}", (), 0)
    assert pickle.loads(pickle.dumps(bound)).name == "llm:{odd}"
    names = {breaker.bind({"provider": "x" * 1000 + str(n)}).name for n in range(3)}
    assert [len(name) for name in names] == [200] * 3
    assert CircuitBreaker("a{{b}}").name == "a{b}"


def test_only_so_many_bound_breakers_are_kept(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefect_resilience.guards.circuits.breaker.BOUND_KEPT", 3)
    breaker = CircuitBreaker("llm:{provider}", store=store)
    first = breaker.bind({"provider": 0})
    for n in range(4):
        breaker.bind({"provider": n})
    assert breaker.bind({"provider": 0}) is not first


# -- counts by hand


@pytest.mark.requirement("003.08")
def test_calls_that_were_made_elsewhere_are_counted(store: Any) -> None:
    breaker = CircuitBreaker("elsewhere", failure_threshold=3, open_for=30, sync_interval=1e-9, store=store)
    for _ in range(2):
        assert breaker.record_failure(TimeoutError("no answer"))
    assert breaker.record_success()
    assert breaker.record_failure(PermissionError("not the service's fault"))
    assert breaker.state == "closed"
    for _ in range(3):
        assert breaker.record_failure(TimeoutError("no answer"))
    assert breaker.state == "open"
    assert not breaker.record_success(), "an open circuit counts nothing"
    store.time += 40
    assert breaker.record_success()
    assert breaker.state == "half_open"
    assert breaker.record_success()
    assert breaker.state == "closed"


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
