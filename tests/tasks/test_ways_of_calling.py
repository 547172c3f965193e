"""Every way in which Prefect lets one call a task, with a retry and a fallback in each."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from typing import Any

import pytest
from prefect import flow, task, unmapped
from prefect.assets import Asset, materialize
from prefect.task_runners import ProcessPoolTaskRunner

from prefect_resilience import (
    Backoff,
    CircuitBreaker,
    ConfigurationError,
    ResilientTask,
    Retry,
    resilient_task,
)

pytestmark = pytest.mark.api

QUICK = Retry(attempts=3, backoff=Backoff.none())


class Flaky:
    """Fails with a transient error until it was called `fails` times for the argument."""

    def __init__(self, fails: int = 1) -> None:
        self.fails = fails
        self.calls: dict[object, int] = {}

    def __call__(self, x: object) -> None:
        self.calls[x] = self.calls.get(x, 0) + 1
        if self.calls[x] <= self.fails:
            raise ConnectionResetError("cut")


def doubling(mode, flaky, **options):
    def double(x, factor=2):
        flaky(x)
        return x * factor

    return mode.task(double, retry=QUICK, **options)


def in_flow(mode, body, **options):
    """Run a body in a flow of this mode: the calls themselves are sync (`submit`, `map`)."""
    if mode.isasync:

        @flow(**options)
        async def scenario():
            return body()

        return asyncio.run(scenario())

    @flow(**options)
    def scenario():
        return body()

    return scenario()


def test_called_directly_in_a_flow_and_outside(mode):
    made = doubling(mode, Flaky())
    assert mode.value(made, 3) == 6
    outside = made(4)
    assert (asyncio.run(outside) if mode.isasync else outside) == 8


@pytest.mark.smoke
def test_submit(mode):
    made = doubling(mode, Flaky())

    def body():
        future = made.submit(3)
        assert future.result() == 6
        return future.state.name

    assert in_flow(mode, body) == "Completed"
    assert in_flow(mode, lambda: made.submit(4, return_state=True)).is_completed()


@pytest.mark.smoke
def test_map_isolates_its_branches(mode):
    flaky = Flaky()
    made = doubling(mode, flaky)
    assert in_flow(mode, lambda: made.map([1, 2, 3], factor=unmapped(10)).result()) == [10, 20, 30]
    assert flaky.calls == {1: 2, 2: 2, 3: 2}


@pytest.mark.smoke
def test_with_options_keeps_and_changes_both_kinds_of_options(mode):
    flaky = Flaky(99)
    made = doubling(mode, flaky, tags=["a"], log_prints=True)
    other = made.with_options(name="other", retry=None, fallback=lambda x: "instead")
    assert isinstance(other, ResilientTask)
    assert (other.name, other.tags, other.log_prints) == ("other", {"a"}, True)
    assert mode.value(other, 1) == "instead"
    assert flaky.calls == {1: 1}
    fewer = made.with_options(retries=1)
    assert mode.state(fewer, 2).is_failed()
    assert flaky.calls[2] == 2
    assert mode.state(made, 3).is_failed()
    assert flaky.calls[3] == 3
    slower = made.with_options(retry_delay_seconds=0.2, retries=1)
    started = time.monotonic()
    assert mode.state(slower, 4).is_failed()
    assert time.monotonic() - started >= 0.2
    again = other.with_options(tags=["b"])
    assert mode.value(again, 5) == "instead"
    with pytest.raises(ConfigurationError, match="did you mean 'fallback'"):
        made.with_options(fallbak=None)


def test_wrap_makes_one_of_a_task_that_somebody_else_wrote(mode):
    flaky = Flaky()

    def theirs(x):
        flaky(x)
        return x

    plain = task(mode.function(theirs), name="their task", tags={"t"}, description="Their words.")
    wrapped = ResilientTask.wrap(plain, retry=QUICK)
    assert isinstance(wrapped, ResilientTask)
    assert (wrapped.name, wrapped.tags, wrapped.description) == ("their task", {"t"}, "Their words.")
    assert wrapped.task_key == plain.task_key
    assert mode.value(wrapped, 1) == 1
    assert not isinstance(plain, ResilientTask)
    assert mode.state(plain, 2).is_failed()


def test_wrap_refuses_what_is_no_task_or_resilient_already(mode):
    with pytest.raises(ConfigurationError, match="write @resilient_task"):
        ResilientTask.wrap(lambda: None)
    with pytest.raises(ConfigurationError, match="with_options"):
        ResilientTask.wrap(doubling(mode, Flaky()))
    with pytest.raises(ConfigurationError, match=r"ResilientTask.wrap\(plain"):
        resilient_task(task(lambda: None, name="plain"))


def test_tasks_that_make_assets_still_make_them():
    @materialize("s3://bucket/table")
    def make():
        return 1

    wrapped = ResilientTask.wrap(make, retry=QUICK)
    assert wrapped.assets == [Asset(key="s3://bucket/table")]
    assert wrapped.with_options(retry=None).assets == wrapped.assets
    assert wrapped.with_options(assets=["s3://other/table"], retry=2).assets == [
        Asset(key="s3://other/table")
    ]
    assert flow(lambda: wrapped(), name="asset flow")() == 1


def test_methods_classmethods_and_staticmethods(mode):
    flaky = Flaky()

    def method(self, x):
        flaky(("m", x))
        return f"{x}{self.unit}"

    def of_class(cls, x):
        flaky(("c", x))
        return x * cls.scale

    def static(x):
        flaky(("s", x))
        return x

    def init(self, unit):
        self.unit = unit

    guarded = resilient_task(retry=QUICK)
    members = {
        "scale": 10,
        "__init__": init,
        "method": guarded(mode.function(method)),
        "of_class": guarded(classmethod(mode.function(of_class))),
        "static": guarded(staticmethod(mode.function(static))),
    }
    client_class: Any = type("Client", (), members)
    client = client_class("mg")
    assert mode.value(client.method, 5) == "5mg"
    assert mode.value(client.method.with_options(name="renamed"), 6) == "6mg"
    assert mode.value(client_class.of_class, 2) == 20
    assert mode.value(client_class.static, 3) == 3
    assert in_flow(mode, lambda: client.method.submit(7).result()) == "7mg"
    assert set(flaky.calls.values()) == {2}


def dask_runner():
    from prefect_dask.task_runners import DaskTaskRunner

    cluster = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": None, "processes": False}
    return DaskTaskRunner(cluster_kwargs=cluster)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("runner", "elsewhere"), [(lambda: ProcessPoolTaskRunner(max_workers=2), True), (dask_runner, False)]
)
def test_task_runners(tmp_path, runner, elsewhere):
    folder = str(tmp_path)

    @resilient_task(retry=QUICK, circuit=CircuitBreaker("in-runners"), timeout=30, fallback=lambda x: -x)
    def once_flaky(x):
        marker = os.path.join(folder, str(x))
        if not os.path.exists(marker):
            open(marker, "w").close()
            raise ConnectionResetError("cut")
        if x == 2:
            raise ValueError("never")
        return x, os.getpid()

    @flow(task_runner=runner())
    def runs():
        return [future.result() for future in [once_flaky.submit(x) for x in range(3)]]

    found = runs()
    assert [found[0][0], found[1][0], found[2]] == [0, 1, -2]
    assert (os.getpid() not in {found[0][1], found[1][1]}) is elsewhere


WORKER = """
import sys
import time
from prefect import flow
from prefect.task_worker import TaskWorker
from prefect_resilience import Backoff, Retry, resilient_task

seen = []

@resilient_task(retry=Retry(attempts=3, backoff=Backoff.none()), fallback=lambda x: -x, persist_result=True)
{d}def deferred(x):
    seen.append(x)
    if x > 100 or len(seen) < 2:
        raise ConnectionResetError("cut")
    return x * 2

if __name__ == "__main__":
    if sys.argv[1] == "serve":
        deferred.serve()
    else:
        # One after the other: the first log line of a task worker's thread and the next run's event lock each
        # other out for ever in Prefect 3.8 (prefect._internal.concurrency.services, `_instance_lock`).
        futures = []
        for number in (21, 500):
            futures.append(deferred.delay(number))
            deadline = time.monotonic() + 60
            while not futures[-1].state.is_final() and time.monotonic() < deadline:
                time.sleep(0.1)
        print("ANSWERS", *(future.result() for future in futures), futures[1].state.name)
"""


@pytest.mark.timeout(240)
def test_delay_and_serve(mode, tmp_path):
    """A task worker in another process runs what was delayed."""
    from prefect.settings import PREFECT_API_URL

    url = str(PREFECT_API_URL.value())
    script = tmp_path / "deferred_tasks.py"
    script.write_text(WORKER.replace("{d}", "async " if mode.isasync else ""))
    env = {**os.environ, "PREFECT_API_URL": url, "PREFECT_RESILIENCE_STORE_URL": "memory://"}
    env["PREFECT_LOCAL_STORAGE_PATH"] = str(tmp_path / "results")
    worker = subprocess.Popen([sys.executable, str(script), "serve"], env=env)
    try:
        asked = subprocess.run(
            [sys.executable, str(script), "ask"],
            env=env,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert "ANSWERS 42 -500 Fallback" in asked.stdout, asked.stdout + asked.stderr
    finally:
        worker.terminate()
        worker.wait(20)
