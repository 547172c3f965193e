"""The policy blocks of the server, cached in each process and refreshed while it runs.

A block that was read within FRESH seconds is used. Otherwise it is read first, waiting up to PATIENCE. So a
change takes effect after at most FRESH seconds, and a slow API delays a task by at most PATIENCE, once in
FRESH seconds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import Any

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.settings import get_current_settings
from pydantic import ValidationError

from prefect_resilience.base.policy import nearest
from prefect_resilience.base.process import in_forked_child, start_thread
from prefect_resilience.calls.edge.call_options import make_guard
from prefect_resilience.calls.model import Guard
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits.breaker import CircuitBreaker, circuit_policy
from prefect_resilience.guards.fallbacks import Fallback
from prefect_resilience.guards.retries.policy import Retry
from prefect_resilience.guards.timeouts.timeout import Timeout
from prefect_resilience.tasks.edge.policy_block import MOST_ATTEMPTS, SLUG, ResiliencePolicy

ENDED = frozenset({"none", "schedule"})
"""Kinds of backoff without an initial delay: the block's backoff replaces them entirely."""


def read_policy(data: Mapping[str, Any]) -> ResiliencePolicy:
    """The block from a document's data. Raises ConfigurationError."""
    try:
        return ResiliencePolicy.model_validate(dict(data))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"{place}: {first['msg'].removeprefix('Value error, ')}") from None


def with_policy(guard: Guard, policy: ResiliencePolicy) -> Guard:
    """The guard with the options that the policy has; all others stay the code's own.

    Raises ConfigurationError for options that are invalid for this task.
    """
    says = policy.as_options()
    checked = make_guard(
        guard.fn,
        guard.isasync,
        retry_by(guard.retry, says.get("retry", {})),
        {
            "circuit": circuit_by(guard.circuit, says.get("circuit", {})),
            "timeout": timeout_by(guard.timeout, says.get("timeout")),
            "deadline": says.get("deadline", guard.deadline),
            "fallback": fallbacks_by(guard.fallbacks, says.get("fallback")),
        },
    )
    changed = ("retry", "circuit", "timeout", "deadline", "fallbacks")
    return replace(guard, **{name: getattr(checked, name) for name in changed})


def retry_by(own: Retry, says: Mapping[str, Any]) -> Retry:
    """The code's retries, with the block's options merged in."""
    if not says:
        return own
    merged = own.model_dump()
    backoff: dict[str, Any] = says.get("backoff", {})
    merged |= {name: value for name, value in says.items() if name not in ("backoff", "by_category")}
    if rules := says.get("by_category"):
        # By category, so that a block with one of them keeps the code's others.
        merged["by_category"] = {str(category): rule for category, rule in own.rules.items()} | rules
    if backoff.get("kind", merged["backoff"]["kind"]) == merged["backoff"]["kind"] not in ENDED:
        merged["backoff"] |= backoff
    elif backoff:
        merged["backoff"] = backoff
    policy = Retry(**merged)
    if policy.most_retries >= MOST_ATTEMPTS:
        raise ConfigurationError(
            f"retry: {policy.most_retries + 1} attempts are more than a block allows: "
            f"write at most {MOST_ATTEMPTS}"
        )
    return policy


def circuit_by(own: CircuitBreaker | None, says: Mapping[str, Any]) -> CircuitBreaker | None:
    """The code's circuit with the block's options merged in, or the circuit that the block names."""
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
    """The code's timeout, with the block's seconds for an attempt."""
    if seconds is None:
        return own
    return Timeout(seconds) if own is None else own.model_copy(update={"total": seconds})


def fallbacks_by(own: tuple[Fallback, ...], names: list[str] | None) -> tuple[Fallback, ...]:
    """The task's own fallbacks that the block names, in the block's order."""
    if not names:
        return own
    by_name = {step.name: step for step in own}
    for name in names:
        if name not in by_name:
            hint = nearest(name, by_name) if by_name else ""
            raise ConfigurationError(f"fallback: the task has no fallback {name!r}{hint}")
    return tuple(by_name[name] for name in names)


FRESH = 20.0
PATIENCE = 2.0
GUARDS_KEPT = 256

Log = logging.Logger | logging.LoggerAdapter[Any]


@dataclass(frozen=True)
class BlockAnswer:
    """An answer of the server. `trouble` is why there is no policy, as a text for the log."""

    policy: ResiliencePolicy | None = None
    trouble: str = ""


SILENCE = BlockAnswer(trouble="the Prefect API has not answered")


@dataclass(eq=False)
class LivePolicy:
    """One block, as known to one process. Thread-safe."""

    name: str
    latest: BlockAnswer = SILENCE
    asked_at: float = float("-inf")
    """When the server was last asked, by `monotonic()`."""
    warned: set[str] = field(default_factory=set[str])
    """The warnings that were already logged about `latest`."""
    guards: dict[int, tuple[Guard, BlockAnswer, Guard]] = field(
        default_factory=dict[int, tuple[Guard, BlockAnswer, Guard]]
    )
    lock: threading.Lock = field(default_factory=threading.Lock)
    answered: threading.Event | None = None
    """Set when the request in progress has its answer; None if there is no request."""

    def refresh(self, now: float) -> threading.Event | None:
        """Ask the server if that is due. Returns an event to wait for if the known policy is too old."""
        with self.lock:
            if self.answered is not None or now - self.asked_at < FRESH:
                return self.answered if now - self.asked_at < PATIENCE else None
            self.asked_at = now
            answered = self.answered = threading.Event()
        try:
            # The context determines which API is configured.
            start_thread("policy", self._ask, answered, context=copy_context())
        except RuntimeError:  # no thread can be started any more, or the interpreter is ending
            self.answered = None
            return None
        return answered

    def _ask(self, answered: threading.Event) -> None:
        try:
            answer = ask(self.name)
            with self.lock:
                # While the API is unavailable, its last answer stays in use.
                if answer not in (SILENCE, self.latest):
                    self.latest, self.warned = answer, set()
        finally:
            self.answered = None
            answered.set()

    def guard(self, own: Guard, log: Log) -> Guard:
        """The guard with the policy's options. Without a policy: the code's own guard, and one warning."""
        latest = self.latest
        if latest.policy is None:
            self._warn(log, latest.trouble)
            return own
        cached = self.guards.get(id(own))
        if cached is not None and cached[1] is latest:
            return cached[2]
        try:
            current = with_policy(own, latest.policy)
        except ConfigurationError as error:
            current = own
            self._warn(log, str(error))
        with self.lock:
            if len(self.guards) >= GUARDS_KEPT:
                self.guards.clear()
            self.guards[id(own)] = (own, latest, current)
        return current

    def _warn(self, log: Log, trouble: str) -> None:
        """Log why the policy is not used, once in this process for each reason."""
        with self.lock:
            if trouble in self.warned:
                return
            self.warned.add(trouble)
        log.warning(
            "The policy block %r is not used, and the options in the code apply: %s",
            self.name,
            redact(trouble),
        )


def ask(name: str) -> BlockAnswer:
    """The server's current answer about the block. Never raises."""
    try:
        with get_client(sync_client=True) as client:
            document = client.read_block_document_by_name(name, SLUG)
        return BlockAnswer(read_policy(document.data))
    except ObjectNotFound:
        return BlockAnswer(trouble=f"block {SLUG}/{name} not found: create it in the UI, or with save()")
    except ConfigurationError as error:
        return BlockAnswer(trouble=f"the block is invalid: {error}")
    except Exception:  # noqa: BLE001 - an API is unavailable in many ways
        return SILENCE


_policies: dict[tuple[str | None, str], LivePolicy] = {}


def policy_of(guard: Guard) -> LivePolicy:
    """The block that the guard names, on the configured API."""
    place = (get_current_settings().api.url, str(guard.policy))
    policy = _policies.get(place)
    return policy if policy is not None else _policies.setdefault(place, LivePolicy(place[1]))


@in_forked_child
def forget_policies() -> None:
    """Forget all blocks, as in a new process; for tests and notebooks."""
    _policies.clear()
