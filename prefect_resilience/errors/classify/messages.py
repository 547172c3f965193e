"""Texts: what a message alone says, when there is no exception any more."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.classify.http import (
    OVERFLOW_CODE,
    WAITING,
    says_lost_race,
    says_overflow,
    says_spent,
    says_too_large,
    status_category,
)
from prefect_resilience.errors.classify.names import (
    BY_BARE_NAME,
    BY_NAME,
    CATEGORY_CODES,
    NETWORK_ERROR,
    TIMEOUT,
)
from prefect_resilience.errors.classify.retry_after import wait_in_text
from prefect_resilience.errors.taxonomy import ErrorCategory as C
from prefect_resilience.errors.taxonomy import Finding

# "Task run encountered an exception ConnectionRefusedError: [Errno 111] ...", a line of a traceback, or
# "step 'load' failed: ConnectionResetError: ...".
_EXCEPTION = Regex(
    r"(?:encountered an exception:?\s{1,3}|^|[:;(\[]\s{0,3}['\"]?)"
    r"((?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{2,80})(?::(?=\s|$)|\(['\"]|$|\s*$)",
    re.MULTILINE,
)
_STATUS = Regex(
    r"(?:\b(?:status(?: code)?|HTTP(?:/\d(?:\.\d)?)?|error(?: code)?|code)[ :='\"]{1,3}|^['\"]?)([45]\d\d)\b"
    r"|\b([45]\d\d) (?-i:[A-Z][a-z])",
    re.IGNORECASE,
)
_WORDS: tuple[tuple[Regex, C, str | None], ...] = tuple(
    (Regex(words, re.IGNORECASE), category, code)
    for words, category, code in (
        (r"rate.?limit|too many requests|throttl|exceeded your current quota", C.RATE_LIMIT, "429"),
        (
            r"overloaded|service unavailable|bad gateway|temporarily unavailable|try again later"
            r"|(?:high|experiencing) (?:demand|load)|(?:at|over|insufficient) capacity",
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
        (r"database is locked|could not serialize", C.UNAVAILABLE, None),
        (r"unauthori[sz]ed|forbidden|permission denied|authentication failed|invalid api key", C.AUTH, None),
        (
            r"internal server error|server had an error|error while processing your request",
            C.SERVER_ERROR,
            "500",
        ),
        (r"out of memory|oomkilled", C.RESOURCE_EXHAUSTED, None),
    )
)
_LIMIT = 8_000


def _builtins() -> Iterator[tuple[str, C]]:
    """Built-in exceptions by their bare names, each as its nearest base that is known."""
    for name, cls in vars(builtins).items():
        if isinstance(cls, type) and issubclass(cls, BaseException):
            bases = (f"builtins.{base.__name__}" for base in cls.__mro__)
            category = next((BY_NAME[base] for base in bases if base in BY_NAME), None)
            if category is not None:
                yield name, category


_NAMES = {**BY_BARE_NAME, **dict(_builtins())}


def text_finding(text: str) -> Finding | None:
    """What a text says about the failure it tells of, or None when it says nothing that is known."""
    text = text[:_LIMIT]
    if says_overflow(text):
        return Finding(C.OVERFLOW, OVERFLOW_CODE)
    if says_too_large(text):
        return Finding(C.OVERFLOW, "MESSAGE_TOO_LARGE", details={"resource": "message"})
    wait = wait_in_text(text)
    if wait is None and ("insufficient_quota" in text or says_spent(text)):
        return Finding(C.RESOURCE_EXHAUSTED, "insufficient_quota")
    found = _exception_in(text) or _status_in(text) or _words_in(text)
    if found is not None and found.category in WAITING:
        return found._replace(retry_after=wait)
    return found


def _status_in(text: str) -> Finding | None:
    status = next((int(match[1] or match[2]) for match in _STATUS.finditer(text)), None)
    category = status_category(status) if status else None
    return Finding(category, str(status), details={"status": status}) if category else None


def _words_in(text: str) -> Finding | None:
    if says_lost_race(text):
        return Finding(C.UNAVAILABLE)
    for pattern, category, code in _WORDS:
        if pattern.search(text):
            return Finding(category, code)
    return None


def _exception_in(text: str) -> Finding | None:
    """The first exception in the text whose name is known, such as the last line of a traceback."""
    for match in _EXCEPTION.finditer(text):
        head, _, name = match[1].rpartition(".")
        category = BY_NAME.get(f"{head.partition('.')[0]}.{name}") if head else _NAMES.get(name)
        category = category or BY_BARE_NAME.get(name)
        if category is not None:
            return Finding(category, CATEGORY_CODES.get(category, name))
    return None
