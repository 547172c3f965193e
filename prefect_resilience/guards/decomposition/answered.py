"""What came of work that was done in parts, and who answered for parts of it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefect_resilience.errors.context import ErrorContext


@dataclass(frozen=True, slots=True)
class Decomposed:
    """The outcome of a run whose work was done in parts."""

    value: Any
    message: str
    context: ErrorContext
    replaced: bool = False
    """Whether a fallback answered for a part, so that this is not the function's own result."""
    degraded: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """Who answered in place of parts of one work."""

    fn: Callable[..., Any]
    names: list[str]
    degraded: list[bool]


answers: ContextVar[Standing | None] = ContextVar("prefect_resilience_standing", default=None)


def stood_in(fn: Callable[..., Any], name: str, degraded: bool) -> None:
    """A fallback answered in place of a call of `fn`, which may be a part of a greater work."""
    whole = answers.get()
    if whole is not None and whole.fn is fn:
        whole.names.append(name)
        whole.degraded.append(degraded)
