"""The options with which a task runs, as an event: `tune` compares them with what happened.

A process sends one event for each task and set of options, and again after a day, because Prefect keeps
events for a week. The resource's id is a digest of both, so that one request lists all of them.
"""

from __future__ import annotations

import json
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from prefect.events import emit_event

from prefect_resilience.base.naming import digest
from prefect_resilience.base.process import in_forked_child
from prefect_resilience.telemetry.edge.events import PREFIX
from prefect_resilience.telemetry.payloads import NAME, fit, fit_text

if TYPE_CHECKING:
    from prefect import Task

    from prefect_resilience.calls.model import Guard

EVENT = f"{PREFIX}.task.configured"
AGAIN = 86_400.0
MOST = 1_000
"""The most sets of options that a process tells of: a program may make a task for each call."""

options_sent: dict[int, tuple[Guard, float]] = {}
"""The guards whose options were sent, by id, and until when that holds: a call costs one lookup."""

_sent: dict[str, float] = {}


def tell_options(guard: Guard, task: Task[..., Any]) -> None:
    """Send the options of the guard, unless this process did so within a day. Never raises."""
    sent, now = options_sent.get(id(guard)), monotonic()
    if sent is not None and sent[0] is guard and now < sent[1]:
        return
    if len(options_sent) >= MOST:
        options_sent.clear()
    options_sent[id(guard)] = (guard, now + AGAIN)
    with suppress(Exception):  # an event that cannot be sent must not fail the work
        _send(fit(describe(guard, task)), now)


def _send(payload: dict[str, Any], now: float) -> None:
    key = digest(json.dumps(payload, sort_keys=True))
    if now - _sent.get(key, -AGAIN) < AGAIN or len(_sent) >= MOST:
        return
    _sent[key] = now
    resource = {
        "prefect.resource.id": f"{PREFIX}.options.{key}",
        "prefect.resource.name": fit_text(payload["task"], NAME),
    }
    emit_event(event=EVENT, resource=resource, payload=payload)


def describe(guard: Guard, task: Task[..., Any]) -> dict[str, Any]:
    """The task, and its options in the form of a `ResiliencePolicy` block, with every default filled in.

    `limits` and `hedge`, which a block does not have, are in the same form.
    """
    circuit, timeout = guard.circuit, guard.timeout
    options: dict[str, Any] = {
        "retry": _plain(guard.retry),
        "circuit": None if circuit is None else {"name": circuit.name, **_plain(circuit.policy)},
        "timeout": None if timeout is None else timeout.total,
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
    _sent.clear()
