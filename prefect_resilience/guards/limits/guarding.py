"""The common parts of the limits: names, tickets, and the errors of a rejected call."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast
from uuid import uuid4

from pydantic import PrivateAttr, field_validator

from prefect_resilience.base.naming import UNPRINTABLE, digest, fill, shorten, template_fields
from prefect_resilience.base.policy import Policy
from prefect_resilience.base.wrapping import Guarding
from prefect_resilience.errors.exceptions import ConfigurationError, ResilienceError

if TYPE_CHECKING:
    from prefect_resilience.guards.limits.leases import Lease
    from prefect_resilience.guards.limits.line import HeldPlace

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True, eq=False)
class Ticket:
    """The object that a caller gets from `acquire` and passes to `finish`."""

    place: HeldPlace | None = None
    lease: Lease | None = None


class Limit(Guarding, Policy):
    """The base class of the limits. Its copies and pickles are the same limit in a process."""

    _kind: ClassVar[str] = "limit"

    _own: str = PrivateAttr(default="")

    def model_post_init(self, context: Any, /) -> None:
        self._own = uuid4().hex

    @property
    def fields(self) -> tuple[str, ...]:
        """The parameters that the name needs."""
        return ()

    def _key(self, name: str | None = None) -> str:
        """The limit's key in this process: its name, or an id of its own."""
        # Read directly: pydantic's attribute access would be a tenth of the cost of a limit.
        return name or cast("dict[str, str]", self.__pydantic_private__)["_own"]

    def bind(self, parameters: Mapping[str, Any]) -> Self:
        """The limit for these parameters: itself if its name has no fields."""
        return self


class NamedLimit(Limit):
    """The base class of the limits with a name.

    `name` may be a template over a task's parameters, as in "llm:{provider}". Limits of the same name are
    one limit in this process, and in a flow or task run in the whole fleet. A limit without a name is shared
    with no other.
    """

    name: str | None = None
    _literal: bool = PrivateAttr(default=False)

    def model_post_init(self, context: Any, /) -> None:
        if self.name is None:
            super().model_post_init(context)

    @field_validator("name")
    @classmethod
    def _name_can_be_read(cls, name: str | None) -> str | None:
        if name is not None:
            template_fields(name, "limit")
        return name

    @property
    def fields(self) -> tuple[str, ...]:
        """The parameters that the name needs."""
        return () if self.name is None or self._literal else template_fields(self.name, "limit")

    def bind(self, parameters: Mapping[str, Any]) -> Self:
        """The limit for these parameters: itself if the name has no fields, else one with the name filled in.

        Raises ConfigurationError when a parameter is missing.
        """
        if self.name is None or not self.fields:
            return self
        bound = self.model_copy(update={"name": fill(self.name, parameters, "limit")})
        bound._literal = True
        return bound

    def final_name(self) -> str | None:
        """The name without fields. Raises ConfigurationError if it is a template."""
        if self.name is None or self._literal:
            return self.name
        fields = template_fields(self.name, "limit")
        if fields:
            raise ConfigurationError(
                f"the limit's name {self.name!r} is a template: call .bind({{{fields[0]!r}: ...}}) first, or "
                "decorate a function that has the parameter"
            )
        return shorten(self.name.format())

    def __call__(self, fn: F) -> F:
        """Decorate a function: plain, async, generator or async generator.

        The name's fields are filled from the arguments of each call. A generator holds its place from its
        first item to its end.
        """
        missing = [field for field in self.fields if field not in inspect.signature(fn).parameters]
        if missing:
            raise ConfigurationError(
                f"the limit's name {self.name!r} cannot be filled in: {fn.__name__} has no parameter "
                f"{missing[0]!r}"
            )
        return super().__call__(fn)


class LimitRefused(ResilienceError):
    """A limit of this package rejected the call. The function was not called; the service did not fail."""


class BulkheadFullError(LimitRefused):
    """No place became free within `waited` seconds; classified as `unavailable`, so it may be retried.

    `overdue` is the number of this process's places held by overdue calls: calls that still run although
    their attempts have ended.
    """

    error_category: ClassVar[str] = "unavailable"
    _unnamed: ClassVar[str] = "a bulkhead without a name"

    def __init__(self, name: str | None, max_concurrent: int, waited: float = 0.0, overdue: int = 0) -> None:
        self.name = name
        self.max_concurrent = max_concurrent
        self.waited = waited
        self.overdue = overdue
        subject = self._unnamed if name is None else f"bulkhead {name!r}"
        taken = "its only place" if max_concurrent == 1 else f"all {max_concurrent} places"
        message = f"{subject} is full: {taken} stayed in use for {waited:.1f} s"
        if overdue:
            message += (
                f"; abandoned calls hold {overdue} of them until they end "
                '(Timeout(..., mode="process") stops a call at its deadline)'
            )
        super().__init__(message)


class AdaptiveLimitFullError(BulkheadFullError):
    """No place of an `AdaptiveLimit` became free within `waited` s; `max_concurrent` was its number then.

    Example:
        >>> print(AdaptiveLimitFullError(None, 12, 2.0))
        the adaptive limit is full: all 12 places stayed in use for 2.0 s
    """

    _unnamed: ClassVar[str] = "the adaptive limit"


class RateLimitedError(LimitRefused):
    """The call would have to wait longer than `max_wait`; classified as `rate_limit`.

    `calls` are allowed in `per` seconds. A retry makes sense after `retry_after` seconds, and a retry policy
    waits for that long.
    """

    code: ClassVar[str] = "rate_limit_exceeded"
    """The code for `classify`; with a declared `error_category` it would ignore `retry_after`."""

    def __init__(self, name: str | None, calls: int, per: float, retry_after: float) -> None:
        self.name = name
        self.calls = calls
        self.per = per
        self.retry_after = retry_after
        subject = "a rate limit without a name" if name is None else f"rate limit {name!r}"
        allowed = f"{calls} call{'' if calls == 1 else 's'} in {per:g} s"
        super().__init__(f"{subject} allows {allowed}: the next one can be made in {retry_after:.2f} s")


NOT_IN_PREFECT = re.compile(f"[/%&<>{UNPRINTABLE}]")
"""Characters that Prefect, or its database, allows in no name."""


def prefect_name(kind: str, name: str) -> str:
    """The name of Prefect's limit for `name`, such as "bulkhead:llm"."""
    clean = NOT_IN_PREFECT.sub("-", name)
    return f"{kind}:{clean}" if clean == name else f"{kind}:{clean}~{digest(name)}"
