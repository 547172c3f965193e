"""Secrets out of every text that leaves the process.

`redact` knows the usual tokens by their looks (see `secret_patterns`), values by the name of their key, and
whatever was registered by value (see `secret_registry`). What it masks becomes `***`; the key's name, the
scheme and the host stay, so that a message can still be read. It is idempotent and takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.secrets.pairs import MASK, PAGING_NAME, TAIL
from prefect_resilience.errors.secrets.patterns import RULES
from prefect_resilience.errors.secrets.registry import (
    collect_secrets,
    known_forms,
    known_patterns,
    register_secret,
    register_secret_pattern,
)

_ROUNDS = 5
_DEPTH = 12
_ITEMS = 10_000
_SECRET_KEY = Regex(
    r"(?:pass(?:word|wd|phrase|code)?|pwd|secret|token|credentials?|(?:proxy-)?authorization|(?:set-)?cookie"
    r"|(?:api|access|private|account|secret|signing|encryption|subscription|master|auth)[\s_\-]?key"
    rf"|connection[\s_\-]?string){TAIL}$",
    re.IGNORECASE,
)

T = TypeVar("T")


def redact(text: str) -> str:
    """`text` with every secret in it replaced by `***`; the same string object when there is none.

    Example:
        >>> redact("postgresql://app:hunter22@db/orders")
        'postgresql://app:***@db/orders'
    """
    for _ in range(_ROUNDS):  # a mask may uncover a second secret; almost always the first round is the last
        masked = _once(text)
        if masked == text:
            break
        text = masked
    return text


def _once(text: str) -> str:
    for form in known_forms():
        if form in text:
            text = text.replace(form, MASK)
    for pattern in known_patterns():
        text = pattern.sub(_mask_match(pattern), text)
    folded = text.lower()
    for triggers, mask, fold in RULES:
        where = folded if fold else text
        for trigger in triggers:
            if trigger in where:
                text = mask(text)
                break
    return text


def _mask_match(pattern: re.Pattern[str]) -> Callable[[re.Match[str]], str]:
    group: str | int = "secret" if "secret" in pattern.groupindex else 0

    def masked(match: re.Match[str]) -> str:
        start, end = match.span(group)
        if start >= end:  # an empty match would put masks between all letters
            return match[0]
        return match.string[match.start() : start] + MASK + match.string[end : match.end()]

    return masked


def redact_data(value: T) -> T:
    """A JSON-like structure with every text in it redacted, and what stands under a secret's name masked.

    The structure is copied as far as it is dicts, lists and tuples, to a depth of 12 and 10,000 items; what
    lies deeper becomes `***`, what is more is left out. Other objects are kept as they are.
    """
    return cast("T", _walk(value, _DEPTH, [_ITEMS]))


def _walk(value: Any, depth: int, left: list[int]) -> Any:
    if isinstance(value, str):
        return redact(value)
    if not isinstance(value, dict | list | tuple):
        return value
    if depth == 0:
        return MASK
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value)
        return {
            (redact(key) if isinstance(key, str) else key): _under(key, item, depth, left)
            for key, item in pairs.items()
            if _take(left)
        }
    items = [_walk(item, depth - 1, left) for item in cast("list[Any]", value) if _take(left)]
    return items if isinstance(value, list) else tuple(items)


def _under(key: Any, item: Any, depth: int, left: list[int]) -> Any:
    if isinstance(key, str) and isinstance(item, str) and item and is_secret_name(key):
        return MASK
    return _walk(item, depth - 1, left)


def is_secret_name(name: str) -> bool:
    """Whether what stands under this name is a secret: `password`, `apiKey`, `X-Auth-Token`."""
    return _SECRET_KEY.search(name) is not None and not PAGING_NAME.search(name)


def _take(left: list[int]) -> bool:
    left[0] -= 1
    return left[0] >= 0


__all__ = ["collect_secrets", "redact", "redact_data", "register_secret", "register_secret_pattern"]
