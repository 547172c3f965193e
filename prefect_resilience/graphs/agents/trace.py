"""The trace of one call of a chain: attempts and errors by agent."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import ResilienceError

if TYPE_CHECKING:
    from prefect_resilience.graphs.agents.edge.asking import Approval


@dataclass
class Trace:
    """Shared by the steps of one call, also across threads."""

    attempts: dict[str, int] = field(default_factory=dict[str, int])
    errors: dict[str, ErrorContext] = field(default_factory=dict[str, ErrorContext])
    person_needed: PersonNeeded | None = None


trace: ContextVar[Trace | None] = ContextVar("prefect_resilience_agents", default=None)


def counted(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function, with its calls counted under that name in the trace."""
    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            _count(name)
            return await fn(*args, **kwargs)

        return acall

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        _count(name)
        return fn(*args, **kwargs)

    return call


def _count(name: str) -> None:
    current = trace.get()
    if current is not None:
        current.attempts[name] = current.attempts.get(name, 0) + 1


def note(name: str, at_least: int, error: ErrorContext | None = None) -> None:
    """Record the end of a call. `at_least` also counts attempts that ran in other processes."""
    current = trace.get()
    if current is None:
        return
    current.attempts[name] = max(current.attempts.get(name, 0), at_least)
    if error is not None:
        current.errors[name] = error


class PersonNeeded(ResilienceError):
    """Every step of a chain failed, and the person at its end has not answered.

    `chain` and `person` are names; `why` is the reason why there is no answer. `__cause__` is the first
    agent's error. It is not retried, because a person must act first.
    """

    error_category: ClassVar[str] = "unexpected"

    def __init__(self, chain: str, person: str, why: str) -> None:
        self.chain = chain
        self.person = person
        self.why = why
        super().__init__(f"every agent of {chain!r} failed, and {person!r} must take over: {why}")


class NotAnswered(ResilienceError):
    """A question was not answered in time. It is not retried.

    `question` is its text, `timeout` the seconds that the flow run waited.

    Example:
        >>> print(NotAnswered("Send the report?", 3600))
        there was no answer to 'Send the report?' within 3600 s
    """

    error_category: ClassVar[str] = "unexpected"

    def __init__(self, question: str, timeout: float) -> None:
        self.question = question
        self.timeout = timeout
        super().__init__(f"there was no answer to {question!r} within {timeout:g} s")


class Rejected(ResilienceError):
    """A person rejected what `approve(..., required=True)` asked for. It is not retried.

    `question` is its text, `approval` the `Approval` with the comment.

    Example:
        >>> print(Rejected("Send the report?", Approval(approved=False, comment="the wrong month")))
        'Send the report?' was rejected: the wrong month
    """

    error_category: ClassVar[str] = "unexpected"

    def __init__(self, question: str, approval: Approval) -> None:
        self.question = question
        self.approval = approval
        because = f": {approval.comment}" if approval.comment else ""
        super().__init__(f"{question!r} was rejected{because}")
