"""What a message says: an allowance that is used up, a request that is too big, a lost race, an exception."""

from __future__ import annotations

import builtins
import re
from functools import cache

from prefect_resilience.errors.classify.retry_after import wait_in_text
from prefect_resilience.errors.classify.table import codes_of, pattern_of, words_of
from prefect_resilience.errors.taxonomy import CATEGORY_CODES, Opinion, category_of, match_words
from prefect_resilience.errors.taxonomy import ErrorCategory as C

WAITING = frozenset({C.RATE_LIMIT, C.UNAVAILABLE})
"""Categories with messages that may give a wait: "try again in 6s"."""


@cache
def _sign(name: str) -> tuple[re.Pattern[str], Opinion]:
    rows = words_of(f"says.{name}")
    return re.compile("|".join(words for words, _, _ in rows)), Opinion(*rows[0][1:])


def says(name: str, text: str) -> Opinion | None:
    """The opinion of the table's words `says.…` on a text: that it says so."""
    pattern, opinion = _sign(name)
    return opinion if pattern.search(text.lower()) else None


def too_big(text: str) -> Opinion | None:
    """A message over a size limit, or a prompt over the model's."""
    return says("large", text) or says("overflow", text)


def status_category(status: int) -> C | None:
    """The category of an HTTP status, None below 300 (no error)."""
    return category_of(codes_of("http"), status)


# -- a text in place of an exception

_LIMIT = 8_000


def text_finding(text: str) -> Opinion | None:
    """An opinion from the text of a failure; None if it has no known words."""
    text = text[:_LIMIT]
    if big := too_big(text):
        return big
    wait = wait_in_text(text)
    if wait is None and says("spent", text):
        return Opinion(C.RESOURCE_EXHAUSTED, "insufficient_quota")
    opinion = _exception_in(text) or status_in("status.of_text", text) or says("race", text)
    opinion = opinion or match_words(words_of("words"), text)
    return opinion._replace(retry_after=wait) if opinion and opinion.category in WAITING else opinion


def status_in(pattern: str, text: str) -> Opinion | None:
    """An opinion from the HTTP status that a pattern of the table finds in a text."""
    matches = pattern_of(pattern).finditer(text)
    status = next((int(next(filter(None, match.groups()))) for match in matches), None)
    category = status_category(status) if status else None
    return Opinion(category, str(status), details={"status": status}) if category else None


def _exception_in(text: str) -> Opinion | None:
    """The first exception with a known name in the text, such as in the last line of a traceback."""
    named, bare = codes_of("named"), codes_of("bare")
    for match in pattern_of("exception.in_text").finditer(text):
        head, _, name = match[1].rpartition(".")
        classes = () if head else getattr(getattr(builtins, name, None), "__mro__", ())
        bases = [f"{head.partition('.')[0]}.{name}", *(f"builtins.{cls.__name__}" for cls in classes)]
        category = next((named[base] for base in bases if base in named), None) or bare.get(name)
        if category is not None:
            return Opinion(category, CATEGORY_CODES.get(category, name))
    return None
