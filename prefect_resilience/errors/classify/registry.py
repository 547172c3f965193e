"""Rules that users put in front of the defaults, for the whole process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from prefect_resilience.errors.info import ErrorInfo, Finding
from prefect_resilience.errors.taxonomy import ErrorCategory

Rule = Callable[[Any], "ErrorCategory | str | ErrorInfo | None"]
"""Looks at an exception and says what it is: a category, its name, a whole ErrorInfo, or None: no opinion."""

R = TypeVar("R", bound=Rule)

_lock = threading.Lock()
_rules: tuple[Rule, ...] = ()


def register_classifier(rule: Rule) -> None:
    """Ask `rule` before the defaults from now on; the latest is asked first.

    A rule that returns None has no opinion, and one that raises is passed over. Registering twice does
    nothing.

    Example:
        >>> register_classifier(lambda error: "timeout" if "too slow" in str(error) else None)
        >>> str(classify(RuntimeError("too slow")).category)
        'timeout'
    """
    global _rules
    with _lock:
        if rule not in _rules:
            _rules = (rule, *_rules)


def unregister_classifier(rule: Rule) -> None:
    """Ask `rule` no more; nothing happens when it was not registered."""
    global _rules
    with _lock:
        _rules = tuple(known for known in _rules if known != rule)


def classifier(rule: R) -> R:
    """Decorator: `register_classifier`, and hand the function back.

    Example:
        >>> @classifier
        ... def locked(error: Exception) -> str | None:
        ...     return "unavailable" if "row is locked" in str(error) else None
        >>> classify(RuntimeError("the row is locked")).retryable
        True
    """
    register_classifier(rule)
    return rule


def ask(error: BaseException, rules: Sequence[Rule]) -> ErrorInfo | Finding | None:
    """The first opinion of the given rules, then of the registered ones; None when nobody has one."""
    for rule in (*rules, *_rules):
        try:
            opinion = _opinion(rule(error))
        except Exception:  # noqa: BLE001 - a rule is somebody else's code
            continue
        if opinion is not None:
            return opinion
    return None


def _opinion(said: object) -> ErrorInfo | Finding | None:
    if isinstance(said, ErrorInfo):
        return said
    if isinstance(said, str):
        return Finding(ErrorCategory(str(said).lower()))
    return None
