"""Two different effects of one batch are both sent, or an error names the mend. Never one in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect import flow
from prefect.utilities.callables import get_call_parameters

from prefect_resilience import RepeatedEffect, ResilienceError, batch
from tests.durable.effects import pairs
from tests.durable.effects.pairs import IN_RUNS, SENT, TASKS, VALUES, Call
from tests.durable.effects.ways.surroundings import Here, run_either

STORE = "memory://pairs"


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    SENT.clear()


def called(call: Call, batch_id: str, number: int) -> None:
    """A call in the pass of that number over the batch."""
    task, arguments = call
    parameters = get_call_parameters(task.fn, arguments, {})
    run_either(task.guard, Here(batch_id, STORE, parameters, number), arguments=arguments)


def one_pass(calls: list[Call], batch_id: str, number: int) -> list[ResilienceError]:
    """Each call once; what was refused."""
    refused: list[ResilienceError] = []
    for call in calls:
        try:
            called(call, batch_id, number)
        except ResilienceError as error:
            refused.append(error)
    return refused


@flow
def one_flow(calls: list[Call], batch_id: str) -> list[Any]:
    with batch(batch_id):
        states = [task(*arguments, return_state=True) for task, arguments in calls]
    return [state.result(raise_on_failure=False) for state in states]


def one_run(calls: list[Call], batch_id: str, number: int) -> list[ResilienceError]:
    """The same through a real run."""
    return [error for error in one_flow(calls, batch_id) if isinstance(error, ResilienceError)]


def all_sent_or_told(
    make: Callable[[], list[Call]],
    one_pass: Callable[[list[Call], str, int], list[ResilienceError]] = one_pass,
) -> None:
    """Both are sent, and later passes send nothing; or whoever is left out is told how to mend it."""
    calls, told = decorated(make)
    assert told is None or names_the_mend(told), told
    batch_id = uuid4().hex
    refused = one_pass(calls, batch_id, 1)
    assert len(SENT) + len(refused) == len(calls), f"in silence: only {SENT}"
    assert all(names_the_mend(error) for error in refused), refused
    sent = len(SENT)
    one_pass(calls, batch_id, 2)
    assert len(SENT) == sent, "a later pass sent again"


def decorated(make: Callable[[], list[Call]]) -> tuple[list[Call], ResilienceError | None]:
    """The calls; none, where a decorator refused one of the tasks."""
    try:
        return make(), None
    except ResilienceError as error:
        return [], error


def names_the_mend(error: ResilienceError) -> bool:
    return "key=" in str(error)


@pytest.mark.parametrize("name", VALUES)
def test_two_values_in_a_template(name: str) -> None:
    all_sent_or_told(lambda: [(pairs.send_by_template, (value,)) for value in VALUES[name]])


@pytest.mark.parametrize("name", TASKS)
def test_two_calls(name: str) -> None:
    all_sent_or_told(TASKS[name])


@pytest.mark.api
@pytest.mark.parametrize("name", IN_RUNS)
def test_two_calls_in_a_run(name: str) -> None:
    all_sent_or_told(IN_RUNS[name], one_run)


@pytest.mark.api
def test_equal_effects_in_one_pass_are_told() -> None:
    (refused,) = one_run([(pairs.send, ("ada",)), (pairs.send, ("ada",))], uuid4().hex, 1)
    assert isinstance(refused, RepeatedEffect)
    assert names_the_mend(refused)
    assert 'repeat="replay"' in str(refused)
    assert SENT == ["ada"]


@pytest.fixture
def packages(tmp_path: Path) -> Iterator[Path]:
    with pairs.on_the_path(tmp_path):
        yield tmp_path


def test_two_modules_of_one_file_name(packages: Path) -> None:
    all_sent_or_told(lambda: pairs.modules_of_one_file_name(packages))


@pytest.mark.parametrize("value", ["ada", 7, b"\x00", None, [1, {"a": 2}], pairs.Guest(name="Ada")], ids=repr)
def test_equal_values_are_one_effect(value: Any) -> None:
    """Without this, keys that are never equal would pass."""
    batch_id = uuid4().hex
    called((pairs.send, (value,)), batch_id, 1)
    called((pairs.send, (value,)), batch_id, 2)
    assert len(SENT) == 1
