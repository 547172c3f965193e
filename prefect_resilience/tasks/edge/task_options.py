"""The options of a resilient task, checked against its function."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from prefect.cache_policies import DEFAULT, NO_CACHE
from prefect.tasks import Task, TaskOptions
from prefect.utilities.annotations import NotSet

from prefect_resilience.base.naming import UNSET, digest
from prefect_resilience.base.policy import nearest
from prefect_resilience.base.process import in_forked_child
from prefect_resilience.calls.edge.call_options import OPTIONS, ResilienceOptions, as_policy
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.guards.retries.policy import DEFAULT_RETRY, PrefectRetries, Retry
from prefect_resilience.telemetry.edge.events import send_event
from prefect_resilience.telemetry.payloads import NAME, fit, fit_text

if TYPE_CHECKING:
    from prefect_resilience.calls.model import Guard


class ResilientTaskOptions(ResilienceOptions, TaskOptions, total=False):
    """Every option of a resilient task."""


RETRY_OPTIONS = ("retries", "retry_delay_seconds", "retry_jitter_factor")
"""Prefect's own options for retries."""
MOST_RETRIES_BY_POLICY = 100
"""The most retries that a block may ask for. Prefect's engine counts up to it."""


def split(options: Mapping[str, Any], more: Iterable[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """Our options and Prefect's. `more` are further options of a special kind of task. Raises
    ConfigurationError for an unknown option."""
    if options.get("timeout") is not None and options.get("timeout_seconds") is not None:
        raise ConfigurationError(
            f"a resilient task has both timeout={options['timeout']!r} and "
            f"timeout_seconds={options['timeout_seconds']!r}: write only timeout=, which bounds each attempt"
        )
    return split_options("task", options, OPTIONS, [*TaskOptions.__annotations__, *more])


NO_CACHES: tuple[Any, ...] = (None, NotSet, NO_CACHE)


def refuse_cache(task: Task[Any, Any]) -> None:
    """Raise ConfigurationError if Prefect could answer a call of this task with the result of another call.

    The task has an external effect.
    """
    if task.cache_policy not in (*NO_CACHES, DEFAULT):
        raise _cache_conflict(f"task {task.name!r}", "cache_policy or cache_key_fn")
    if task.cache_policy is None and task.result_storage_key is not None:
        raise _cache_conflict(f"task {task.name!r}", "result_storage_key")


def refuse_later_cache(task: Any, option: str, value: Any) -> None:
    """As `refuse_cache`, for a policy that is assigned to a task after its decoration."""
    if option == "cache_policy" and value != NO_CACHE and task.__dict__.get("_for_engine") is not None:
        effect = task.guard.effect
        if effect is not None and effect.external:
            raise _cache_conflict(f"task {task.name!r}", option)


def _cache_conflict(what: str, option: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what} has both an external effect and {option}, with which Prefect could return the result of "
        f"another effect: leave {option} out, since the ledger replays what is done"
    )


def split_options(
    kind: str, options: Mapping[str, Any], own: Iterable[str], prefects: Iterable[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Our own options and Prefect's. Raises ConfigurationError for an unknown option."""
    accepted = [*prefects, *own]
    for name in options:
        if name not in accepted:
            raise ConfigurationError(f"a resilient {kind} has no option {name!r}{nearest(name, accepted)}")
    ours = {name: value for name, value in options.items() if name in own}
    return ours, {name: value for name, value in options.items() if name not in own}


def check_wrapped(
    kind: str, wrapped: Any, is_one: bool, is_resilient: bool, theirs: Mapping[str, Any]
) -> None:
    """Raise ConfigurationError unless `wrapped` is a plain task or flow, which `wrap` makes resilient."""
    wrap = f"Resilient{kind.title()}.wrap"
    if not is_one:
        raise ConfigurationError(f"{wrap} needs a Prefect {kind}, not {wrapped!r}: write @resilient_{kind}")
    if is_resilient:
        name = getattr(wrapped.fn, "__name__", wrapped.name)
        raise ConfigurationError(
            f"{kind} {wrapped.name!r} is already resilient: write {name}.with_options(...)"
        )
    for option in theirs:
        raise ConfigurationError(f"{wrap} takes no {option!r}: write it in with_options(...)")


def policy_of(task: Task[Any, Any], ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Retry:
    """The retry policy from a task's options, ours and Prefect's.

    Values from Prefect's settings (`PREFECT_TASKS_DEFAULT_RETRIES` and its delay) count as given.
    """
    for name in RETRY_OPTIONS:
        if "retry" in ours and theirs.get(name) is not None:
            raise ConfigurationError(
                f"task {task.name!r} has both retry= and {name}={theirs[name]!r}: write it in Retry(...), "
                f"or leave out retry= for Prefect's own retries"
            )
    if ours.get("retry", UNSET) is not UNSET:
        return as_policy(ours["retry"])
    if task.retries or theirs.get("retries") is not None:
        return prefects_own(task)
    written = [name for name in RETRY_OPTIONS if theirs.get(name) is not None or getattr(task, name)]
    return retry_with(DEFAULT_RETRY, task, dict.fromkeys(written))


def restarting(task: Task[Any, Any], ours: Mapping[str, Any], *, asked: bool) -> Mapping[str, Any]:
    """Our options, with `restart_stream` for a generator with Prefect's own retries. Those restart a stream
    even after a chunk."""
    if not (asked and task.isgenerator) or "retry" in ours or "restart_stream" in ours:
        return ours
    return {**ours, "restart_stream": True}


def prefects_own(task: Task[Any, Any]) -> Retry:
    """Retries as in Prefect: after any exception, with the task's own delays."""
    return PrefectRetries(
        attempts=task.retries + 1,
        backoff=prefects_backoff(task),
        retry_on=Exception,
        respect_retry_after=False,
    )


def retry_with(policy: Retry, made: Task[Any, Any], options: Mapping[str, Any]) -> Retry:
    """A policy changed by Prefect's own options; `made` is the task that was made with them."""
    changes: dict[str, Any] = {}
    if isinstance(options.get("retries"), int):
        changes |= {"attempts": options["retries"] + 1, "by_category": {}}
    if "retry_delay_seconds" in options:
        changes["backoff"] = prefects_backoff(made)
    elif "retry_jitter_factor" in options:
        backoff = cast(Backoff, policy.backoff)
        changes["backoff"] = backoff.model_copy(update={"jitter": _jitter(made)})
    return policy.model_copy(update=changes) if changes else policy


def prefects_backoff(task: Task[Any, Any]) -> Backoff:
    """The delays from Prefect's options `retry_delay_seconds` and `retry_jitter_factor`."""
    delays: Any = task.retry_delay_seconds
    if not delays:
        return Backoff(kind="none", jitter=_jitter(task)) if task.retry_jitter_factor else Backoff.none()
    written = cast("list[float]", delays if isinstance(delays, list) else [delays])
    return Backoff.schedule([float(delay) for delay in written], jitter=_jitter(task))


def _jitter(task: Task[Any, Any]) -> float:
    return min(task.retry_jitter_factor or 0.0, 1.0)


# -- the options as an event, which `tune` compares with what happened

AGAIN = 86_400.0
"""Seconds after which a process sends the options of a task again: Prefect keeps events for a week."""
MOST_OPTIONS = 200
"""The most sets of options that a process sends: a program may make a task for each call."""

options_sent: dict[int, tuple[Guard, float]] = {}
"""The guards whose options were sent, by id, and until when that holds: a call costs one lookup."""


def tell_options(guard: Guard, task: Task[..., Any]) -> None:
    """Send the options of the guard, unless this process did so within a day. Never raises.

    The resource's id is a digest of the task and its options, so that one request lists all of them.
    """
    sent, now = options_sent.get(id(guard)), monotonic()
    if len(options_sent) >= MOST_OPTIONS or (sent is not None and sent[0] is guard and now < sent[1]):
        return
    options_sent[id(guard)] = (guard, now + AGAIN)
    with suppress(Exception):  # options that cannot be read must not fail the work
        payload = fit(describe(guard, task))
        key = digest(json.dumps(payload, sort_keys=True))
        send_event("task.configured", f"options.{key}", fit_text(payload["task"], NAME), payload)


def describe(guard: Guard, task: Task[..., Any]) -> dict[str, Any]:
    """The task, and its options in the form of a `ResiliencePolicy` block, with every default filled in.

    `limits` and `hedge`, which a block does not have, are in the same form.
    """
    circuit, timeout = guard.circuit, guard.timeout
    options: dict[str, Any] = {
        "retry": _plain(guard.retry),
        "circuit": None if circuit is None else {"name": circuit.name, **_plain(circuit.policy)},
        "timeout": None if timeout is None else timeout.total,
        "deadline": guard.deadline,
        "fallback": [step.name for step in guard.fallbacks] or None,
        "limits": [{"type": type(limit).__name__, **_plain(limit)} for limit in guard.limits] or None,
        "hedge": None if guard.hedge is None else _plain(guard.hedge),
    }
    return {
        "task": task.name,
        "task_key": task.task_key,
        "block": guard.policy,
        "options": {name: value for name, value in options.items() if value is not None},
    }


def _plain(policy: Any) -> dict[str, Any]:
    return policy.model_dump(mode="json", exclude_none=True)


@in_forked_child
def forget_options_told() -> None:
    """Send all options again, as in a new process."""
    options_sent.clear()
