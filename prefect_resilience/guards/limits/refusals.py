"""The errors of callers who were not let through; the call was not made."""

from __future__ import annotations

import re
from typing import ClassVar

from prefect_resilience.base.naming import digest
from prefect_resilience.errors.exceptions import ResilienceError


class LimitRefused(ResilienceError):
    """A limit of our own refused the call, which was not made and says nothing about the service."""


class BulkheadFullError(LimitRefused):
    """No place became free within `waited` seconds; classified as `unavailable`, so it may be tried again.

    `overdue` of this process's places are held by overdue calls: their attempts are over, and they still run.
    """

    error_category: ClassVar[str] = "unavailable"

    def __init__(self, name: str | None, max_concurrent: int, waited: float = 0.0, overdue: int = 0) -> None:
        self.name = name
        self.max_concurrent = max_concurrent
        self.waited = waited
        self.overdue = overdue
        which = "a bulkhead without a name" if name is None else f"bulkhead {name!r}"
        taken = "its only place" if max_concurrent == 1 else f"all {max_concurrent} places"
        said = f"{which} is full: {taken} stayed taken for {waited:.1f} s"
        if overdue == 1:
            said += "; an overdue call holds a place until it really ends"
        elif overdue:
            said += f"; {overdue} overdue calls hold places until they really end"
        if overdue:
            said += ' (Timeout(..., mode="process") ends a call at its deadline)'
        super().__init__(said)

    def __reduce__(self) -> tuple[type[BulkheadFullError], tuple[str | None, int, float, int]]:
        return type(self), (self.name, self.max_concurrent, self.waited, self.overdue)


class RateLimitedError(LimitRefused):
    """The call would have to wait for longer than it may; classified as `rate_limit`.

    `calls` are allowed in `per` seconds; in `retry_after` seconds it is worth asking again, and a retry
    policy waits for that long.
    """

    code: ClassVar[str] = "rate_limit_exceeded"
    """What `classify` knows it by; a declared `error_category` would hide `retry_after` from it."""

    def __init__(self, name: str | None, calls: int, per: float, retry_after: float) -> None:
        self.name = name
        self.calls = calls
        self.per = per
        self.retry_after = retry_after
        which = "a rate limit without a name" if name is None else f"rate limit {name!r}"
        allowed = f"{calls} call{'' if calls == 1 else 's'} in {per:g} s"
        super().__init__(f"{which} allows {allowed}: the next one can be made in {retry_after:.2f} s")

    def __reduce__(self) -> tuple[type[RateLimitedError], tuple[str | None, int, float, float]]:
        return type(self), (self.name, self.calls, self.per, self.retry_after)


NOT_IN_PREFECT = re.compile(r"[/%&<>]")
"""What Prefect takes in no name."""


def prefect_name(kind: str, name: str) -> str:
    """What Prefect's limit for `name` is called, such as "bulkhead:llm"."""
    clean = NOT_IN_PREFECT.sub("-", name)
    return f"{kind}:{clean}" if clean == name else f"{kind}:{clean}~{digest(name)}"
