"""What a message says: an allowance that is used up, a request that is too big, a lost race, an exception."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Iterator
from functools import cache

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.classify.retry_after import wait_in_text
from prefect_resilience.errors.classify.table import codes_of, words_of
from prefect_resilience.errors.taxonomy import CATEGORY_CODES, Opinion, category_of, found_by_words
from prefect_resilience.errors.taxonomy import ErrorCategory as C

OVERFLOW_CODE = "context_length_exceeded"
TOO_LARGE = Opinion(C.OVERFLOW, "MESSAGE_TOO_LARGE", details={"resource": "message"})
WAITING = frozenset({C.RATE_LIMIT, C.UNAVAILABLE})
"""Categories with messages that may give a wait: "try again in 6s"."""

_OVERFLOW = Regex(
    r"context_length_exceeded|maximum context length|prompt is too long|input is too long|context window"
    r"|input token count .{0,40}exceeds|exceeds? the maximum number of tokens"
    r"|(?P<many>too many (?:input )?tokens)"
    r"|exceed context limit|reduce the length of the (?:messages|prompt)",
    re.IGNORECASE,
)
_SLOW_DOWN = Regex(
    r"\bwait\b|try again|retry|throttl|rate.?limit|too many requests|per (?:minute|second|hour|day)",
    re.IGNORECASE,
)


def _says(pattern: str) -> Callable[[str], bool]:
    """Whether a text matches, without regard to case."""
    compiled = Regex(pattern, re.IGNORECASE)
    return lambda text: compiled.search(text) is not None


says_too_large: Callable[[str], bool] = _says(
    r"(?:received|sent) message larger than max|message size .{0,60}larger than"
)
"""gRPC rejected a message over the size limit of one side."""

_PERIOD = r"(?:daily|weekly|monthly|annual|yearly|trial|billing|free[ _-]tier|specified|included)"
_ALLOWANCE = r"(?:quota|limits?|allowance|budget|credits?|cap|units?)"
says_spent: Callable[[str], bool] = _says(
    r"spend_limit|credit balance is too low"
    r"|insufficient[ _](?:account )?(?:balance|credits?|funds|quota)(?![a-z])"
    r"|exceeded your current quota|usage (?:limits?|cap) (?:has been |was )?(?:reached|exceeded)"
    rf"|{_PERIOD}[ _-](?:\w+[ _-]){{0,4}}{_ALLOWANCE}(?![a-z])"
    rf"|{_ALLOWANCE}\b[^.\n]{{0,40}}\b(?:this|the current|current|per|billing) (?:month|billing|period)"
    r"|(?:out of|no more|run out of) (?:credits?|quota|calls)"
    r"|no space left on|(?:disk|storage|table) .{0,80}\bfull\b"
    r"|reached the max\b.{0,60}\ballowed"
)
"""Credit, storage, or an allowance for days or months, is used up: a wait of minutes does not help."""
says_throttled: Callable[[str], bool] = _says(
    r"rate limit (?:exceeded|reached)|secondary rate limit|abuse detection|too many requests"
    r"|request was throttled",
)
"""The words of a rejection mean a rate limit."""
says_lost_race: Callable[[str], bool] = _says(
    r"could not serialize access|serialization failure|deadlock (?:found|detected|victim)|was deadlocked"
    r"|chosen as the deadlock victim|due to concurrent (?:update|delete|dml|transaction)"
    r"|concurrent (?:append|delete|transaction|write|modification) ?exception|DELTA_CONCURRENT"
    r"|number of waiters for this lock exceeds|lock wait timeout exceeded|restart transaction"
    r"|can't serialize access|write[ -]?(?:write )?conflict",
)
"""A transaction was rolled back because another one won: the whole transaction can be retried."""


def says_overflow(text: str) -> bool:
    """Whether a text says that one request has more tokens than the model takes.

    "Too many tokens, please wait" is a rate limit: it counts the tokens of all requests.
    """
    match = _OVERFLOW.search(text)
    return match is not None and not (match["many"] and _SLOW_DOWN.search(text))


def too_big(text: str) -> Opinion | None:
    """A message over a size limit, or a prompt over the model's."""
    if says_too_large(text):
        return TOO_LARGE
    return Opinion(C.OVERFLOW, OVERFLOW_CODE) if says_overflow(text) else None


def status_category(status: int) -> C | None:
    """The category of an HTTP status, None below 300 (no error)."""
    return category_of(codes_of("http"), status)


# -- a text in place of an exception

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
STATUS_IN_MESSAGE = Regex(
    r"\b(?:HTTP(?:/\d(?:\.\d)?)?(?:[ -](?:status|error|response))?(?:[ -]code)?|status[ _-]?code)"
    r"[ :=]{1,3}([45]\d\d)\b",
    re.IGNORECASE,
)
"""An HTTP status in the message of any exception: only where the message calls it so."""
_LIMIT = 8_000


@cache
def _bare_names() -> dict[str, C]:
    """Names without a package: the known ones, and Python's own with the category of their nearest base."""
    return codes_of("bare") | dict(_builtins())


def _builtins() -> Iterator[tuple[str, C]]:
    named = codes_of("named")
    for name, cls in vars(builtins).items():
        if isinstance(cls, type) and issubclass(cls, BaseException):
            bases = (f"builtins.{base.__name__}" for base in cls.__mro__)
            category = next((named[base] for base in bases if base in named), None)
            if category is not None:
                yield name, category


def text_finding(text: str) -> Opinion | None:
    """An opinion from the text of a failure; None if it has no known words."""
    text = text[:_LIMIT]
    if says_overflow(text) or says_too_large(text):
        return Opinion(C.OVERFLOW, OVERFLOW_CODE) if says_overflow(text) else TOO_LARGE
    wait = wait_in_text(text)
    if wait is None and ("insufficient_quota" in text or says_spent(text)):
        return Opinion(C.RESOURCE_EXHAUSTED, "insufficient_quota")
    found = _exception_in(text) or status_in(_STATUS, text)
    if found is None:
        found = Opinion(C.UNAVAILABLE) if says_lost_race(text) else found_by_words(words_of("words"), text)
    return found._replace(retry_after=wait) if found is not None and found.category in WAITING else found


def status_in(pattern: Regex, text: str) -> Opinion | None:
    """An opinion from the HTTP status that the pattern finds in a text."""
    status = next((int(next(filter(None, match.groups()))) for match in pattern.finditer(text)), None)
    category = status_category(status) if status else None
    return Opinion(category, str(status), details={"status": status}) if category else None


def _exception_in(text: str) -> Opinion | None:
    """The first exception with a known name in the text, such as in the last line of a traceback."""
    for match in _EXCEPTION.finditer(text):
        head, _, name = match[1].rpartition(".")
        category = (
            codes_of("named").get(f"{head.partition('.')[0]}.{name}") if head else _bare_names().get(name)
        )
        category = category or codes_of("bare").get(name)
        if category is not None:
            return Opinion(category, CATEGORY_CODES.get(category, name))
    return None
