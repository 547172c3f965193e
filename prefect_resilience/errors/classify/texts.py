"""What a message says: an allowance that is used up, a request that is too big, a lost race, an exception."""

from __future__ import annotations

import builtins
import re

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.classify.retry_after import wait_in_text
from prefect_resilience.errors.classify.table import codes_of, words_of
from prefect_resilience.errors.taxonomy import CATEGORY_CODES, Opinion, category_of, found_by_words
from prefect_resilience.errors.taxonomy import ErrorCategory as C

OVERFLOW_CODE = "context_length_exceeded"
WAITING = frozenset({C.RATE_LIMIT, C.UNAVAILABLE})
"""Categories with messages that may give a wait: "try again in 6s"."""


def says(what: str, text: str) -> Opinion | None:
    """The opinion of the table's words `says.…` on a text: that it says so."""
    return found_by_words(words_of(f"says.{what}"), text)


def too_big(text: str) -> Opinion | None:
    """A message over a size limit, or a prompt over the model's."""
    return says("large", text) or says("overflow", text)


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


def text_finding(text: str) -> Opinion | None:
    """An opinion from the text of a failure; None if it has no known words."""
    text = text[:_LIMIT]
    if (big := too_big(text)) is not None:
        return big
    wait = wait_in_text(text)
    if wait is None and says("spent", text):
        return Opinion(C.RESOURCE_EXHAUSTED, "insufficient_quota")
    found = _exception_in(text) or status_in(_STATUS, text)
    found = found or says("race", text) or found_by_words(words_of("words"), text)
    return found._replace(retry_after=wait) if found is not None and found.category in WAITING else found


def status_in(pattern: Regex, text: str) -> Opinion | None:
    """An opinion from the HTTP status that the pattern finds in a text."""
    status = next((int(next(filter(None, match.groups()))) for match in pattern.finditer(text)), None)
    category = status_category(status) if status else None
    return Opinion(category, str(status), details={"status": status}) if category else None


def _exception_in(text: str) -> Opinion | None:
    """The first exception with a known name in the text, such as in the last line of a traceback."""
    named, bare = codes_of("named"), codes_of("bare")
    for match in _EXCEPTION.finditer(text):
        head, _, name = match[1].rpartition(".")
        classes = () if head else getattr(getattr(builtins, name, None), "__mro__", ())
        bases = [f"{head.partition('.')[0]}.{name}", *(f"builtins.{cls.__name__}" for cls in classes)]
        category = next((named[base] for base in bases if base in named), None) or bare.get(name)
        if category is not None:
            return Opinion(category, CATEGORY_CODES.get(category, name))
    return None
