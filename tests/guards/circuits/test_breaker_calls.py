"""Guarding calls: every spelling, many threads, and an event loop that never waits."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from typing import Any

import cloudpickle
import pytest

from prefect_resilience import CircuitBreaker, CircuitPolicy
from prefect_resilience.errors.exceptions import CircuitOpenError, ConfigurationError
from prefect_resilience.guards.circuits.breaker import get_circuit
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
