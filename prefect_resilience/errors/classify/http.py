"""HTTP, AWS and gRPC: categories from a status, a provider's own code and a body.

Everything is read by shape (`status_code`, `status`, `code`, `response`, `headers`, `body`). This works for
the exceptions and responses of any client, installed or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from http import HTTPStatus
from typing import Any, cast

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.classify.retry_after import (
    plain_headers,
    retry_after_seconds,
    retry_info_delay,
    used_up,
    wait_bounds,
    wait_in_text,
    wait_of_attributes,
    wait_of_details,
    wait_of_value,
)
from prefect_resilience.errors.classify.shapes import (
    as_code,
    as_dict,
    as_number,
    as_status,
    body_text,
    called,
    error_objects,
    holders_of,
    provider_codes,
    read,
    read_text,
    retry_infos,
)
from prefect_resilience.errors.classify.table import codes_of
from prefect_resilience.errors.classify.texts import (
    OVERFLOW_CODE,
    WAITING,
    says_lost_race,
    says_overflow,
    says_spent,
    says_throttled,
    status_category,
    too_big,
)
from prefect_resilience.errors.taxonomy import ErrorCategory as C
from prefect_resilience.errors.taxonomy import ErrorKind, Opinion, found_by_code


@cache
def aws_codes() -> dict[str, C]:
    """AWS's codes in small letters: event streams begin theirs with one."""
    return {code.lower(): category for code, category in codes_of("aws").items()}


@cache
def _codes_of_reports() -> dict[str, C]:
    return aws_codes() | {code.lower(): category for code, category in codes_of("grpc").items()}


_TOO_LARGE_FOR_LIMIT = Regex(r"request too large for", re.IGNORECASE)
_MAY_OVERFLOW = frozenset({400, 413, 422})
_MAY_BE_SPENT = frozenset({400, 402, 403, 422, 429, 500, 503})
_PAYMENT_REQUIRED = Regex(r"credits?\b|balance|budget|quota|billing|plan\b", re.IGNORECASE)
_MAY_BE_A_LOST_RACE = frozenset({400, 409})
_STAYS = frozenset({501, 505})
"""The server cannot do it, and will not learn it: no retry."""
_SHOULD_RETRY = ("x-should-retry", "stripe-should-retry")
_OWN_STATUSES = (
    *("status_code", "status", "http_status", "http_status_code", "http_code"),
    *("response_code", "statusCode", "code"),  # response_code: python-gitlab
)
_HELD_STATUSES = ("status_code", "status")


def status_of(error: object) -> int | None:
    """The HTTP status that an exception or response carries under one of the usual names, else None."""
    own, *held = holders_of(error)
    candidates = [read(own, name) for name in _OWN_STATUSES]
    candidates += [read(holder, name) for holder in held for name in _HELD_STATUSES]
    return next((status for status in map(as_status, candidates) if status is not None), None)


def headers_of(error: object) -> dict[str, str]:
    """The headers of the answer, with lower-case names, wherever the SDK keeps them."""
    holders = holders_of(error)
    kept = [read(holder, "headers") for holder in holders]
    kept += [read(error, "http_headers"), read(error, "litellm_response_headers")]
    kept += [holder for holder in holders if isinstance(holder, dict)]  # httplib2: resp["retry-after"]
    none: dict[str, str] = {}
    return next((headers for headers in map(plain_headers, kept) if headers), none)


def http_finding(error: object, now: float) -> Opinion | None:
    """The opinion on an exception or response by its HTTP status, codes and text, or None."""
    status = status_of(error)
    holders = holders_of(error)
    body = body_text(holders)
    objects = error_objects(holders, body, status is not None)
    codes = provider_codes(error, objects)
    if status is None and not codes:
        return None
    details: dict[str, Any] = {} if status is None else {"status": status}
    if codes:
        details["provider_code"] = codes[0]
    headers = headers_of(error)
    details |= wait_bounds(headers)
    text = f"{read_text(error, 4_000)} {body[:4_000]}"
    decided = _decided(codes, status, text) or _refused_for_now(codes, status, headers, text)
    if decided is None and status is not None and status_category(status) is not None:
        decided = _by_status(status, text)
    if decided is None:
        reported = provider_codes(None, objects)  # an application's own error may have such codes, too
        known = ((_category_in_stream(code, code in reported), code) for code in codes)
        decided = next(((category, code) for category, code in known if category is not None), None)
    if decided is None:
        return None
    category, code = decided
    waits = (
        retry_after_seconds(headers, status=None, now=now),
        wait_of_attributes(error, now),
        wait_of_details(retry_infos(error, objects)),
        wait_in_text(text) if category in WAITING else None,
        retry_after_seconds(headers, status=429 if category is C.RATE_LIMIT else status, now=now),
    )
    wait = next((wait for wait in waits if wait is not None), None)
    advice = False if status in _STAYS else _told_to_retry(headers, category)
    return Opinion(category, code, wait, details, retryable=advice)


def _category_in_stream(code: str, is_reported: bool) -> C | None:
    said = codes_of("streamed").get(code) or codes_of("throttled").get(code)
    return said or (_codes_of_reports().get(code.lower()) if is_reported else None)


def _by_status(status: int, text: str) -> tuple[C, str] | None:
    category = status_category(status)
    if status in _MAY_BE_A_LOST_RACE and says_lost_race(text):
        category = C.UNAVAILABLE
    if status == 402 and _PAYMENT_REQUIRED.search(text):
        category = C.RESOURCE_EXHAUSTED
    return None if category is None else (category, str(status))


def _told_to_retry(headers: Mapping[str, str], category: C) -> bool | None:
    """The server's own advice on retries. It cannot make work retryable that is too big."""
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
    signs = used_up(headers), "retry-after" in headers, not codes_of("throttled").keys().isdisjoint(codes)
    return (C.RATE_LIMIT, str(status)) if any(signs) or says_throttled(text) else None


def _decided(codes: list[str], status: int | None, text: str) -> tuple[C, str] | None:
    """The category from the provider's code or words, if they are more exact than the status."""
    for code in codes:
        if says_spent(code):
            return C.RESOURCE_EXHAUSTED, code
        category = codes_of("decisive").get(code)
        if category is not None and (status is None or status_category(status) is not category):
            return category, code
    streamed = status is None or status < 300  # the error came after the status was sent
    if (streamed or status in _MAY_OVERFLOW) and says_overflow(text):
        return C.OVERFLOW, OVERFLOW_CODE
    if (streamed or status in _MAY_BE_SPENT) and says_spent(text) and wait_in_text(text) is None:
        return C.RESOURCE_EXHAUSTED, "billing_error"
    if status == 429 and _TOO_LARGE_FOR_LIMIT.search(text):
        # This request alone is over the limit per minute: every retry would be rejected.
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


# AWS, and the status codes of gRPC: grpc.io, "Status codes and their use in gRPC".

_EVENT_TYPE = Regex(r""":(?:exception-type|error-code)["']?\s?[:=,]\s?["']?(\w{1,80})""")


def aws_finding(error: object, now: float) -> Opinion | None:
    """botocore's ClientError: by the service's code, else by the HTTP status of the answer.

    Another client may raise the text of an exception in AWS's event stream, with its headers.
    """
    response = as_dict(read(error, "response"))
    if not response:
        event = _EVENT_TYPE.search(read_text(error, 4_000))
        return None if event is None else found_by_code(aws_codes(), event[1].lower())
    code = as_code(as_dict(response.get("Error")).get("Code"))
    metadata = as_dict(response.get("ResponseMetadata"))
    status = as_status(metadata.get("HTTPStatusCode"))
    headers = plain_headers(metadata.get("HTTPHeaders"))
    wait = retry_after_seconds(headers, status=status, now=now)
    details: dict[str, Any] = wait_bounds(headers) | ({} if status is None else {"status": status})
    category = _aws_code(code)
    reasons = _cancellation_reasons(response)
    if reasons:
        # One permanent reason is enough: a retry of the transaction would be cancelled too.
        category = min(
            (_aws_code(reason) or C.CONFLICT for reason in reasons), key=lambda each: each.retryable
        )
        details["reasons"] = reasons
    # Throttling may also mention "too many tokens": only an `invalid` or unknown code may be an overflow.
    if category in (None, C.INVALID) and says_overflow(read_text(error, 4_000)):
        return Opinion(C.OVERFLOW, OVERFLOW_CODE, wait, details)
    category = category or (status_category(status) if status else None)
    return Opinion(category, code or str(status), wait, details) if category else None


def _aws_code(code: str | None) -> C | None:
    return aws_codes().get((code or "").lower())


def _cancellation_reasons(response: dict[Any, Any]) -> list[str]:
    """Why DynamoDB cancelled a transaction: the code of each failed item. Other items have "None"."""
    listed = response.get("CancellationReasons")
    reasons = cast("list[object]", listed)[:100] if isinstance(listed, list) else []
    codes = (as_code(as_dict(reason).get("Code")) for reason in reasons)
    return [code for code in codes if code is not None and code != "None"]


# For these categories the body of Google's answer is more exact than its gRPC status.
_IN_THE_BODY = (C.OVERFLOW, C.RATE_LIMIT, C.RESOURCE_EXHAUSTED)


def rpc_finding(error: object, now: float) -> Opinion | None:
    """By a status of gRPC, an enum: of grpcio, grpclib, google-api-core, temporalio and clients like them."""
    places = (called(error, "code"), *(read(error, name) for name in ("code", "grpc_status_code", "status")))
    name = next((name for place in places if (name := _enum_name(place)) in codes_of("grpc")), None)
    if name is None:
        return None
    found = http_finding(error, now) if read(error, "grpc_status_code") is not None else None
    if found is not None and found.category in _IN_THE_BODY:
        return found
    details = dict((found.details if found else None) or {}, grpc_status=name) if found else {}
    big = too_big(read_text(error, 4_000)) if name in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED") else None
    if big is not None:
        return big._replace(details={**details, **(big.details or {})})
    pairs = called(error, "trailing_metadata")
    trailing = plain_headers(list(cast("Iterable[Any]", pairs)) if isinstance(pairs, Iterable) else None)
    pushback = as_number(trailing.get("grpc-retry-pushback-ms"))
    refused = "grpc-retry-pushback-ms" in trailing and (pushback or 0) < 0  # gRFC A6: negative: no retry
    wait = found.retry_after if found else None if refused else _wait(trailing, pushback, now)
    code = as_status(read(error, "code")) if found else None
    return Opinion(
        codes_of("grpc")[name], str(code or name), wait, details, retryable=False if refused else None
    )


def _enum_name(value: object) -> str:
    name = read(value, "name")
    return name if isinstance(name, str) and as_status(value) is None else ""  # not HTTPStatus.NOT_FOUND


def _wait(trailing: dict[str, str], pushback: float | None, now: float) -> float | None:
    """The wait in seconds from the trailing metadata: the pushback, RetryInfo, or HTTP's header."""
    if pushback is not None:
        return wait_of_value(pushback / 1000, now)
    status = trailing.get("grpc-status-details-bin", "").encode("latin-1", "replace")
    wait = retry_info_delay(status)
    return retry_after_seconds(trailing, status=None, now=now) if wait is None else wait
