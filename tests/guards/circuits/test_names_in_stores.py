"""A name may be any text, and so may an error's message: no store refuses them."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prefect_resilience import CircuitBreaker, get_circuits, resilient
from prefect_resilience.base.naming import storable
from prefect_resilience.errors.exceptions import CircuitOpenError
from prefect_resilience.guards.circuits import registry
from prefect_resilience.guards.circuits.breaker import get_circuit
from prefect_resilience.guards.circuits.listeners import StoreNotice
from prefect_resilience.guards.limits.guarding import prefect_name

UNPRINTABLE = ["a\0b", "\0", "a\ud800b", "\udfff", "tab\tline\nescape\x1b[31m", "del\x7fcsi\x9b", "\0" * 250]
PLAIN = ["llm:primary", "a\\x00b", "100%", "-", "right\u200fto left", "\u202eevil", "ß𝄞", " a "]
WORSE = "no answer \0 from \ud800 \x1b[2J"


@pytest.fixture(autouse=True)
def _no_captured_log() -> Iterator[None]:
    """A worker of the tests cannot send a log with a lone surrogate to the others."""
    before = logging.root.manager.disable
    logging.disable()
    yield
    logging.disable(before)


@pytest.fixture(params=["sqlite", "postgres", "redis", "memory"])
def each_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param in {"sqlite", "memory"}:
        return f"sqlite:///{tmp_path}/names.db" if request.param == "sqlite" else f"memory://{tmp_path.name}"
    return request.getfixturevalue(f"{request.param}_url")


def test_every_name_is_a_circuit_of_its_own(each_url: str, notices: list[StoreNotice]) -> None:
    names = [*UNPRINTABLE, *PLAIN]
    breakers = [CircuitBreaker(name, store=each_url) for name in names]
    for number, breaker in enumerate(breakers):
        breaker.force_open(f"number {number}: {WORSE}")
    assert registry.link_to(each_url).is_ready
    assert notices == []
    listed = {circuit.name: circuit for circuit in get_circuits(each_url)}
    assert list(map(storable, names)) == [breaker.name for breaker in breakers]
    assert set(listed) == {breaker.name for breaker in breakers}
    assert len(listed) == len(names)
    for number, (name, breaker) in enumerate(zip(names, breakers, strict=True)):
        assert (listed[breaker.name].reason or "").startswith(f"number {number}: no answer")
        for handle in (get_circuit(name, each_url), get_circuit(breaker.name, each_url)):
            assert handle.snapshot().state == "forced_open"
    get_circuit(names[0], each_url).reset()
    assert breakers[0].snapshot().state == "closed"


def test_an_error_with_any_text_opens_it(each_url: str, notices: list[StoreNotice]) -> None:
    breaker = CircuitBreaker("texts", store=each_url, failure_threshold=2)
    for _ in range(2):
        breaker.record_failure(ConnectionError(WORSE))
    assert breaker.snapshot().state == "open"
    with pytest.raises(CircuitOpenError, match="no answer"):
        breaker.call(int)
    assert notices == []


def test_a_name_from_a_parameter(each_url: str, notices: list[StoreNotice]) -> None:
    @resilient(retry=1, circuit=CircuitBreaker("llm:{provider}", store=each_url, failure_threshold=1))
    def ask(provider: str) -> str:
        raise ConnectionError(provider)

    for provider in ("nul\0", "half\ud800", "x" * 5000, "ok"):
        for error in (ConnectionError, CircuitOpenError):
            with pytest.raises(error):
                ask(provider)
    assert notices == []
    assert len(get_circuits(each_url)) == 4


@pytest.mark.parametrize("name", UNPRINTABLE)
def test_what_is_escaped_is_printable_and_stays(name: str) -> None:
    found = storable(name)
    assert found.isprintable()
    assert found.encode()
    assert len(found) <= 200
    assert storable(found) == found
    assert prefect_name("rate", name).isprintable()
    assert prefect_name("rate", name) != prefect_name("rate", found)


def test_a_store_that_refuses_a_value_has_not_failed(breaker: CircuitBreaker, store: Any) -> None:
    def refuse(*_: object) -> int:
        raise ValueError("a stored value must be JSON")

    swap, store.swap = store.swap, refuse
    assert breaker.call(int) == 0
    assert registry.link_to(store).is_ready
    store.swap = swap
    assert CircuitBreaker("another", store=store).snapshot().state == "closed"
