"""Cache keys of resilient tasks: from the user's function, as Prefect computes them."""

from __future__ import annotations

import pytest
from prefect import flow
from prefect.cache_policies import RUN_ID, CacheKeyFnPolicy
from prefect.tasks import task_input_hash

from prefect_resilience import resilient_task

pytestmark = pytest.mark.api

WITHOUT_SOURCE = "def one(x):\n    return x + 1\ndef ten(x):\n    return x * 10\n"


def states(*tasks):
    @flow
    def calling():
        return [made(3, return_state=True) for made in tasks]

    return [(state.name, state.result()) for state in calling()]


def functions():
    names: dict = {}
    exec(WITHOUT_SOURCE, names)
    return names["one"], names["ten"]


class Increment:
    def __call__(self, x):
        return x + 1


class Decrement:
    def __call__(self, x):
        return x - 1


def test_functions_without_source_have_keys_of_their_own():
    one, ten = (resilient_task(persist_result=True)(function) for function in functions())
    assert states(one, ten, ten) == [("Completed", 4), ("Completed", 30), ("Cached", 30)]


def test_callable_objects_have_keys_of_their_own():
    up, down = (resilient_task(persist_result=True, name="step")(one()) for one in (Increment, Decrement))
    assert states(up, down, down) == [("Completed", 4), ("Completed", 2), ("Cached", 2)]


def code_of(context, arguments):
    return f"{context.task.fn.__code__.co_code.hex()}-{arguments}-of-this-test"


@pytest.mark.parametrize(
    "option",
    [
        {"cache_key_fn": code_of},
        {"cache_policy": CacheKeyFnPolicy(cache_key_fn=code_of)},
        {"cache_policy": CacheKeyFnPolicy(cache_key_fn=code_of) + RUN_ID},
    ],
    ids=["cache_key_fn", "policy", "sum of policies"],
)
def test_a_key_function_sees_the_users_code(option):
    one, ten = (resilient_task(persist_result=True, **option)(body) for body in functions())
    outcomes = states(one, ten, ten.with_options(name="x"))
    assert [value for _, value in outcomes] == [4, 30, 30]
    assert outcomes[2][0] == "Cached"


def test_a_function_that_a_test_puts_in_place_counts():
    @resilient_task(cache_key_fn=task_input_hash, persist_result=True)
    def label(x):
        return x

    @flow
    def calling():
        first = label(3, return_state=True)
        label.fn = functions()[1]
        return [first, label(3, return_state=True)]

    assert [(state.name, state.result()) for state in calling()] == [("Completed", 3), ("Completed", 30)]
