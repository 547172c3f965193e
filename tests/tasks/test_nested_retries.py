"""Tasks with retries inside each other: Prefect's own `retries` multiply, a policy does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from prefect import flow, task
from prefect.settings import PREFECT_TASKS_DEFAULT_RETRIES, temporary_settings

from prefect_resilience import Backoff, ResilientTask, Retry, resilient, resilient_flow, resilient_task

pytestmark = pytest.mark.api

TWICE = Retry(attempts=2, backoff=Backoff.none())
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def own(retries: int) -> Wrap:
    return resilient_task(retries=retries)


def later_than_policy(retries: int) -> Wrap:
    def wrap(fn: Any) -> Any:
        return resilient_task(retry=TWICE)(fn).with_options(retries=retries)

    return wrap


def wrapped(retries: int) -> Wrap:
    def wrap(fn: Any) -> Any:
        made: Any = ResilientTask
        return made.wrap(task(retries=retries)(fn))

    return wrap


def plain(retries: int) -> Wrap:
    return task(retries=retries)


POLICY = resilient_task(retry=TWICE)
TRIES_AGAIN = resilient_task(retry=TWICE.model_copy(update={"retry_exhausted": True}))

# From the innermost to the outermost, and the calls of each
NESTS: Mapping[str, tuple[list[Wrap], list[int]]] = {
    "retries in retries": ([own(1), own(1)], [4, 2]),
    "more outside": ([own(1), own(2)], [6, 3]),
    "three levels": ([own(1), own(1), own(1)], [8, 4, 2]),
    "around a plain task": ([plain(1), own(1)], [4, 2]),
    "in a plain task": ([own(1), plain(1)], [4, 2]),
    "a policy in retries": ([POLICY, own(1)], [4, 2]),
    "retries in a policy": ([own(1), POLICY], [4, 2]),
    "a call's policy in retries": ([resilient(retry=TWICE), own(1)], [4, 2]),
    "retries in a call's policy": ([own(1), resilient(retry=TWICE)], [4, 2]),
    "a policy in a policy": ([POLICY, POLICY], [2, 1]),
    "a call's policy in a policy": ([resilient(retry=TWICE), POLICY], [2, 1]),
    "a call's policy in one that says so": ([resilient(retry=TWICE), TRIES_AGAIN], [4, 2]),
    "a policy that says so": ([POLICY, TRIES_AGAIN], [4, 2]),
    "a policy's number changed": ([POLICY, later_than_policy(2)], [2, 1]),
    "a policy, a flow, a policy": ([POLICY, flow, POLICY], [2, 1, 1]),
    "a policy, a resilient flow, a policy": ([POLICY, resilient_flow, POLICY], [2, 1, 1]),
    "retries, a resilient flow, retries": ([own(1), resilient_flow, own(1)], [4, 2, 2]),
    "a policy, retries, a policy": ([POLICY, own(1), POLICY], [4, 2, 1]),
}


def calls_of(nest: list[Wrap], run: Wrap = flow, error: type[Exception] = ConnectionError) -> list[int]:
    """How often each function of a nest was called, the innermost first; that one always fails."""
    counts = [0] * len(nest)

    def fails() -> None:
        raise error("no")

    def level(number: int, inner: Callable[..., Any]) -> Callable[..., Any]:
        def step() -> Any:
            counts[number] += 1
            return inner()

        return nest[number](step)

    made: Callable[..., Any] = fails
    for number in range(len(nest)):
        made = level(number, made)

    @run
    def work() -> None:
        made()

    with pytest.raises(error, match="no"):
        work()
    return counts


@pytest.mark.parametrize("name", NESTS)
def test_each_function_of_a_nest_is_called_this_often(name: str) -> None:
    nest, expected = NESTS[name]
    assert calls_of(nest) == expected


@pytest.mark.parametrize("error", [ValueError, TimeoutError, ConnectionResetError])
@pytest.mark.parametrize("way", [own, wrapped])
def test_retries_alone_count_as_those_of_plain_tasks(
    way: Callable[[int], Wrap], error: type[Exception]
) -> None:
    expected = calls_of([plain(1), plain(2)], error=error)
    assert calls_of([way(1), way(2)], error=error) == expected == [6, 3]


@pytest.mark.smoke
def test_the_settings_default_counts_as_written() -> None:
    with temporary_settings({PREFECT_TASKS_DEFAULT_RETRIES: 1}):
        assert calls_of([resilient_task, resilient_task]) == [4, 2]
