"""What the codes and the words of providers mean, where they say more than the HTTP status beside them."""

from __future__ import annotations

import re

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.taxonomy import ErrorCategory as C

DECISIVE: dict[str, C] = {
    "context_length_exceeded": C.OVERFLOW,
    "string_above_max_length": C.OVERFLOW,
    "request_too_large": C.OVERFLOW,
    "insufficient_quota": C.RESOURCE_EXHAUSTED,
    "billing_hard_limit_reached": C.RESOURCE_EXHAUSTED,
    "billing_error": C.RESOURCE_EXHAUSTED,
    "usage_limit_reached": C.RESOURCE_EXHAUSTED,
    "dailyLimitExceeded": C.RESOURCE_EXHAUSTED,  # Google: per day
    "REQUEST_LIMIT_EXCEEDED": C.RESOURCE_EXHAUSTED,  # Salesforce: calls in 24 hours
    "overloaded_error": C.UNAVAILABLE,
    "UNABLE_TO_LOCK_ROW": C.UNAVAILABLE,  # Salesforce: somebody else holds the row
}
"""A provider's own code that decides whatever the status is."""

THROTTLED = frozenset(
    {
        *("rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded", "jobRateLimitExceeded"),
        *("concurrentLimitExceeded", "RATE_LIMIT_EXCEEDED", "rate_limit_exceeded", "rate_limited"),
        *("ratelimited", "too_many_requests", "TooManyRequests", "OVER_QUERY_LIMIT"),
        *("RATE_LIMITED", "RATELIMITED", "THROTTLED", "TOO_MANY_REQUESTS"),
    }
)
"""Codes that make a 403 a rate limit."""

STREAMED: dict[str, C] = {
    **dict.fromkeys(THROTTLED, C.RATE_LIMIT),
    "rate_limit_error": C.RATE_LIMIT,
    "throttling_error": C.RATE_LIMIT,
    "slow_down": C.RATE_LIMIT,
    "overloaded": C.UNAVAILABLE,
    "engine_overloaded": C.UNAVAILABLE,
    "server_is_overloaded": C.UNAVAILABLE,
    "service_unavailable": C.UNAVAILABLE,
    "server_error": C.SERVER_ERROR,
    "internal_server_error": C.SERVER_ERROR,
    "api_error": C.SERVER_ERROR,
    "timeout_error": C.TIMEOUT,
    "authentication_error": C.AUTH,
    "invalid_api_key": C.AUTH,
    "permission_error": C.AUTH,
    "not_found_error": C.NOT_FOUND,
    "model_not_found": C.NOT_FOUND,
    "invalid_request_error": C.INVALID,
    # Slack answers 200 to everything
    **dict.fromkeys(("invalid_auth", "not_authed", "token_expired", "token_revoked"), C.AUTH),
    **dict.fromkeys(("account_inactive", "missing_scope", "not_allowed_token_type"), C.AUTH),
    **dict.fromkeys(("channel_not_found", "user_not_found"), C.NOT_FOUND),
    **dict.fromkeys(("internal_error", "fatal_error"), C.SERVER_ERROR),
    "request_timeout": C.TIMEOUT,
    # GraphQL servers, by the codes of Apollo
    **dict.fromkeys(("UNAUTHENTICATED", "FORBIDDEN", "UNAUTHORIZED", "ACCESS_DENIED"), C.AUTH),
    **dict.fromkeys(("BAD_USER_INPUT", "GRAPHQL_VALIDATION_FAILED", "GRAPHQL_PARSE_FAILED"), C.INVALID),
    **dict.fromkeys(("INTERNAL_SERVER_ERROR", "INTERNAL"), C.SERVER_ERROR),
    "NOT_FOUND": C.NOT_FOUND,
    "SERVICE_UNAVAILABLE": C.UNAVAILABLE,
}
"""Codes that count only where no status says it, such as an error event in the middle of a stream."""

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
_MESSAGE_TOO_LARGE = Regex(r"(?:received|sent) message larger than max|message size .{0,60}larger than")
_SPEND_LIMIT = Regex(
    r"spend_limit|credit balance is too low|insufficient (?:account )?(?:balance|credits?)\b"
    r"|exceeded your current quota|(?:specified|monthly|weekly) .{0,20}usage limits?"
    r"|usage limits? (?:has been |was )?(?:reached|exceeded)",
    re.IGNORECASE,
)
_THROTTLE_TEXT = Regex(
    r"rate limit (?:exceeded|reached)|secondary rate limit|abuse detection|too many requests"
    r"|request was throttled",
    re.IGNORECASE,
)
_LOST_RACE = Regex(
    r"could not serialize access|serialization failure|deadlock (?:found|detected|victim)|was deadlocked"
    r"|chosen as the deadlock victim|due to concurrent (?:update|delete|dml|transaction)"
    r"|concurrent (?:append|delete|transaction|write|modification) ?exception|DELTA_CONCURRENT"
    r"|number of waiters for this lock exceeds|lock wait timeout exceeded|restart transaction"
    r"|can't serialize access|write ?conflict",
    re.IGNORECASE,
)


def says_overflow(text: str) -> bool:
    """Whether a text says that one request has more tokens than the model takes.

    "Too many tokens, please wait" is a throttle: it counts the tokens of all requests.
    """
    match = _OVERFLOW.search(text)
    return match is not None and not (match["many"] and _SLOW_DOWN.search(text))


def says_too_large(text: str) -> bool:
    """gRPC's refusal of a message over the size limit of one side."""
    return _MESSAGE_TOO_LARGE.search(text.lower()) is not None


def says_spent(text: str) -> bool:
    """Whether money or an allowance of days or months is used up, which no wait of minutes brings back."""
    return _SPEND_LIMIT.search(text) is not None


def says_throttled(text: str) -> bool:
    """Whether a refusal is a rate limit by its words."""
    return _THROTTLE_TEXT.search(text) is not None


def says_lost_race(text: str) -> bool:
    """Whether a transaction was rolled back because another one won: it may be tried again as a whole."""
    return _LOST_RACE.search(text) is not None
