"""Limits that a fleet shares, on a real Prefect API and a real HTTP service."""

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from uuid import UUID, uuid4

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate
from prefect.settings import PREFECT_API_URL

from prefect_resilience.guards.limits import leases, line, shared
from prefect_resilience.guards.limits.bulkhead import Bulkhead
from prefect_resilience.guards.limits.guarding import BulkheadFullError, RateLimitedError
from prefect_resilience.guards.limits.rate import RateLimit


@pytest.fixture(scope="module", autouse=True)
def api_url(prefect_api):
    return PREFECT_API_URL.value()


@pytest.fixture
def name():
    return f"limit {uuid4().hex[:8]}"


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    deadline = time.monotonic() + 10
    while leases._leases.held and time.monotonic() < deadline:
        time.sleep(0.01)
    assert leases._leases.held == set()
    assert line._lines.by_key == {}


def seen(prefect_name):
    with get_client(sync_client=True) as client:
        return client.read_global_concurrency_limit_by_name(prefect_name)


def in_run(body):
    """What `body()` gives inside a task run, which begins and ends faster than a flow run."""
    return task(name="limited")(body)()


def taken_by_somebody_else(prefect_name):
    with get_client(sync_client=True) as client:
        answer = client.increment_concurrency_slots_with_lease([prefect_name], 1, "concurrency", 60).json()
    return UUID(answer["lease_id"])


def give_back(lease_id):
    with get_client(sync_client=True) as client:
        client.release_concurrency_slots_with_lease(lease_id)


@pytest.mark.smoke
def test_the_place_is_held_for_the_run_and_given_back(name):
    @flow
    def hold():
        with Bulkhead(1, name=name):
            (lease,) = leases._leases.held
            return seen(f"bulkhead:{name}").active_slots, lease

    slots, _ = hold()
    assert slots == 1
    assert seen(f"bulkhead:{name}").active_slots == 0


def test_without_a_run_or_a_name_no_api_is_asked(name):
    before = dict(shared._made)
    assert Bulkhead(1, name=name).call(int) == 0
    assert RateLimit(10, name=name).call(int) == 0
    assert in_run(lambda: Bulkhead(1).call(int)) == 0
    assert in_run(lambda: RateLimit(10).call(int)) == 0
    assert shared._made == before


@pytest.mark.parametrize("max_wait", [0, 0.2])
def test_a_full_fleet_refuses(name, max_wait):
    bulkhead = Bulkhead(1, max_wait=max_wait, name=name)

    def body():
        bulkhead.call(int)
        lease = taken_by_somebody_else(f"bulkhead:{name}")
        with pytest.raises(BulkheadFullError):
            bulkhead.call(int)
        with pytest.raises(BulkheadFullError):
            asyncio.run(bulkhead.acall(int))
        give_back(lease)
        return bulkhead.call(int)

    assert in_run(body) == 0


def test_the_limit_follows_the_code_and_comes_back_when_deleted(name):
    def body():
        Bulkhead(1, name=name).call(int)
        Bulkhead(3, name=name).call(int)
        assert seen(f"bulkhead:{name}").limit == 3
        with get_client(sync_client=True) as client:
            client.delete_global_concurrency_limit_by_name(f"bulkhead:{name}")
        Bulkhead(3, name=name).call(int)
        return seen(f"bulkhead:{name}").limit

    assert in_run(body) == 3


def test_names_that_prefect_does_not_take():
    odd = f"http://a/{uuid4().hex}?x=1&y=<2>%"
    assert in_run(lambda: Bulkhead(1, name=odd).call(int)) == 0
    with get_client(sync_client=True) as client:
        names = [one.name for one in client.read_global_concurrency_limits(limit=200)]
    assert any(one.startswith("bulkhead:http:--a-") for one in names)


def test_many_threads_make_the_limit_once(name):
    def body():
        with ThreadPoolExecutor(6) as pool:
            calls = [pool.submit(copy_context().run, Bulkhead(3, name=name).call, int) for _ in range(6)]
            return [call.result() for call in calls]

    assert in_run(body) == [0] * 6


def test_a_caller_cancelled_while_the_api_is_asked_leaves_no_place_taken(name, monkeypatch):
    bulkhead, asked, may_go_on = Bulkhead(1, name=name), threading.Event(), threading.Event()
    take = shared.take_place

    def slow(*args):
        lease_id = take(*args)
        asked.set()
        may_go_on.wait(20)
        return lease_id

    async def body():
        await bulkhead.acall(int)
        monkeypatch.setattr(leases, "take_place", slow)
        calling = asyncio.create_task(bulkhead.acall(int))
        await asyncio.to_thread(asked.wait, 20)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert seen_slots() == 1
        monkeypatch.undo()
        may_go_on.set()
        return await asyncio.wait_for(bulkhead.acall(int), 20)

    def seen_slots():
        return seen(f"bulkhead:{name}").active_slots

    assert asyncio.run(task(body)()) == 0


def test_a_process_that_ends_gives_its_places_back(api_url, name):
    code = textwrap.dedent(
        f"""
        from prefect import flow
        from prefect_resilience.base.drive import drive
        from prefect_resilience.guards.limits.bulkhead import Bulkhead

        @flow
        def leave_open():
            drive(Bulkhead(1, name={name!r}).acquire())

        leave_open()
        """
    )
    environment = {**os.environ, "PREFECT_API_URL": api_url, "PREFECT_LOGGING_LEVEL": "ERROR"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
    assert seen(f"bulkhead:{name}").active_slots == 0


def test_a_rate_that_the_fleet_has_used_up_is_refused(name):
    limit = RateLimit(1, per=30, burst=2, max_wait=5, name=name)

    def body():
        limit.call(int)
        with get_client(sync_client=True) as client:
            client.increment_concurrency_slots([f"rate-limit:{name}"], 1, "rate_limit")
        began = time.monotonic()
        with pytest.raises(RateLimitedError) as caught:
            RateLimit(1, per=30, burst=2, max_wait=0, name=name).call(int)
        assert time.monotonic() - began < 20
        return caught.value.retry_after

    assert 0 < in_run(body) <= 30


def test_a_slot_that_comes_free_in_the_fleet_is_found(name):
    limit = RateLimit(2, name=name)

    def body():
        limit.call(int)
        began = time.monotonic()
        time.sleep(0.6)  # a time in which this process's own rate would allow it
        with get_client(sync_client=True) as client:
            client.increment_concurrency_slots([f"rate-limit:{name}"], 1, "rate_limit")
        limit.call(int)
        return time.monotonic() - began

    assert in_run(body) > 0.9


def test_an_operator_may_stop_a_rate_or_take_its_decay_away(name):
    limit = RateLimit(100, max_wait=2.0, name=name)

    def change(**fields):
        with get_client(sync_client=True) as client:
            client.update_global_concurrency_limit(
                f"rate-limit:{name}", GlobalConcurrencyLimitUpdate(**fields)
            )

    def body():
        limit.call(int)
        change(limit=0)
        with pytest.raises(RateLimitedError):
            limit.call(int)
        change(limit=1, slot_decay_per_second=0)
        with pytest.raises(RateLimitedError):
            limit.call(int)

    in_run(body)
