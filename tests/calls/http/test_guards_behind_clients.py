"""Circuits, limits and deadlines of a transport, and what a cancelled or abandoned request leaves behind."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from anyio import move_on_after

from prefect_resilience import Bulkhead, CircuitBreaker
from prefect_resilience.errors.exceptions import AttemptTimeout, CircuitOpenError
from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.guards.retries.policy import Retry
from prefect_resilience.guards.timeouts.threads import overdue_calls
from tests.calls.http.server import Act
from tests.calls.http.webs import each_client, until


def breaker(name: str, **options: float) -> CircuitBreaker:
    return CircuitBreaker(name, failure_threshold=2, **{"open_for": 60, **options})


# -- circuits


def test_each_host_has_its_circuit(make_web, server, other):
    web = make_web(circuit=breaker("http:{host}"), retry=None)
    server.says(503)
    for _ in range(2):
        assert web.get(server.url).status_code == 503
    with pytest.raises(CircuitOpenError) as caught:
        web.get(server.url)
    assert caught.value.name == f"http:{server.host}"
    assert len(server.seen) == 2
    assert web.get(other.url).status_code == 200


# -- limits


# -- deadlines


@each_client
def test_a_deadline_is_for_all_attempts(make_web, server):
    web = make_web(deadline=0.5, retry=Retry(attempts=50, backoff=Backoff.constant(0.1)))
    server.says(503)
    began = time.monotonic()
    assert web.get(server.url).status_code == 503
    assert time.monotonic() - began < 1.0
    assert 2 <= len(server.seen) <= 6


def test_a_deadline_ends_an_attempt_that_hangs(make_web, server):
    held = threading.Event()
    web = make_web(deadline=0.3)
    server.says(503, Act(hold=held))
    began = time.monotonic()
    with pytest.raises(AttemptTimeout):
        web.get(server.url)
    assert time.monotonic() - began < 1.0
    held.set()
    assert web.calm()


# -- what is left behind


@each_client
def test_an_answer_that_comes_too_late_is_closed(make_web, server, way):
    """A sync attempt is abandoned in its thread; its answer comes when nobody waits for it."""
    held = threading.Event()
    web = make_web(timeout=0.15, retry=None)
    server.says(Act(hold=held, body=b"x" * 10_000))
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            web.get(server.url)
        except AttemptTimeout as error:
            errors.append(error)

    if way != "async":  # beside the main thread, where an alarm would interrupt it
        asking = threading.Thread(target=ask)
        asking.start()
        asking.join()
    else:
        ask()
    assert len(errors) == 1
    held.set()
    assert until(lambda: overdue_calls() == 0)
    assert web.calm()
    server.says(200)
    assert web.get(server.url).status_code == 200


@pytest.mark.parametrize("way", ["async"])  # a thread cannot be cancelled
def test_a_cancelled_request_is_gone_at_once(make_web, server):
    held = threading.Event()
    web = make_web(limits=Bulkhead(1, max_wait=0, name="one"), circuit=breaker("http:{host}"))
    server.says(Act(hold=held))

    async def cancelled() -> float:
        asking = asyncio.create_task(web.client.get(server.url))
        await asyncio.to_thread(until, lambda: bool(server.seen))
        began = time.monotonic()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        return time.monotonic() - began

    assert web.run(cancelled()) < 0.1
    assert web.calm()
    held.set()
    assert until(lambda: server.open_connections == 0)
    server.says(200)
    assert web.get(server.url).status_code == 200, "its place is free again"


@pytest.mark.parametrize("body", [b"{}", b"x" * 300_000], ids=["small", "large"])
@pytest.mark.parametrize("way", ["async"])  # a thread cannot be cancelled
def test_a_request_that_is_cancelled_while_it_waits_leaves_no_answer_open(make_web, server, body):
    web = make_web(retry=Retry(attempts=3, backoff=Backoff.constant(30)))
    server.says(Act(503, body=body))

    async def cancelled(by_scope: bool) -> None:
        if by_scope:
            with move_on_after(0.2) as scope:
                await web.client.get(server.url)
            assert scope.cancelled_caught
        else:
            asking = asyncio.create_task(web.client.get(server.url))
            await asyncio.sleep(0.2)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    for by_scope in (False, True):
        web.run(cancelled(by_scope))
        assert web.calm()
