"""Prefect's own options and settings mean the same as on `@task`, and read back as they were written."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import cloudpickle
import pytest
from prefect import Task, flow, task
from prefect.cache_policies import INPUTS, NO_CACHE
from prefect.context import TaskRunContext
from prefect.settings import (
    PREFECT_TASKS_DEFAULT_PERSIST_RESULT,
    PREFECT_TASKS_DEFAULT_RETRIES,
    PREFECT_TASKS_DEFAULT_RETRY_DELAY_SECONDS,
    temporary_settings,
)
from prefect.tasks import exponential_backoff
from prefect.utilities.annotations import NotSet

from prefect_resilience import Backoff, ResilientTask, Retry, resilient_task


def work(x: int = 1) -> int:
    """What it is for."""
    return x


def hook(*_: Any) -> None: ...


def condition(task: Any, task_run: Any, state: Any) -> bool:
    return True


def resilient(options: dict[str, Any]) -> ResilientTask[..., Any]:
    return resilient_task(**options)(work)


def wrapped(options: dict[str, Any]) -> ResilientTask[..., Any]:
    return ResilientTask.wrap(task(**options)(work))


def later(options: dict[str, Any]) -> ResilientTask[..., Any]:
    return resilient_task(work).with_options(**options)


WAYS: dict[str, Callable[[dict[str, Any]], Any]] = {"decorated": resilient, "wrapped": wrapped}

OPTIONS: dict[str, dict[str, Any]] = {
    "retries": {"retries": 2},
    "no retries": {"retries": 0},
    "a delay": {"retries": 3, "retry_delay_seconds": 5},
    "delays": {"retries": 3, "retry_delay_seconds": [1, 2, 3]},
    "a function of delays": {"retries": 3, "retry_delay_seconds": exponential_backoff(2)},
    "jitter": {"retries": 3, "retry_delay_seconds": 5, "retry_jitter_factor": 0.5},
    "much jitter": {"retries": 3, "retry_delay_seconds": 5, "retry_jitter_factor": 2.5},
    "a condition": {"retries": 1, "retry_condition_fn": condition},
    "names": {"name": "n", "description": "d", "version": "v", "task_run_name": "r-{x}", "tags": {"a"}},
    "a cache": {"cache_policy": INPUTS, "cache_expiration": timedelta(hours=1), "refresh_cache": True},
    "no cache": {"cache_policy": NO_CACHE},
    "a key": {"cache_key_fn": lambda context, parameters: "key"},
    "results": {"persist_result": True, "result_storage": "local-file-system/x", "result_serializer": "json"},
    "a result's key": {"result_storage_key": "k-{parameters[x]}", "cache_result_in_memory": False},
    "hooks": {name: [hook] for name in ("on_completion", "on_failure", "on_running")},
    "other": {"timeout_seconds": 3, "log_prints": True, "viz_return_value": 4, "asset_deps": ["s3://a/b"]},
}

NOT_COMPARED = {
    "fn",
    "_for_engine",
    "_written",
    "guard",
    "own_retries",
    "own_retry_delay",
    "own_retry_condition",
}


def fields(made: Task[..., Any]) -> dict[str, Any]:
    names = {*vars(made)} - NOT_COMPARED
    found = {name: getattr(made, name) for name in names}
    # Policies made of functions are never equal; a key's function is handed the user's own function.
    found["cache_policy"] = re.sub(
        r"KeyOfOwnFunction\(cache_key_fn=(.*>)\)", r"\1", repr(found["cache_policy"])
    )
    return found


# A task that was made with retries=0 is one that was made without retries: then the default policy counts.
PAIRS = [(written, way) for written in OPTIONS for way in WAYS if (written, way) != ("no retries", "wrapped")]


@pytest.mark.parametrize(("written", "way"), PAIRS)
def test_what_is_written_reads_back_as_from_a_plain_task(written: str, way: str) -> None:
    options = OPTIONS[written]
    made = WAYS[way](options)
    plain = task(**options)(work)
    found, expected = fields(made), fields(plain)
    if "retries" not in options:  # then the policy is the default one, which says how it retries
        assert found.pop("retries") == 2
        assert found.pop("retry_delay_seconds") == [1.0, 2.0]
        del expected["retries"], expected["retry_delay_seconds"]
    assert found == expected
    for name in ("retries", "retry_delay_seconds", "retry_jitter_factor"):
        assert type(getattr(made, name)) is type(getattr(plain, name)) or "retries" not in options


@pytest.mark.parametrize("written", ["retries", "a delay", "delays", "jitter", "a condition", "no retries"])
def test_what_is_written_later_reads_back_too(written: str) -> None:
    options = OPTIONS[written]
    made = later(options)
    for name, value in options.items():
        assert getattr(made, name) == value
    again = made.with_options(name="again", retries=NotSet, retry_delay_seconds=NotSet)
    for name, value in options.items():
        assert getattr(again, name) == value
    assert again.guard.retry == made.guard.retry


def test_the_policy_that_is_written_options_say() -> None:
    made = resilient({"retries": 3, "retry_delay_seconds": [1, 5], "retry_jitter_factor": 0.5})
    assert made.guard.retry.attempts == 4
    assert made.guard.retry.backoff == Backoff.schedule([1, 5], jitter=0.5)
    assert resilient({"retry_delay_seconds": 4}).guard.retry == Retry(backoff=Backoff.schedule([4]))
    assert resilient({"retry_delay_seconds": 4}).retry_delay_seconds == 4
    jittered = resilient({"retry_jitter_factor": 0.7})
    assert jittered.guard.retry == Retry(backoff=Backoff.exponential(jitter=0.7))
    assert jittered.with_options(retry_jitter_factor=None).guard.retry.backoff.jitter == 0
    assert jittered.with_options(retries=1).guard.retry.backoff.jitter == 0.7
    faster = made.with_options(retry_jitter_factor=0.1)
    assert (faster.retry_delay_seconds, faster.retry_jitter_factor) == ([1, 5], 0.1)
    assert faster.guard.retry.backoff == Backoff.schedule([1, 5], jitter=0.1)


def test_a_policy_says_by_the_same_names_how_often_and_when() -> None:
    made = resilient_task(retry=Retry(attempts=3, backoff=Backoff.constant(2)))(work)
    assert (made.retries, made.retry_delay_seconds, made.retry_condition_fn) == (2, [2.0, 2.0], None)
    assert resilient_task(retry=None)(work).retries == 0
    assert resilient_task(retry=Retry(3, backoff=Backoff.none()))(work).retry_delay_seconds == 0
    overridden = ResilientTask.wrap(task(retries=7, retry_delay_seconds=9)(work), retry=2)
    assert (overridden.retries, overridden.retry_delay_seconds) == (1, [1.0])
    by_block = resilient_task(policy="a-block", retries=2, retry_delay_seconds=3)(work)
    assert (by_block.retries, by_block.retry_delay_seconds) == (2, 3)


SETTINGS = {PREFECT_TASKS_DEFAULT_RETRIES: 2, PREFECT_TASKS_DEFAULT_RETRY_DELAY_SECONDS: 7}


@pytest.mark.parametrize("way", WAYS)
def test_settings_count_as_if_they_were_written(way: str) -> None:
    with temporary_settings(SETTINGS):
        made = WAYS[way]({})
        assert made.guard.retry == resilient({"retries": 2, "retry_delay_seconds": 7}).guard.retry
        assert (made.retries, made.retry_delay_seconds) == (2, 7)
        assert (
            WAYS[way]({"retries": 0}).guard.retry == resilient({"retries": 0}).guard.retry or way == "wrapped"
        )
        assert WAYS[way]({"retries": 1}).retries == 1
        assert WAYS[way]({"retry_delay_seconds": 1}).retry_delay_seconds == 1
        assert resilient_task(retry=5)(work).guard.retry == Retry(5)
        assert made.with_options(name="n").retries == 2
    with temporary_settings({PREFECT_TASKS_DEFAULT_RETRY_DELAY_SECONDS: [3, 4]}):
        made = WAYS[way]({})
        assert made.guard.retry == Retry(backoff=Backoff.schedule([3, 4]))
        assert (made.retries, made.retry_delay_seconds) == (2, [3, 4])
    with temporary_settings({PREFECT_TASKS_DEFAULT_PERSIST_RESULT: True}):
        assert WAYS[way]({}).persist_result is task(work).persist_result


def test_they_read_back_from_a_copy_in_another_process() -> None:
    made = resilient({"retries": 3, "retry_delay_seconds": 5, "retry_condition_fn": condition})
    copied = cloudpickle.loads(cloudpickle.dumps(made))
    assert (copied.retries, copied.retry_delay_seconds) == (3, 5)
    assert isinstance(ResilientTask.retries, object)
    with pytest.raises(AttributeError, match="retries"):
        _ = ResilientTask.__new__(ResilientTask).retries


@pytest.mark.api
def test_hooks_and_callers_read_what_was_written_and_the_run_retries_all_the_same() -> None:
    seen: list[Any] = []

    def read(made: Any) -> tuple[Any, ...]:
        return made.retries, made.retry_delay_seconds, made.retry_condition_fn

    def failed(made: Any, task_run: Any, state: Any) -> None:
        seen.append(("hook", read(made)))

    @resilient_task(
        retries=2,
        retry_delay_seconds=0.01,
        retry_condition_fn=condition,
        on_failure=[failed],
        persist_result=False,
    )
    def broken() -> None:
        seen.append("attempt")
        context = TaskRunContext.get()
        assert context is not None
        seen.append(context.task_run.empirical_policy.retry_delay)
        raise KeyError("no")

    @flow
    def running() -> None:
        state = broken(return_state=True)
        assert state.is_failed()
        seen.append(("caller", read(broken)))

    running()
    written = (2, 0.01, condition)
    assert seen == [*["attempt", 0.01] * 3, ("hook", written), ("caller", written)]
