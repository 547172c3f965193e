"""A task's guard as an operator's policy changes it; a mistake is one sentence in a ConfigurationError."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from pydantic import ValidationError

from prefect_resilience.base.policy import nearest
from prefect_resilience.calls.attempt import Guard
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.circuits.breaker import CircuitBreaker, circuit_policy
from prefect_resilience.guards.fallbacks.model import Fallback
from prefect_resilience.guards.retries.policy import Retry
from prefect_resilience.guards.timeouts.timeout import Timeout
from prefect_resilience.tasks.edge.blocks.policy import MOST_ATTEMPTS, ResiliencePolicy
from prefect_resilience.tasks.edge.task_options import make_guard

ENDED = frozenset({"none", "schedule"})
"""Kinds of backoff that have no delay to start from: another one takes their place."""


def read_policy(data: Mapping[str, Any]) -> ResiliencePolicy:
    """The block that a document's data means. Raises ConfigurationError."""
    try:
        return ResiliencePolicy.model_validate(dict(data))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"{place}: {first['msg'].removeprefix('Value error, ')}") from None


def with_policy(guard: Guard, policy: ResiliencePolicy) -> Guard:
    """The guard with the options that the policy writes; the rest is the code's own.

    Raises ConfigurationError for what cannot be meant for this task.
    """
    says = policy.written()
    checked = make_guard(
        guard.fn,
        guard.isasync,
        retry_by(guard.retry, says.get("retry", {})),
        {
            "circuit": circuit_by(guard.circuit, says.get("circuit", {})),
            "timeout": timeout_by(guard.timeout, says.get("timeout")),
            "fallback": fallbacks_by(guard.fallbacks, says.get("fallback")),
        },
    )
    return replace(
        guard,
        retry=checked.retry,
        circuit=checked.circuit,
        timeout=checked.timeout,
        fallbacks=checked.fallbacks,
    )


def retry_by(own: Retry, says: Mapping[str, Any]) -> Retry:
    """The code's retries with what the block says of them."""
    if not says:
        return own
    merged = own.model_dump()
    backoff: dict[str, Any] = says.get("backoff", {})
    merged |= {name: value for name, value in says.items() if name != "backoff"}
    if backoff.get("kind", merged["backoff"]["kind"]) == merged["backoff"]["kind"] not in ENDED:
        merged["backoff"] |= backoff
    elif backoff:
        merged["backoff"] = backoff
    policy = Retry(**merged)
    if policy.most_retries >= MOST_ATTEMPTS:
        raise ConfigurationError(
            f"retry: {policy.most_retries + 1} attempts are more than a block may ask for: "
            f"write {MOST_ATTEMPTS} at most"
        )
    return policy


def circuit_by(own: CircuitBreaker | None, says: Mapping[str, Any]) -> CircuitBreaker | None:
    """The code's circuit with what the block says of it, or the one that the block names."""
    if not says:
        return own
    name = says.get("name") or (own.name if own is not None else None)
    if name is None:
        raise ConfigurationError(
            "circuit: neither the block nor the code names a circuit: write circuit.name"
        )
    base = own.policy.model_dump(exclude_unset=True) if own is not None else {}
    changes = {option: value for option, value in says.items() if option != "name"}
    policy = circuit_policy(name, base | changes)
    if own is None:
        return CircuitBreaker.from_policy(name, policy, apart=True)
    return own if (name, policy) == (own.name, own.policy) else own.beside(policy, says.get("name"))


def timeout_by(own: Timeout | None, seconds: float | None) -> Timeout | None:
    """The code's timeout, with other seconds for an attempt."""
    if seconds is None:
        return own
    return Timeout(seconds) if own is None else own.model_copy(update={"total": seconds})


def fallbacks_by(own: tuple[Fallback, ...], names: list[str] | None) -> tuple[Fallback, ...]:
    """Those of the task's own fallbacks that are named, or what import paths lead to, in their order."""
    return own if not names else tuple(_fallback(name, own) for name in names)


def _fallback(name: str, own: tuple[Fallback, ...]) -> Fallback:
    for step in own:
        if step.name == name:
            return step
    module, colon, attribute = name.partition(":")
    if not colon:
        names = [step.name for step in own]
        hint = nearest(name, names) if names else "; write an import path, as in my_team.answers:from_archive"
        raise ConfigurationError(f"fallback: the task has no fallback {name!r}{hint}")
    try:
        target = cast("Any", importlib.import_module(module))
        for part in attribute.split("."):
            target = getattr(target, part)
    except Exception as error:  # noqa: BLE001 - an import runs whatever the module does
        raise ConfigurationError(f"fallback: {name!r} cannot be imported here: {error}") from None
    return target if isinstance(target, Fallback) else Fallback(target)
