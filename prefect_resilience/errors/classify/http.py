"""HTTP: a status, a provider's own code and a body, as categories.

Everything is read by shape (`status_code`, `status`, `code`, `response`, `headers`, `body`), so that the
exceptions and responses of any client are understood, also of clients that are not installed here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.classify.bodies import body_text, error_objects, provider_codes, retry_infos
from prefect_resilience.errors.classify.provider_codes import (
    DECISIVE,
    OVERFLOW_CODE,
    STREAMED,
    THROTTLED,
    says_lost_race,
    says_overflow,
    says_spent,
    says_throttled,
)
from prefect_resilience.errors.classify.retry_after import (
    plain_headers,
    retry_after_seconds,
    wait_of_details,
    wait_of_value,
)
from prefect_resilience.errors.classify.shapes import as_number, as_status, read, read_text
from prefect_resilience.errors.classify.worded_waits import wait_in_text
from prefect_resilience.errors.info import Finding
from prefect_resilience.errors.taxonomy import ErrorCategory as C
from prefect_resilience.errors.taxonomy import ErrorKind

WAITING = frozenset({C.RATE_LIMIT, C.UNAVAILABLE})
"""Categories of which a text may say how long to wait: "try again in 6s"."""

_STATUSES: dict[int, C] = {
    401: C.AUTH,
    403: C.AUTH,
    404: C.NOT_FOUND,
    407: C.AUTH,
    408: C.TIMEOUT,
    409: C.CONFLICT,
    410: C.NOT_FOUND,
    412: C.CONFLICT,
    413: C.OVERFLOW,
    423: C.CONFLICT,
    420: C.RATE_LIMIT,  # "Enhance your calm"
    425: C.UNAVAILABLE,  # Too Early: the server did not touch the request and asks for it again
    429: C.RATE_LIMIT,
    449: C.UNAVAILABLE,  # Azure's "retry with": a write met another one
    499: C.CANCELLED,  # nginx's and Google's "the client went away"
    502: C.UNAVAILABLE,
    503: C.UNAVAILABLE,
    504: C.TIMEOUT,
    529: C.UNAVAILABLE,  # Anthropic: overloaded
}

_TOO_LARGE_FOR_LIMIT = Regex(r"request too large for", re.IGNORECASE)
_MAY_OVERFLOW = frozenset({400, 413, 422})
_MAY_BE_SPENT = frozenset({400, 402, 403, 429})
_MAY_BE_A_LOST_RACE = frozenset({400, 409})
_SHOULD_RETRY = ("x-should-retry", "stripe-should-retry")


def status_category(status: int) -> C | None:
    """The category of an HTTP status, None below 300, where nothing went wrong."""
    if status < 300:
        return None
    return _STATUSES.get(status, C.SERVER_ERROR if status >= 500 else C.INVALID)


def status_of(error: object) -> int | None:
    """The HTTP status that an exception or response carries under one of the usual names, else None."""
    response = read(error, "response")
    candidates = (
        read(error, "status_code"),
        read(error, "status"),
        read(error, "http_status"),
        read(error, "response_code"),  # python-gitlab
        read(error, "code"),
        read(response, "status_code"),
        read(response, "status"),
        read(read(error, "meta"), "status"),
    )
    return next((status for status in map(as_status, candidates) if status is not None), None)


def headers_of(error: object) -> dict[str, str]:
    """The headers of the answer, with lower-case names, wherever the SDK keeps them."""
    sources = (error, *(read(error, name) for name in ("response", "meta", "raw_response")))
    kept = (*(read(source, "headers") for source in sources), read(error, "litellm_response_headers"))
    found = (plain_headers(headers) for headers in kept)
    none: dict[str, str] = {}
    return next((headers for headers in found if headers), none)


def http_finding(error: object, now: float) -> Finding | None:
    """What an exception or response says in the terms of HTTP, or None when it says nothing in them."""
    status = status_of(error)
    body = body_text(error)
    objects = error_objects(error, body, status is not None)
    codes = provider_codes(error, objects)
    if status is None and not codes:
        return None
    details: dict[str, Any] = {} if status is None else {"status": status}
    if codes:
        details["provider_code"] = codes[0]
    headers = headers_of(error)
    text = f"{read_text(error, 4_000)} {body[:4_000]}"
    decided = _decided(codes, status, text) or _refused_for_now(codes, status, headers, text)
    if decided is None and status is not None and status_category(status) is not None:
        decided = _by_status(status, text)
    if decided is None:
        streamed = next((code for code in codes if code in STREAMED), None)
        decided = (STREAMED[streamed], streamed) if streamed else None
    if decided is None:
        return None
    category, code = decided
    waits = (
        retry_after_seconds(headers, status=None, now=now),
        wait_of_value(read(error, "retry_after"), now),
        wait_of_details(retry_infos(error, objects)),
        wait_in_text(text) if category in WAITING else None,
        retry_after_seconds(headers, status=429 if category is C.RATE_LIMIT else status, now=now),
    )
    wait = next((wait for wait in waits if wait is not None), None)
    return Finding(category, code, wait, details, retryable=_told_to_retry(headers, category))


def _by_status(status: int, text: str) -> tuple[C, str] | None:
    category = status_category(status)
    if status in _MAY_BE_A_LOST_RACE and says_lost_race(text):
        category = C.UNAVAILABLE
    return None if category is None else (category, str(status))


def _told_to_retry(headers: Mapping[str, str], category: C) -> bool | None:
    """A server's own word on retrying. Work that is too big stays too big, whatever the server says."""
    said = next((headers[name].lower() for name in _SHOULD_RETRY if name in headers), None)
    if said == "false":
        return False
    return True if said == "true" and category.kind is not ErrorKind.RESOURCE else None


def _refused_for_now(
    codes: list[str], status: int | None, headers: Mapping[str, str], text: str
) -> tuple[C, str] | None:
    """A 403 that is a rate limit: by its headers, the provider's code or its words."""
    if status != 403:
        return None
    used_up = any(
        as_number(headers.get(name)) == 0 for name in ("x-ratelimit-remaining", "ratelimit-remaining")
    )
    if used_up or "retry-after" in headers or not THROTTLED.isdisjoint(codes) or says_throttled(text):
        return C.RATE_LIMIT, str(status)
    return None


def _decided(codes: list[str], status: int | None, text: str) -> tuple[C, str] | None:
    """What the provider's code or words say beyond the status."""
    for code in codes:
        if says_spent(code):
            return C.RESOURCE_EXHAUSTED, code
        category = DECISIVE.get(code)
        if category is not None and (status is None or status_category(status) is not category):
            return category, code
    streamed = status is None or status < 300  # the answer had begun, so the status says nothing
    if (streamed or status in _MAY_OVERFLOW) and says_overflow(text):
        return C.OVERFLOW, OVERFLOW_CODE
    if (streamed or status in _MAY_BE_SPENT) and says_spent(text) and wait_in_text(text) is None:
        return C.RESOURCE_EXHAUSTED, "billing_error"
    if status == 429 and _TOO_LARGE_FOR_LIMIT.search(text):
        # One request alone is over the limit of a whole minute: it would be refused for ever.
        return C.OVERFLOW, "request_too_large"
    return None


def is_response(value: object) -> bool:
    """Whether a value has the shape of an HTTP response: a status and headers."""
    status = read(value, "status_code")
    status = read(value, "status") if status is None else status
    return as_status(status) is not None and read(value, "headers") is not None


def response_message(response: object) -> str:
    """The short text of a response's status, such as "Service Unavailable"."""
    for name in ("reason_phrase", "reason"):
        phrase = read(response, name)
        if isinstance(phrase, str) and phrase:
            return phrase
    try:
        return HTTPStatus(status_of(response) or 0).phrase
    except ValueError:
        return ""
