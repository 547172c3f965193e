"""Cache keys that depend on the user's function, as in Prefect, and not on the wrapper around it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from prefect.cache_policies import CacheKeyFnPolicy, CompoundCachePolicy

if TYPE_CHECKING:
    from prefect.context import TaskRunContext

Policy = TypeVar("Policy")


@dataclass(frozen=True)
class KeyOfOwnFunction:
    """A `cache_key_fn` that sees the task with the user's function: `task_input_hash` reads its code."""

    cache_key_fn: Callable[[TaskRunContext, dict[str, Any]], str | None]

    def __call__(self, context: TaskRunContext, arguments: dict[str, Any]) -> str | None:
        task: Any = context.task
        if getattr(task.fn, "__wrapped__", None) is task.guard.fn:
            plain = copy(task)
            plain.fn = task.guard.fn
            context = context.model_copy(update={"task": plain})
        return self.cache_key_fn(context, arguments)


def with_own_function(policy: Policy) -> Policy:
    """The cache policy of a resilient task; the same one if no `cache_key_fn` is in it."""
    if isinstance(policy, CacheKeyFnPolicy):
        if policy.cache_key_fn is None or isinstance(policy.cache_key_fn, KeyOfOwnFunction):
            return policy
        return replace(policy, cache_key_fn=KeyOfOwnFunction(policy.cache_key_fn))
    if isinstance(policy, CompoundCachePolicy):
        policies = [with_own_function(part) for part in policy.policies]
        return policy if policies == policy.policies else replace(policy, policies=policies)
    return policy


def code_without_source(fn: Callable[..., Any]) -> str | None:
    """What `TASK_SOURCE` hashes where a function's source cannot be read: its code, or its class."""
    code = getattr(fn, "__code__", None)
    if code is not None:
        return code.co_code.hex()
    try:
        return inspect.getsource(type(fn))
    except (OSError, TypeError):
        return None
