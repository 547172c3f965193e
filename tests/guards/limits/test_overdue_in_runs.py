"""Tasks whose calls go on after their attempts: retries, `.map` and streams within their bulkhead."""

import asyncio
from uuid import uuid4

import pytest
from prefect import flow

from prefect_resilience import Backoff, Bulkhead, Retry, resilient_task
from prefect_resilience.guards.limits import leases, line
from prefect_resilience.guards.limits.guarding import BulkheadFullError
from prefect_resilience.guards.timeouts.threads import overdue_calls
from tests.guards.limits.hanging import Service, wait_until

pytestmark = pytest.mark.api

AT_ONCE = Backoff.constant(0.01, jitter=0)


@pytest.fixture
def service():
    made = Service()
    yield made
    made.go_on.set()
    wait_until(
        lambda: (
            not made.inside and not leases._leases.held and not line._lines.by_key and not overdue_calls()
        ),
        60,
    )


@pytest.mark.parametrize("shared", [False, True])
def test_retries_of_many_runs_never_exceed_the_places(service, shared):
    name = f"hangs {uuid4().hex[:8]}" if shared else None

    @resilient_task(limits=[Bulkhead(1, name=name)], timeout=0.3, retry=Retry(attempts=4, backoff=AT_ONCE))
    def hangs(number: int) -> None:
        service.hang(0.45)

    @flow
    def many():
        futures = hangs.map(range(5))
        for future in futures:
            future.wait()
        return [future.state.name for future in futures]

    assert many() == ["TimedOut"] * 5
    assert (service.most, service.calls) == (1, 20)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_retry_behind_its_own_overdue_call_waits_for_max_wait_and_says_why(service, kind):
    options = {
        "limits": [Bulkhead(1, max_wait=0.2)],
        "timeout": 0.1,
        "retry": Retry(attempts=2, backoff=AT_ONCE),
    }

    @resilient_task(**options)
    def hangs() -> None:
        service.hang(60)

    @resilient_task(**options)
    async def ahangs() -> None:
        await asyncio.to_thread(service.hang, 60)

    @flow
    def once():
        with pytest.raises(BulkheadFullError, match="an abandoned call holds a place until it ends"):
            hangs()

    @flow
    async def aonce():
        try:
            with pytest.raises(BulkheadFullError, match="an abandoned call holds a place until it ends"):
                await ahangs()
        finally:
            service.go_on.set()  # the loop waits for its threads when it ends

    once() if kind == "sync" else asyncio.run(aonce())
    assert (service.most, service.calls) == (1, 1)
