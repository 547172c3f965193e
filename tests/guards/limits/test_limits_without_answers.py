"""Limits of a fleet while Prefect's API refuses, hangs or is away, behind a real proxy."""

import logging
import subprocess
import sys
import textwrap
import threading
import time
from uuid import uuid4

import pytest
from prefect import task
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from prefect_resilience.errors.exceptions import AttemptTimeout
from prefect_resilience.guards.limits import leases, line
from prefect_resilience.guards.limits import shared as limits_shared
from prefect_resilience.guards.limits.bulkhead import Bulkhead
from prefect_resilience.guards.limits.guarding import BulkheadFullError
from prefect_resilience.guards.timeouts.threads import call_with_deadline, overdue_calls
from tests.guards.circuits.target import most_at_once, target
from tests.guards.limits.api_proxy import ApiProxy, half_busy
from tests.guards.limits.hanging import wait_until
from tests.guards.limits.processes import with_our_path

pytestmark = pytest.mark.api


@pytest.fixture
def name():
    return f"limit {uuid4().hex[:8]}"


@pytest.fixture
def proxy():
    made = ApiProxy(PREFECT_API_URL.value())
    yield made
    made.close()


@pytest.fixture
def counting():
    with target(0.02) as service:
        yield service


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    wait_until(lambda: not leases._leases.held and not line._lines.by_key and not overdue_calls())


def behind(proxy, body):
    """What `body()` gives inside a task run whose limits ask the proxy."""

    def within():
        with temporary_settings({PREFECT_API_URL: proxy.url}):
            return body()

    return task(name="limited")(within)()


def slots(prefect_name):
    with get_client(sync_client=True) as client:
        return client.read_global_concurrency_limit_by_name(prefect_name).active_slots


def said_about(caplog, name):
    """What was logged about the limit, as far as the first colon behind its name."""
    records = [one for one in caplog.records if one.name == "prefect_resilience.limits"]
    return [(one.levelname, one.getMessage()) for one in records if name in one.getMessage()]


WORKER = textwrap.dedent(
    """
    import asyncio, sys
    from concurrent.futures import ThreadPoolExecutor
    from contextlib import suppress
    from contextvars import copy_context
    from prefect import flow
    from prefect.settings import PREFECT_API_URL, temporary_settings
    from prefect_resilience import AttemptTimeout
    from prefect_resilience.guards.limits.bulkhead import Bulkhead
    from prefect_resilience.guards.limits.rate import RateLimit
    from prefect_resilience.guards.timeouts.threads import call_with_deadline, overdue_calls
    from prefect_resilience.guards.timeouts.timeout import acall_within

    from tests.guards.circuits.target import call_target

    port, api, limit = int(sys.argv[1]), sys.argv[2], eval(sys.argv[3])

    def read():
        with suppress(ConnectionError):
            call_target(port)

    def overdue():
        with suppress(AttemptTimeout):
            limit.call(call_with_deadline, read, (), {}, 0.05)

    async def aoverdue():
        with suppress(AttemptTimeout):
            await limit.acall(acall_within, 0.05, "the call", asyncio.to_thread, read)

    @flow
    def threads():
        with temporary_settings({PREFECT_API_URL: api}), ThreadPoolExecutor(6) as pool:
            for call in [pool.submit(copy_context().run, overdue) for _ in range(8)]:
                call.result()

    @flow
    async def tasks():
        with temporary_settings({PREFECT_API_URL: api}):
            await asyncio.gather(*(aoverdue() for _ in range(8)))

    asyncio.run(tasks()) if sys.argv[4] == "async" else threads()
    while overdue_calls():
        asyncio.run(asyncio.sleep(0.05))
    """
)


def two_processes(api, counting, limit):
    """One of threads and one of tasks, with 8 calls each and this API for their limit. What they log."""
    environment = {**with_our_path(), "PREFECT_API_URL": PREFECT_API_URL.value()}
    environment["PREFECT_LOGGING_LEVEL"] = "ERROR"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(counting.port), api, limit, kind],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for kind in ("sync", "async")
    ]
    said = [process.communicate(timeout=240)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert len(counting.visits) == 16
    return "".join(said)


@pytest.mark.timeout(300)
def test_overdue_calls_of_two_processes_never_exceed_the_places_while_half_of_the_answers_are_503(
    proxy, counting, name
):
    proxy.trouble, counting.delay = half_busy(7), 1.0
    said = two_processes(proxy.url, counting, f"Bulkhead(2, name={name!r})")
    assert most_at_once(counting.visits) == 2
    assert proxy.refused > proxy.asked / 4
    assert "alone" not in said


@pytest.mark.timeout(300)
def test_two_processes_share_the_rate(counting, name):
    two_processes(PREFECT_API_URL.value(), counting, f"RateLimit(3, name={name!r})")
    # 5 s where they were allowed, less where they arrive; half of that if each process had its own rate.
    times = [visit.began for visit in counting.visits]
    assert max(times) - min(times) >= 3.2
    with get_client(sync_client=True) as client:
        assert client.read_global_concurrency_limit_by_name(f"rate-limit:{name}").limit == 1


@pytest.mark.parametrize("trouble", [503, 500, "hang", "refuse"])
def test_after_its_wait_a_call_goes_on_alone_says_so_once_and_comes_back(
    proxy, name, caplog, monkeypatch, trouble
):
    caplog.set_level(logging.INFO, "prefect_resilience.limits")
    monkeypatch.setattr(line, "SERVER_SECONDS", 0.5)
    monkeypatch.setattr(leases, "TICK_SECONDS", 0.05)
    monkeypatch.setattr("prefect_resilience.tasks.edge.limits_api.API_SECONDS", 3.0)
    outages, shared = limits_shared._outages, f"bulkhead:{name}"
    wide, narrow = Bulkhead(1, name=name), Bulkhead(1, max_wait=0, name=name)

    def body():
        wide.call(int)
        if trouble == "refuse":
            proxy.stop()
        else:
            proxy.trouble = lambda number: trouble
        came = time.monotonic()
        with wide:
            assert time.monotonic() - came >= 0.5
            with pytest.raises(BulkheadFullError):
                narrow.call(int)  # the limit holds in this process
            assert slots(shared) == 0
            if trouble == "refuse":
                proxy.start()
            proxy.trouble = lambda number: None
        outages.by_name[shared] = came, 0.0
        return wide.call(lambda: slots(shared))

    assert behind(proxy, body) == 1
    assert slots(shared) == 0
    (level, alone), (_, again) = said_about(caplog, name)
    assert level == "WARNING"
    assert alone.startswith(f"Prefect's API is unavailable for the limit '{shared}'. Until ")
    assert again.startswith(f"Prefect's API is available again: the limit '{shared}' is shared again, after ")


def test_a_lease_is_renewed_through_refusals_while_an_overdue_call_runs_and_given_back_at_its_end(
    proxy, name, monkeypatch, caplog
):
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(leases, "TICK_SECONDS", 0.02)
    go_on = threading.Event()
    proxy.trouble = half_busy(11)

    def body():
        with pytest.raises(AttemptTimeout):
            Bulkhead(1, name=name).call(call_with_deadline, go_on.wait, (60,), {}, 0.1)

    behind(proxy, body)
    (lease,) = leases._leases.held
    for _ in range(3):
        due = lease.due
        wait_until(lambda due=due: lease.due > due)
    assert slots(f"bulkhead:{name}") == 1
    go_on.set()
    wait_until(lambda: slots(f"bulkhead:{name}") == 0)
    assert said_about(caplog, name) == []


def test_a_call_that_lost_its_slot_goes_on_and_says_so(name, monkeypatch, caplog):
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(leases, "TICK_SECONDS", 0.02)

    def body():
        with Bulkhead(1, name=name):
            (lease,) = leases._leases.held
            with get_client(sync_client=True) as client:  # as the server does with a lease that has run out
                client.release_concurrency_slots_with_lease(lease_id=lease.id)
            wait_until(lambda: not leases._leases.held)

    task(name="limited")(body)()
    assert slots(f"bulkhead:{name}") == 0
    assert len(said_about(caplog, name)) == 1


def test_a_slot_that_cannot_be_given_back_is_given_back_later(proxy, name, monkeypatch):
    monkeypatch.setattr(leases, "TICK_SECONDS", 0.05)

    def body():
        with Bulkhead(1, name=name):
            proxy.trouble = lambda number: 503
        assert slots(f"bulkhead:{name}") == 1
        proxy.trouble = lambda number: None
        wait_until(lambda: slots(f"bulkhead:{name}") == 0)

    behind(proxy, body)
