"""What counts as a failure, how a circuit opens and recovers, and what is done to it by hand."""

import asyncio
import json
import math
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from prefect_resilience import CircuitBreaker
from prefect_resilience.errors.exceptions import AttemptTimeout, CircuitOpenError, ConfigurationError
from prefect_resilience.guards.circuits.listeners import Transition
from tests.guards.circuits.tripping import trip


def http_error(status: int, headers: dict[str, str] | None = None) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://service.test/")
    response = httpx.Response(status, headers=headers, request=request)
    return httpx.HTTPStatusError(f"answered {status}", request=request, response=response)


# -- what counts


@pytest.mark.parametrize(
    "error",
    [
        http_error(429),
        http_error(500),
        http_error(503),
        TimeoutError(),
        AttemptTimeout(3),
        ConnectionRefusedError(),
        httpx.ConnectError("refused"),
        RuntimeError("surprise"),
    ],
    ids=repr,
)
def test_failures_of_the_service_trip_it(breaker: CircuitBreaker, error: Exception) -> None:
    trip(breaker, error)
    assert breaker.state == "open"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422])
def test_mistakes_of_the_client_show_that_the_service_is_well(breaker: CircuitBreaker, status: int) -> None:
    trip(breaker, times=4)
    trip(breaker, http_error(status), times=1)
    assert breaker.snapshot().consecutive_failures == 0
    trip(breaker, http_error(status), times=50)
    seen = breaker.snapshot()
    assert (seen.state, seen.window_calls, seen.window_failures) == ("closed", 55, 4)


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit(), SystemExit(), CircuitOpenError("other")],
    ids=repr,
)
def test_what_says_nothing_about_the_service_counts_as_neither(
    breaker: CircuitBreaker, error: BaseException
) -> None:
    trip(breaker, times=4)
    trip(breaker, error, times=20)
    seen = breaker.snapshot()
    assert (seen.consecutive_failures, seen.window_calls) == (4, 4)


def test_counts_says_what_is_a_failure(store: Any) -> None:
    breaker = CircuitBreaker("service", store=store, sync_interval=1e-9, counts=["not_found"])
    trip(breaker, TimeoutError(), times=9)
    assert breaker.snapshot().window_calls == 0
    trip(breaker, http_error(404))
    assert breaker.state == "open"


def test_a_call_that_is_slow_is_timed(store: Any) -> None:
    breaker = CircuitBreaker("service", store=store, slow_call=0.5, minimum_calls=100, sync_interval=60)
    ended = threading.Event()
    breaker.call(int)
    breaker.call(lambda: ended.wait(0.6))
    assert breaker.snapshot().window_slow == 1


# -- open, half open, closed


def test_an_open_circuit_refuses_at_once_and_says_why(
    breaker: CircuitBreaker, store: Any, transitions: list[Transition]
) -> None:
    trip(breaker, http_error(503))
    with pytest.raises(
        CircuitOpenError, match=r"'service' rejects calls for 30\.0 s.*answered 503"
    ) as caught:
        breaker.call(pytest.fail, "the call was made")
    assert caught.value.name == "service"
    assert caught.value.retry_in == pytest.approx(30, abs=0.5)
    assert [(t.name, t.before, t.after, t.generation) for t in transitions] == [
        ("service", "closed", "open", 2)
    ]
    assert transitions[0].retry_at == store.time + 30


def test_retry_after_of_the_server_lengthens_the_opening(breaker: CircuitBreaker, store: Any) -> None:
    trip(breaker, http_error(429, {"Retry-After": "90"}))
    assert breaker.snapshot().retry_at == store.time + 90


@pytest.mark.requirement("003.07")
def test_it_recovers_through_probes(
    breaker: CircuitBreaker, store: Any, transitions: list[Transition]
) -> None:
    trip(breaker)
    store.time += 30
    assert breaker.state == "half_open"
    assert breaker.call(lambda: 1) == 1
    assert breaker.state == "half_open"
    assert breaker.call(lambda: 2) == 2
    assert breaker.state == "closed"
    assert [t.after for t in transitions] == ["open", "half_open", "closed"]


# -- by hand


@pytest.mark.requirement("003.08")
def test_commands_hold_at_once(breaker: CircuitBreaker, store: Any, transitions: list[Transition]) -> None:
    breaker.force_open("maintenance")
    assert breaker.state == "forced_open"
    with pytest.raises(CircuitOpenError, match=r"until it is closed manually.*maintenance") as caught:
        breaker.call(int)
    assert caught.value.retry_in is None
    breaker.disable()
    trip(breaker, times=50)
    assert breaker.state == "disabled"
    breaker.force_closed()
    trip(breaker)
    assert breaker.state == "open"
    breaker.reset()
    assert breaker.state == "closed"
    assert [t.after for t in transitions] == ["forced_open", "disabled", "closed", "open", "closed"]


@pytest.mark.parametrize("by_hand", ["force_open", "force_closed", "disable", "reset"])
def test_a_reason_given_by_hand_is_stored_without_secrets(
    breaker: CircuitBreaker, store: Any, by_hand: str
) -> None:
    getattr(breaker, by_hand)("the key sk-ant-api03-" + "a1B2" * 20 + " is blocked")
    stored = json.dumps([document.value for _, document in store.scan("")])
    assert "is blocked" in stored
    assert "a1B2" not in stored


PAST = datetime.now(UTC) - timedelta(hours=1)


@pytest.mark.parametrize(
    "until",
    [
        0,
        600,
        PAST,
        PAST.astimezone().replace(tzinfo=None),
        timedelta(minutes=-1),
        "0s",
        1e300,
        10**400,
        timedelta.max,
        datetime.max,
        datetime.min,
        math.nan,
        True,
        "soon",
        "2026-13-01",
        [1],
    ],
)
def test_an_end_that_is_no_time_to_come_is_refused(breaker: CircuitBreaker, store: Any, until: Any) -> None:
    store.time = time.time()
    breaker.call(int)
    with pytest.raises(ConfigurationError, match=r'until=.*: write a future datetime.*"10m"'):
        breaker.force_open("maintenance", until=until)
    assert breaker.snapshot().state == "closed"


@pytest.mark.parametrize(
    "until",
    ["10m", " 10 m ", "600", timedelta(minutes=10), 600.0, datetime.fromtimestamp(600, UTC)],
    ids=repr,
)
def test_an_end_in_every_form_by_the_clock_of_the_store(store: Any, until: Any) -> None:
    """Also if this host's clock is far off, and the process has not met the store before."""
    store.time = 0.0
    breaker = CircuitBreaker("service", store=store)
    breaker.force_open("maintenance", until=until)
    assert breaker.snapshot().retry_at == pytest.approx(600, abs=5)


def test_an_end_without_an_offset_is_in_this_zone(breaker: CircuitBreaker, store: Any) -> None:
    breaker.force_open("maintenance", until=datetime.fromtimestamp(store.time + 60))
    assert breaker.snapshot().retry_at == pytest.approx(store.time + 60, abs=1)
