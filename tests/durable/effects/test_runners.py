"""The batch goes along to wherever a run of it takes place."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.task_runners import ProcessPoolTaskRunner, ThreadPoolTaskRunner
from prefect.task_worker import TaskWorker

from prefect_resilience import resilient_task
from prefect_resilience.effects import batch, batch_status, idempotency_key

pytestmark = [pytest.mark.api, pytest.mark.slow]


def dask():
    from prefect_dask.task_runners import DaskTaskRunner

    return DaskTaskRunner(
        cluster_kwargs={
            "n_workers": 1,
            "threads_per_worker": 2,
            "dashboard_address": None,
            "processes": False,
        }
    )


@resilient_task(effect="external", retry=None)
def send(order):
    return idempotency_key()


def keys(batch_id):
    return sorted(effect.key for effect in batch_status(batch_id).effects)


@pytest.fixture
def named() -> str:
    """A batch that no other test has: Prefect's record of a batch counts, and all tests share one server."""
    return f"named-{uuid4().hex}"


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "runner",
    [lambda: ThreadPoolTaskRunner(max_workers=2), lambda: ProcessPoolTaskRunner(max_workers=1), dask],
)
def test_task_runners(runner, shared, named):
    @flow(task_runner=runner())
    def outer():
        plain = send.map([1, 2]).result()
        with batch(named):
            return plain, send.map([1, 2]).result()

    state = outer(return_state=True)
    plain, other = state.result()
    assert keys(str(state.state_details.flow_run_id)) == sorted(plain)
    assert keys(named) == sorted(other)
    assert len({*plain, *other}) == 4
    assert outer()[1] == other


async def test_task_workers(shared, named):
    """What is delayed belongs to the batch in which that was done."""

    @flow
    def delays():
        first = send.delay(1)
        with batch(named):
            return first.task_run_id, send.delay(2).task_run_id

    state = await asyncio.to_thread(delays, return_state=True)
    async with get_client() as client, TaskWorker(send) as worker:
        for task_run_id in await state.result():  # pyright: ignore[reportGeneralTypeIssues]
            await worker.execute_task_run(await client.read_task_run(task_run_id))
    assert len(keys(named)) == 1
    assert len(keys(str(state.state_details.flow_run_id))) == 1


@pytest.mark.requirement("004.22")
def test_a_flow_run_deep_down(shared):
    @flow
    def leaf():
        return send(1)

    @flow
    def middle():
        return leaf()

    @flow
    def top():
        return middle()

    state = top(return_state=True)
    assert keys(str(state.state_details.flow_run_id)) == [state.result()]
