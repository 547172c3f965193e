"""Conditions written in Python: `path("confidence") >= 0.9`, `failed("timeout") | ~succeeded()`."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, cast

from prefect_resilience.base.plain import shortly, unfold
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.taxonomy import ErrorCategory
from prefect_resilience.graphs.conditions.model import Condition
from prefect_resilience.graphs.conditions.paths import check_path
from prefect_resilience.graphs.conditions.reading import Operator


class PathBuilder:
    """A place in a result; comparing it gives a `Condition`. Made by `path`."""

    # No hash, because == makes a condition.

    def __init__(self, path: str) -> None:
        self._path = path

    def __eq__(self, value: object) -> Condition:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._asks("equals", value)

    def __ne__(self, value: object) -> Condition:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._asks("not_equals", value)

    def __gt__(self, value: Any) -> Condition:
        return self._asks("gt", value)

    def __ge__(self, value: Any) -> Condition:
        return self._asks("gte", value)

    def __lt__(self, value: Any) -> Condition:
        return self._asks("lt", value)

    def __le__(self, value: Any) -> Condition:
        return self._asks("lte", value)

    def contains(self, value: Any) -> Condition:
        """`value` is a part of the string, an item of the list, or a key of the mapping at the path."""
        return self._asks("contains", value)

    def matches(self, pattern: str) -> Condition:
        """The regular expression matches a part of the string at the path; write `^...$` for all of it."""
        return self._asks("matches", pattern)

    def is_in(self, values: Iterable[Any]) -> Condition:
        """The value at the path is one of `values`."""
        listed = unfold(values)
        if not isinstance(listed, list):
            raise ConfigurationError(f"{self!r}.is_in() takes a list of values, not {shortly(values)}")
        return self._asks("in", listed)

    def exists(self) -> Condition:
        """The path exists; its value may be null."""
        return Condition(operator="exists", path=self._path)

    def not_exists(self) -> Condition:
        """The path does not exist."""
        return Condition(operator="not_exists", path=self._path)

    def __and__(self, other: object) -> Condition:
        raise ConfigurationError(
            f"path({self._path!r}) is combined by & or | without a comparison: these bind tighter than >, == "
            f"and <, so put each comparison in parentheses, as in (path('a') > 1) & (path('b') > 2)"
        )

    def __or__(self, other: object) -> Condition:
        return self & other

    def __rand__(self, other: object) -> Condition:
        return self & other

    def __ror__(self, other: object) -> Condition:
        return self & other

    def __invert__(self) -> Condition:
        raise ConfigurationError(
            f"~path({self._path!r}) has no comparison: write ~(path({self._path!r}) > 1), or write "
            f"~path({self._path!r}).exists()"
        )

    def __bool__(self) -> bool:
        raise TypeError(f"path({self._path!r}) is not a condition yet: compare it, or write .exists()")

    def __repr__(self) -> str:
        return f"path({self._path!r})"

    def _asks(self, operator: Operator, value: Any) -> Condition:
        if isinstance(value, PathBuilder):
            raise ConfigurationError(f"{self!r} can only be compared with a value, not with {value!r}")
        return Condition(operator=operator, path=self._path, value=value)


def path(path: str) -> PathBuilder:
    """The place `path` in a result: `a.b[0].c`, or `$...` as in RFC 9535. Raises `ConfigurationError`.

    Example:
        >>> (path("answers[0].score") >= 0.9).evaluate({"answers": [{"score": 0.95}]})
        True
    """
    if not isinstance(cast("Any", path), str):
        raise ConfigurationError(f"path() takes a string such as 'results[0].id', not {shortly(path)}")
    check_path(path)
    return PathBuilder(path)


def succeeded() -> Condition:
    """The task succeeded.

    Example:
        >>> succeeded().evaluate({"any": "value"})
        True
    """
    return Condition(operator="success")


def failed(category: ErrorCategory | str | None = None, code: str | int | None = None) -> Condition:
    """The task failed after all its retries; with `category` and `code`, only with such an error.

    Example:
        >>> failed(category="timeout").evaluate(None, error=TimeoutError())
        True
    """
    if category is None and code is None:
        return Condition(operator="error_occurred")
    named = category.value if isinstance(category, Enum) else category
    return Condition(operator="failed", category=named, code=cast("str | None", code))
