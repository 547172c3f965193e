"""Each seam of `tasks/edge/seams.py` is where this version of Prefect is expected to have it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from prefect import flow, task, task_engine
from prefect.blocks.system import Secret
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.context import FlowRunContext, serialize_context, tags
from prefect.states import Completed

from prefect_resilience import resilient_flow, resilient_task
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.tasks.edge import logs, seams
from prefect_resilience.telemetry import notes


def test_a_secret_that_a_block_gives_out_is_masked() -> None:
    logs.keep_secrets_out_of_logs()
    logs.keep_secrets_out_of_logs()
    assert Secret(value={"token": "a battery staple"}).get() == {"token": "a battery staple"}
    assert "a battery staple" not in redact("it was a battery staple")
    assert not hasattr(inspect.unwrap(Secret.get), "__wrapped__")


@task
def plain(number: int) -> int:
    return number


@task(cache_policy=NO_CACHE)
def without_key() -> str:
    return "a value"


@task
def failing() -> None:
    raise ValueError("no")


@task
def says_a_state() -> Any:
    return Completed(message="fine", data=1)


@task(retries=1)
def at_the_second_try() -> int:
    if not tries:
        tries.append(1)
        raise ValueError("not yet")
    return 2


@resilient_task
def resilient(number: int) -> int:
    return number


@task(persist_result=True)
def cached() -> int:
    return 7


tries: list[int] = []


def test_prefect_reports_each_state_by_one_function_with_keywords() -> None:
    wrapped = vars(task_engine)[seams.REPORTS_STATE]
    report = inspect.unwrap(wrapped)
    assert wrapped is not report
    assert not hasattr(wrapped.__wrapped__, "__wrapped__"), "wrapped once, however many listeners there are"
    assert report.__module__ == "prefect.utilities.engine"
    expected = ["task_run", "initial_state", "validated_state", "follows"]
    assert [*inspect.signature(report).parameters] == expected
    calls = inspect.getsource(task_engine).split(f"{seams.REPORTS_STATE}(")[1:]
    assert len(calls) == 5
    assert all("task_run=" in call[:300] and "validated_state=" in call[:300] for call in calls)


def test_a_listener_that_raises_does_not_fail_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def broken(task_run: Any, state: Any) -> None:
        raise ValueError("no")

    def noting(task_run: Any, state: Any) -> None:
        seen.append((task_run, state))

    monkeypatch.setattr(seams, "_listeners", [])
    monkeypatch.setattr(task_engine, seams.REPORTS_STATE, lambda **given: given["follows"])
    for listener in (broken, noting, noting):
        seams.on_task_run_state(listener)
    report = vars(task_engine)[seams.REPORTS_STATE]
    assert report(task_run="run", initial_state=None, validated_state="state", follows="event") == "event"
    assert seen == [("run", "state")]


@pytest.mark.api
def test_each_task_run_of_a_resilient_flow_is_noted() -> None:
    tries.clear()

    @resilient_flow
    def several() -> Any:
        plain(1)
        plain.submit(2).wait()
        without_key()
        failing(return_state=True)
        says_a_state()
        at_the_second_try()
        resilient(3)
        cached()
        cached()
        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        assert seams.has_only_tasks(context)
        noted = notes.last_notes(str(context.flow_run.id))
        assert noted is not None
        return dict(+noted.states), noted.retries, [*noted.outputs.values()]

    states, retries, outputs = several()
    assert states == {"Completed": 7, "Failed": 1, "Cached": 1}
    assert retries == 1
    assert outputs == [1, 2, "a value", 1, 2, 3, 7, 7]


@pytest.mark.api
def test_another_flow_is_no_task_run_that_is_noted() -> None:
    @flow
    def inner() -> int:
        return 1

    @resilient_flow
    def outer() -> bool:
        inner()
        return seams.has_only_tasks(FlowRunContext.get())

    assert outer() is False


def test_the_contexts_are_those_that_prefect_serializes() -> None:
    with tags("a"):
        prefects = {key: value for key, value in serialize_context().items() if key != "settings_context"}
        assert seams.contexts_here() == prefects


@pytest.mark.api
def test_the_client_asks_for_an_address() -> None:
    with get_client(sync_client=True) as client:
        assert isinstance(client, SyncPrefectClient)
        assert seams.next_page(client, f"{client.api_url}health").json() is True
