"""An external effect and a cache of Prefect exclude each other: the cache would answer with another effect's
result."""

from __future__ import annotations

import pytest
from prefect import task
from prefect.cache_policies import DEFAULT, INPUTS, NO_CACHE, TASK_SOURCE, CacheKeyFnPolicy
from prefect.settings import PREFECT_TASKS_DEFAULT_PERSIST_RESULT, temporary_settings
from prefect.tasks import task_input_hash

from prefect_resilience import ConfigurationError, Effect, ResilientTask, resilient_task


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
