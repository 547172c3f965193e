"""The fallback chain: its steps in order, until one answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from prefect_resilience.base.drive import Blocking, Invoke, Sequence
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import answered_for
from prefect_resilience.guards.fallbacks.model import Answered, Fallback

_handling: ContextVar[tuple[Callable[..., Any], ...]] = ContextVar("handling", default=())
"""The functions that are being replaced or are replacing at this moment: none of them handles itself."""


class Memory(Protocol):
    """Where a task's last good results are kept. Both methods may block."""

    def remember(self, value: Any) -> None: ...

    def recall(self, max_age: float | None) -> Any:
        """The last good result of the same call; raises LookupError if there is none so young."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What a fallback gave in place of the primary's result."""

    value: Any
    fallback: Fallback


@dataclass(slots=True)
class Chain:
    """The steps of one task, and what became of them in one run."""

    fallbacks: tuple[Fallback, ...]
    primary: Callable[..., Any]
    isasync: bool
    failures: list[tuple[str, Exception]] = field(default_factory=list[tuple[str, Exception]])

    def answer(
        self, parameters: Mapping[str, Any], context: ErrorContext, memory: Memory
    ) -> Sequence[Answer | None]:
        """The first step's answer that there is, or None; what failed on the way is kept in `failures`."""
        handling = (*_handling.get(), _function(self.primary))
        for fallback in self.fallbacks:
            target = _function(fallback.to)
            if target in handling:
                continue
            reset = _handling.set((*handling, target))
            try:
                if fallback.applies(context):
                    with answered_for():
                        value = yield self._ask(fallback, parameters, context, memory)
                    return _answer(value, fallback)
            except Exception as error:  # noqa: BLE001 - the next step is there for whatever this one raises
                self.failures.append((fallback.name, error))
            finally:
                _handling.reset(reset)
        return None

    def _ask(
        self, fallback: Fallback, parameters: Mapping[str, Any], context: ErrorContext, memory: Memory
    ) -> Invoke | Blocking:
        if fallback.recalls:
            return Blocking(memory.recall, (fallback.max_age,))
        args, kwargs = fallback.arguments(parameters, context)
        # A plain function under an async task would hold up the loop, so it has a thread of its own.
        kind = Blocking if self.isasync and not fallback.isasync else Invoke
        return kind(fallback.to, tuple(args), kwargs)


def _answer(value: Any, fallback: Fallback) -> Answer:
    if not isinstance(value, Answered):
        return Answer(value, fallback)
    name = f"{fallback.name}: {value.answered_by}"
    return Answer(value.value, replace(fallback, name=name, degraded=fallback.degraded or value.degraded))


def _function(target: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, without what tasks and decorators put around it."""
    return inspect.unwrap(getattr(target, "fn", target))
