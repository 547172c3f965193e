"""HTTP: categories from a status, a provider's own code and a body.

Everything is read by shape (`status_code`, `status`, `code`, `response`, `headers`, `body`). This works for
the exceptions and responses of any client, installed or not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.classify.retry_after import (
    plain_headers,
    retry_after_seconds,
    used_up,
    wait_bounds,
    wait_in_text,
    wait_of_details,
    wait_of_value,
)
from prefect_resilience.errors.classify.shapes import (
    as_status,
    body_text,
    error_objects,
    provider_codes,
    read,
    read_text,
    retry_infos,
)
from prefect_resilience.errors.taxonomy import ErrorCategory as C
from prefect_resilience.errors.taxonomy import ErrorKind, Opinion, category_of, coded

DECISIVE = coded(
    overflow="context_length_exceeded string_above_max_length request_too_large exceed_context_size_error",
    # dailyLimitExceeded is Google's, per day; REQUEST_LIMIT_EXCEEDED Salesforce's, of calls in 24 hours
    resource_exhausted="""
            insufficient_quota billing_hard_limit_reached billing_error usage_limit_reached dailyLimitExceeded
            REQUEST_LIMIT_EXCEEDED
            """,
    unavailable="overloaded_error UNABLE_TO_LOCK_ROW",  # Salesforce: another transaction holds the row
)
"""Provider codes that decide, whatever the status is."""

_THROTTLED = """
    rateLimitExceeded userRateLimitExceeded quotaExceeded jobRateLimitExceeded concurrentLimitExceeded
    RATE_LIMIT_EXCEEDED rate_limit_exceeded rate_limited ratelimited too_many_requests TooManyRequests
    OVER_QUERY_LIMIT RATE_LIMITED RATELIMITED THROTTLED TOO_MANY_REQUESTS
"""
THROTTLED = frozenset(_THROTTLED.split())
"""Codes that make a 403 a rate limit."""

STREAMED = coded(
    rate_limit=f"{_THROTTLED} rate_limit_error throttling_error slow_down service_tier_capacity_exceeded",
    unavailable="overloaded engine_overloaded server_is_overloaded service_unavailable SERVICE_UNAVAILABLE",
    server_error="""
            server_error internal_server_error api_error internal_error fatal_error INTERNAL_SERVER_ERROR
            INTERNAL
            """,
    timeout="timeout_error request_timeout vector_store_timeout",
    auth="""
            authentication_error invalid_api_key permission_error invalid_auth not_authed token_expired
            token_revoked account_inactive missing_scope not_allowed_token_type UNAUTHENTICATED FORBIDDEN
            UNAUTHORIZED ACCESS_DENIED
            """,
    not_found="not_found_error model_not_found channel_not_found user_not_found NOT_FOUND",
    invalid="""
            invalid_request_error invalid_prompt BAD_USER_INPUT GRAPHQL_VALIDATION_FAILED
            GRAPHQL_PARSE_FAILED content_filter invalid_image invalid_image_url image_parse_error
            """,
)
"""Codes that count only if no status gives the category: for an error event in the middle of a stream, for
Slack, which always answers 200, and for GraphQL servers (the codes of Apollo)."""
GRPC = coded(
    cancelled="CANCELLED",
    invalid="INVALID_ARGUMENT OUT_OF_RANGE UNIMPLEMENTED",
    timeout="DEADLINE_EXCEEDED",
    not_found="NOT_FOUND",
    conflict="ALREADY_EXISTS FAILED_PRECONDITION",
    auth="PERMISSION_DENIED UNAUTHENTICATED",
    rate_limit="RESOURCE_EXHAUSTED",
    unavailable="UNAVAILABLE ABORTED",  # the gRPC guide: "the client may retry at a higher level"
    server_error="UNKNOWN INTERNAL DATA_LOSS",
)

_AWS_CODES = coded(
    rate_limit="""
        Throttling ThrottlingException ThrottledException RequestThrottledException RequestThrottled
        TooManyRequestsException ProvisionedThroughputExceededException TransactionInProgressException
        RequestLimitExceeded BandwidthLimitExceeded PriorRequestNotComplete SlowDown EC2ThrottledException
        TooManyRequests ThrottlingError
        """,
    resource_exhausted="LimitExceededException LimitExceededFault ServiceQuotaExceededException",
    unavailable="""
        ServiceUnavailable ServiceUnavailableException ModelNotReadyException ResourceNotReadyException
        TransactionConflictException TransactionConflict ReplicatedWriteConflictException
        ConditionalRequestConflict OperationAborted DatabaseResumingException IDPCommunicationError
        BadGatewayException
        """,
    timeout="RequestTimeout RequestTimeoutException ModelTimeoutException StatementTimeoutException",
    server_error="""
        InternalError InternalFailure InternalServerError InternalServerException ModelErrorException
        ModelStreamErrorException ModelStreamError InternalStreamFailure DependencyFailedException
        """,
    auth="""
        AccessDenied AccessDeniedException UnauthorizedOperation UnrecognizedClientException ExpiredToken
        ExpiredTokenException InvalidClientTokenId InvalidAccessKeyId SignatureDoesNotMatch AuthFailure
        MissingAuthenticationToken NotAuthorizedException InvalidSignatureException
        """,
    not_found="NoSuchKey NoSuchBucket ResourceNotFoundException NotFoundException NoSuchEntity 404",
    conflict="""
        ConditionalCheckFailedException ConditionalCheckFailed ResourceInUseException ConflictException
        BucketAlreadyExists EntityAlreadyExists PreconditionFailed ResourceConflictException DuplicateItem
        TransactionCanceledException
        """,
    invalid="""
        ValidationException ValidationError InvalidParameterValue InvalidRequest MalformedQueryString
        ItemCollectionSizeLimitExceeded
        """,
)
# Event streams write their codes with a lower-case first letter: `throttlingException`.
AWS = {code.lower(): category for code, category in _AWS_CODES.items()}
_REPORTED = AWS | {code.lower(): category for code, category in GRPC.items()}

OVERFLOW_CODE = "context_length_exceeded"
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
says_spent: Callable[[str], bool] = _says(
    r"spend_limit|credit balance is too low|insufficient (?:account )?(?:balance|credits?)\b"
    r"|exceeded your current quota|(?:specified|monthly|weekly) .{0,20}usage limits?"
    r"|usage limits? (?:has been |was )?(?:reached|exceeded)",
)
"""Credit, or an allowance for days or months, is used up: a wait of minutes does not help."""
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
    r"|can't serialize access|write ?conflict",
)
"""A transaction was rolled back because another one won: the whole transaction can be retried."""


def says_overflow(text: str) -> bool:
    """Whether a text says that one request has more tokens than the model takes.

    "Too many tokens, please wait" is a rate limit: it counts the tokens of all requests.
    """
    match = _OVERFLOW.search(text)
    return match is not None and not (match["many"] and _SLOW_DOWN.search(text))


WAITING = frozenset({C.RATE_LIMIT, C.UNAVAILABLE})
"""Categories with messages that may give a wait: "try again in 6s"."""

STATUSES = coded(
    invalid="3* 4*",
    server_error="5*",
    auth="401 403 407",
    not_found="404 410",
    timeout="408 504",
    conflict="409 412 423",
    overflow="413",
    rate_limit="420 429",  # 420: "Enhance your calm"
    # 425 Too Early: the server did not process the request and asks for a retry; 449: Azure's "retry
    # with", two writes collided; 529: Anthropic is overloaded
    unavailable="425 449 502 503 529",
    cancelled="499",  # nginx's and Google's "the client went away"
)

_TOO_LARGE_FOR_LIMIT = Regex(r"request too large for", re.IGNORECASE)
_MAY_OVERFLOW = frozenset({400, 413, 422})
_MAY_BE_SPENT = frozenset({400, 402, 403, 429})
_MAY_BE_A_LOST_RACE = frozenset({400, 409})
_SHOULD_RETRY = ("x-should-retry", "stripe-should-retry")


def status_category(status: int) -> C | None:
    """The category of an HTTP status, None below 300 (no error)."""
    return category_of(STATUSES, status)


def status_of(error: object) -> int | None:
    """The HTTP status that an exception or response carries under one of the usual names, else None."""
    response = read(error, "response")
    own = ("status_code", "status", "http_status", "response_code", "code")  # response_code: python-gitlab
    candidates = [read(error, name) for name in own]
    candidates += [
        read(response, "status_code"),
        read(response, "status"),
        read(read(error, "meta"), "status"),
    ]
    return next((status for status in map(as_status, candidates) if status is not None), None)


def headers_of(error: object) -> dict[str, str]:
    """The headers of the answer, with lower-case names, wherever the SDK keeps them."""
    sources = (error, *(read(error, name) for name in ("response", "meta", "raw_response")))
    kept = (*(read(source, "headers") for source in sources), read(error, "litellm_response_headers"))
    found = (plain_headers(headers) for headers in kept)
    none: dict[str, str] = {}
    return next((headers for headers in found if headers), none)


def http_finding(error: object, now: float) -> Opinion | None:
    """The opinion on an exception or response by its HTTP status, codes and text, or None."""
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
    details |= wait_bounds(headers)
    text = f"{read_text(error, 4_000)} {body[:4_000]}"
    decided = _decided(codes, status, text) or _refused_for_now(codes, status, headers, text)
    if decided is None and status is not None and status_category(status) is not None:
        decided = _by_status(status, text)
    if decided is None:
        reported = provider_codes(None, objects)  # an application's own error may have such codes, too
        decided = next(
            ((found, code) for code in codes if (found := _category_in_stream(code, code in reported))), None
        )
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
    return Opinion(category, code, wait, details, retryable=_told_to_retry(headers, category))


def _category_in_stream(code: str, is_reported: bool) -> C | None:
    return STREAMED.get(code) or (_REPORTED.get(code.lower()) if is_reported else None)


def _by_status(status: int, text: str) -> tuple[C, str] | None:
    category = status_category(status)
    if status in _MAY_BE_A_LOST_RACE and says_lost_race(text):
        category = C.UNAVAILABLE
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
    if (
        used_up(headers)
        or "retry-after" in headers
        or not THROTTLED.isdisjoint(codes)
        or says_throttled(text)
    ):
        return C.RATE_LIMIT, str(status)
    return None


def _decided(codes: list[str], status: int | None, text: str) -> tuple[C, str] | None:
    """The category from the provider's code or words, if they are more exact than the status."""
    for code in codes:
        if says_spent(code):
            return C.RESOURCE_EXHAUSTED, code
        category = DECISIVE.get(code)
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
