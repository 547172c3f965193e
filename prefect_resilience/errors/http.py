"""HTTP: a status, a provider's own code and a body, as categories.

Everything is read by shape (`status_code`, `status`, `code`, `response`, `headers`, `body`), so that the
exceptions and responses of any client are understood, also of clients that are not installed here.
"""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from typing import Any

from .info import Finding
from .retry_after import plain_headers, retry_after_seconds, wait_of_value
from .shapes import as_code, as_dict, as_status, read, read_text
from .taxonomy import ErrorCategory as C

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
    425: C.UNAVAILABLE,  # Too Early: the server did not touch the request and asks for it again
    429: C.RATE_LIMIT,
    499: C.CANCELLED,  # nginx's and Google's "the client went away"
    502: C.UNAVAILABLE,
    503: C.UNAVAILABLE,
    504: C.TIMEOUT,
    529: C.UNAVAILABLE,  # Anthropic: overloaded
}

# A provider's own code that says more than the status it came with.
_DECISIVE: dict[str, C] = {
    "context_length_exceeded": C.OVERFLOW,
    "string_above_max_length": C.OVERFLOW,
    "request_too_large": C.OVERFLOW,
    "insufficient_quota": C.RESOURCE_EXHAUSTED,
    "billing_hard_limit_reached": C.RESOURCE_EXHAUSTED,
    "billing_error": C.RESOURCE_EXHAUSTED,
    "overloaded_error": C.UNAVAILABLE,
}

# Codes that count only where no status says it: an error event in the middle of a stream.
_STREAMED: dict[str, C] = {
    "rate_limit_error": C.RATE_LIMIT,
    "rate_limit_exceeded": C.RATE_LIMIT,
    "server_error": C.SERVER_ERROR,
    "api_error": C.SERVER_ERROR,
    "timeout_error": C.TIMEOUT,
    "authentication_error": C.AUTH,
    "invalid_api_key": C.AUTH,
    "permission_error": C.AUTH,
    "not_found_error": C.NOT_FOUND,
    "model_not_found": C.NOT_FOUND,
    "invalid_request_error": C.INVALID,
}

OVERFLOW_CODE = "context_length_exceeded"
OVERFLOW_TEXT = re.compile(
    r"context_length_exceeded|maximum context length|prompt is too long|input is too long|context window"
    r"|input token count .{0,40}exceeds|exceeds? the maximum number of tokens|too many (?:input )?tokens"
    r"|exceed context limit|reduce the length of the (?:messages|prompt)",
    re.IGNORECASE,
)
_TOO_LARGE_FOR_LIMIT = re.compile(r"request too large for", re.IGNORECASE)
_SPEND_LIMIT = re.compile(r"spend_limit|credit balance is too low", re.IGNORECASE)
_MAY_OVERFLOW = frozenset({400, 413, 422})
_BODY_LIMIT = 64_000


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
        read(error, "code"),
        read(response, "status_code"),
        read(response, "status"),
    )
    return next((status for status in map(as_status, candidates) if status is not None), None)


def wait_of(error: object, *, status: int | None, now: float) -> float | None:
    """The wait in seconds that an exception or response asks for, by its headers or its `retry_after`."""
    for source in (error, read(error, "response")):
        headers = plain_headers(read(source, "headers"))
        wait = retry_after_seconds(headers, status=status, now=now) if headers else None
        if wait is not None:
            return wait
    return wait_of_value(read(error, "retry_after"), now)


def http_finding(error: object, now: float) -> Finding | None:
    """What an exception or response says in the terms of HTTP, or None when it says nothing in them."""
    status = status_of(error)
    body = _body(error)
    codes = _codes(error, body)
    if status is None and not codes:
        return None
    details: dict[str, Any] = {} if status is None else {"status": status}
    if codes:
        details["provider_code"] = codes[0]
    wait = wait_of(error, status=status, now=now)
    decided = _decided(codes, status, f"{read_text(error, 4_000)} {body[:4_000]}")
    if decided is not None:
        return Finding(decided[0], decided[1], wait, details)
    category = None if status is None else status_category(status)
    if category is not None:
        return Finding(category, str(status), wait, details)
    streamed = next((code for code in codes if code in _STREAMED), None)
    return Finding(_STREAMED[streamed], streamed, wait, details) if streamed else None


def _decided(codes: list[str], status: int | None, text: str) -> tuple[C, str] | None:
    """What the provider's code or words say beyond the status."""
    for code in codes:
        if _SPEND_LIMIT.search(code):
            return C.RESOURCE_EXHAUSTED, code
        category = _DECISIVE.get(code)
        if category is not None and (status is None or status_category(status) is not category):
            return category, code
    if status in _MAY_OVERFLOW and OVERFLOW_TEXT.search(text):
        return C.OVERFLOW, OVERFLOW_CODE
    if status == 400 and _SPEND_LIMIT.search(text):
        return C.RESOURCE_EXHAUSTED, "billing_error"
    if status == 429 and _TOO_LARGE_FOR_LIMIT.search(text):
        # One request alone is over the limit of a whole minute: it would be refused for ever.
        return C.OVERFLOW, "request_too_large"
    return None


def _codes(error: object, body: str) -> list[str]:
    """Codes that a provider put on its exception or into the body, the most telling first."""
    inner = _error_object(read(error, "body")) or _error_object(_parsed(body))
    found = (read(error, "error_code"), read(error, "code"), read(error, "type"))
    return [
        code
        for code in (
            *map(as_code, found),
            *(as_code(as_dict(inner.get("details")).get("error_code")),),
            *(as_code(inner.get(name)) for name in ("code", "type", "status")),
        )
        if code is not None and as_status(code) is None
    ]


def _error_object(body: Any) -> dict[Any, Any]:
    """The object that describes the error: the body's `error`, or the body itself."""
    plain = as_dict(body)
    return as_dict(plain.get("error")) or plain


def _body(error: object) -> str:
    """The body of a response as far as it has been read already; reading more would be I/O."""
    for source in (read(error, "response"), error):
        for name in ("_content", "_body"):
            content = as_dict(read(source, "__dict__")).get(name)
            if isinstance(content, bytes) and len(content) <= _BODY_LIMIT:
                return content.decode("utf-8", "replace")
    return ""


def _parsed(body: str) -> Any:
    if not body.lstrip().startswith("{"):
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
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
