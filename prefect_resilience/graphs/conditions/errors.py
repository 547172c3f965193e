"""What is raised when a condition cannot be answered."""

from __future__ import annotations

from prefect_resilience.errors.exceptions import ResilienceError


class ConditionError(ResilienceError, ValueError):
    """A condition that has no answer: its path leads nowhere, or its pattern or value takes too long.

    `path` is the path that was followed, None when there was none. Can be pickled.
    """

    def __init__(self, message: str, path: str | None = None) -> None:
        self.path = path
        super().__init__(message)

    def __reduce__(self) -> tuple[type[ConditionError], tuple[str, str | None]]:
        return type(self), (str(self), self.path)
