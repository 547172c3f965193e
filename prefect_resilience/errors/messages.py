"""Texts: what a message alone says, when there is no exception any more."""

from __future__ import annotations

import re

from .http import OVERFLOW_CODE, OVERFLOW_TEXT, status_category
from .info import Finding
from .names import BY_BARE_NAME, BY_NAME, CATEGORY_CODES, NETWORK_ERROR, TIMEOUT
from .taxonomy import ErrorCategory as C

# Prefect keeps "Task run encountered an exception ConnectionRefusedError: [Errno 111] ..." of an exception.
_EXCEPTION = re.compile(
    r"(?:encountered an exception:?\s{1,3}|^)((?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{2,80})(?::|$|\s*$)"
)
_STATUS = re.compile(
    r"(?:\b(?:status(?: code)?|HTTP(?:/\d(?:\.\d)?)?|error(?: code)?|code)[ :='\"]{1,3}|^['\"]?)([45]\d\d)\b"
    r"|\b([45]\d\d) (?-i:[A-Z][a-z])",
    re.IGNORECASE,
)
_WORDS: tuple[tuple[re.Pattern[str], C, str | None], ...] = tuple(
    (re.compile(words, re.IGNORECASE), category, code)
    for words, category, code in (
        (r"insufficient_quota|exceeded your current quota", C.RESOURCE_EXHAUSTED, "insufficient_quota"),
        (r"rate.?limit|too many requests|throttl", C.RATE_LIMIT, "429"),
        (
            r"overloaded|service unavailable|bad gateway|temporarily unavailable|try again later",
            C.UNAVAILABLE,
            "503",
        ),
        (r"timed? ?out|deadline exceeded", C.TIMEOUT, TIMEOUT),
        (
            r"connection (?:refused|reset|aborted|closed|error)|name or service not known|name resolution"
            r"|network is unreachable|no route to host|broken pipe|server disconnected",
            C.NETWORK,
            NETWORK_ERROR,
        ),
        (r"database is locked|deadlock detected|could not serialize", C.UNAVAILABLE, None),
        (r"unauthori[sz]ed|forbidden|permission denied|authentication failed|invalid api key", C.AUTH, None),
        (r"internal server error", C.SERVER_ERROR, "500"),
        (r"out of memory|oomkilled", C.RESOURCE_EXHAUSTED, None),
    )
)
_LIMIT = 8_000
_NAMES = {
    **BY_BARE_NAME,
    **{name.rpartition(".")[2]: c for name, c in BY_NAME.items() if name.startswith("builtins.")},
}


def text_finding(text: str) -> Finding | None:
    """What a text says about the failure it tells of, or None when it says nothing that is known."""
    text = text[:_LIMIT]
    if OVERFLOW_TEXT.search(text):
        return Finding(C.OVERFLOW, OVERFLOW_CODE)
    named = _exception_in(text)
    if named is not None:
        return named
    status = next((int(match[1] or match[2]) for match in _STATUS.finditer(text)), None)
    category = status_category(status) if status else None
    if category is not None:
        return Finding(category, str(status), details={"status": status})
    for pattern, category, code in _WORDS:
        if pattern.search(text):
            return Finding(category, code)
    return None


def _exception_in(text: str) -> Finding | None:
    match = _EXCEPTION.search(text)
    if match is None:
        return None
    head, _, name = match[1].rpartition(".")
    category = BY_NAME.get(f"{head.partition('.')[0]}.{name}") if head else _NAMES.get(name)
    return Finding(category, CATEGORY_CODES.get(category, name)) if category else None
