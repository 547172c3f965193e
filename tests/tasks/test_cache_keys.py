"""Caches of resilient tasks: keys from the user's function, and no external effect beside one."""

from __future__ import annotations

import pytest
from prefect import flow, task
from prefect.cache_policies import DEFAULT, INPUTS, NO_CACHE, RUN_ID, TASK_SOURCE, CacheKeyFnPolicy
from prefect.settings import PREFECT_TASKS_DEFAULT_PERSIST_RESULT, temporary_settings
from prefect.tasks import task_input_hash

from prefect_resilience import ConfigurationError, Effect, ResilientTask, resilient_task

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


def pay(order: int) -> str:
    return f"paid {order}"


async def apay(order: int) -> str:
    return f"paid {order}"


CACHES = {
    "inputs": {"cache_policy": INPUTS},
    "a sum": {"cache_policy": INPUTS + TASK_SOURCE},
    "a policy of a key": {"cache_policy": CacheKeyFnPolicy(cache_key_fn=task_input_hash)},
    "a key": {"cache_key_fn": lambda context, parameters: "pay"},
    "a result's key": {"result_storage_key": "pay-{parameters[order]}"},
    "stored": {"cache_policy": INPUTS, "persist_result": True},
}
EFFECTS = ["external", Effect(), {"kind": "external"}, Effect(key="pay:{order}", verify=lambda key: None)]


@pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
@pytest.mark.parametrize("effect", EFFECTS, ids=["text", "default", "json", "verify"])
@pytest.mark.parametrize("fn", [pay, apay])
def test_they_exclude_each_other(fn, effect, cache):
    ways = [
        lambda: resilient_task(effect=effect, **cache)(fn),
        lambda: ResilientTask(fn, effect=effect, **cache),
        lambda: ResilientTask.wrap(task(fn, **cache), effect=effect),
        lambda: resilient_task(effect=effect)(fn).with_options(**cache),
        lambda: resilient_task(**cache)(fn).with_options(effect=effect),
        lambda: resilient_task(**cache)(fn).with_options(retry=2).with_options(effect=effect, name="pay"),
    ]
    for way in ways:
        with pytest.raises(
            ConfigurationError, match=r"has both an external effect and .*: leave .* out"
        ) as no:
            way()
        assert next(iter(cache)) in str(no.value)


@pytest.mark.parametrize("policy", [None, DEFAULT, INPUTS])
def test_a_policy_is_refused_that_is_assigned_later(policy):
    made = resilient_task(effect="external")(pay).with_options(retry=2)
    with pytest.raises(ConfigurationError, match="leave cache_policy out"):
        made.cache_policy = policy
    assert made.cache_policy == NO_CACHE
    made.cache_policy = NO_CACHE
    cached = resilient_task(pay)
    cached.cache_policy = INPUTS
    assert cached.cache_policy == INPUTS


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cache_policy": None},
        {"cache_policy": NO_CACHE},
        {"cache_policy": NO_CACHE, "result_storage_key": "pay"},
        {"persist_result": True},
        {"persist_result": False},
        {"cache_result_in_memory": True, "refresh_cache": False},
    ],
)
def test_without_a_cache(options):
    made = resilient_task(effect="external", **options)(pay)
    assert made.cache_policy == NO_CACHE
    assert made.with_options(retry=2).cache_policy == NO_CACHE
    with temporary_settings({PREFECT_TASKS_DEFAULT_PERSIST_RESULT: True}):
        assert ResilientTask.wrap(task(pay), effect="external").cache_policy == NO_CACHE


@pytest.mark.parametrize("effect", [None, "idempotent", "conditional"])
def test_other_tasks_may_be_cached(effect):
    assert resilient_task(effect=effect, cache_policy=INPUTS)(pay).cache_policy == INPUTS
    made = resilient_task(effect="external")(pay).with_options(effect=effect, cache_policy=INPUTS)
    assert made.cache_policy == INPUTS
