"""HTTP, AWS and gRPC: categories from a status, a provider's own code and a body.

Everything is read by shape (`status_code`, `status`, `code`, `response`, `headers`, `body`). This works for
the exceptions and responses of any client, installed or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple, cast

from prefect_resilience.base.text import Regex
from prefect_resilience.errors.classify.retry_after import (
    PUSHBACK,
    is_used_up,
    plain_headers,
    retry_after_seconds,
    retry_info_delay,
    wait_bounds,
    wait_in_text,
    wait_of,
)
from prefect_resilience.errors.classify.shapes import (
    TEXT_LIMIT,
    as_code,
    as_dict,
    as_list,
    as_number,
    as_status,
    call,
    parse_json,
    read,
    read_text,
    value_at,
    values_at,
)
from prefect_resilience.errors.classify.table import codes_of, places_of, says, status_category, too_big
from prefect_resilience.errors.taxonomy import ErrorCategory as C
from prefect_resilience.errors.taxonomy import ErrorKind, Opinion, match_code


@cache
def codes_in_small(*tables: str) -> dict[str, C]:
    """The codes of tables in small letters, as event streams begin those of AWS."""
    return {code.lower(): category for table in tables for code, category in codes_of(table).items()}


_STATUSES = ("status_code", "status", "http_status", "http_status_code", "http_code")
_OWN_STATUSES = (*_STATUSES, "response_code", "statusCode", "code")
_HOLDERS = ["response", "resp", "response_info", "raw_response", "http_response", "meta"]
"""Attributes that hold the answer: of requests, httplib2, Box, Speakeasy's clients, Azure, Elastic."""
_BODIES = ["body", "data", "json_body", "details", "info", "content"]
"""Attributes that hold the body: of GitHub, Salesforce, Stripe, Google, Elastic."""
_TEXTS = ["_content", "_body", "body", "content", "raw_body", "text"]

WAITING = frozenset({C.RATE_LIMIT, C.UNAVAILABLE})
"""Categories with messages that may give a wait: "try again in 6s"."""


def _holders_of(error: object) -> list[object]:
    """The error itself, and the answers that it keeps."""
    return [error, *(answer for name in _HOLDERS if (answer := read(error, name)) is not None)]


def status_of(error: object) -> int | None:
    """The HTTP status that an exception or response carries under one of the usual names, else None."""
    for source in _holders_of(error):
        for name in _OWN_STATUSES if source is error else _STATUSES:
            value = read(source, name)
            if value is not None and (status := as_status(value)) is not None:
                return status
    return None


def headers_of(error: object) -> dict[str, str]:
    """The headers of the answer, with lower-case names, wherever the SDK keeps them."""
    holders = _holders_of(error)
    places = [read(holder, "headers") for holder in holders]
    places += [read(error, "http_headers"), read(error, "litellm_response_headers")]
    places += [holder for holder in holders if isinstance(holder, dict)]  # httplib2: resp["retry-after"]
    values = (plain_headers(place) for place in places if place is not None)
    return next(filter(None, values), dict[str, str]())


def _body_text(holders: list[object]) -> str:
    """The part of a response's body that is already in memory; reading more would be I/O."""
    for source in reversed(holders):
        plain = as_dict(read(source, "__dict__"))
        for content in map(plain.get, _TEXTS):
            if isinstance(content, bytes | str) and 0 < len(content) <= TEXT_LIMIT:
                return content if isinstance(content, str) else content.decode("utf-8", "replace")
    return ""


def _error_object(body: Any) -> dict[Any, Any]:
    """The object that describes the error: the body's `error`, the first of a list, or the body itself."""
    plain = as_dict(next(iter(as_list(body)), body))
    return as_dict(plain.get("error")) or plain


def _codes_at(block: str, sources: Iterable[object]) -> list[str]:
    """Codes that a provider put on its exception or into the body, the most exact first."""
    values = (value for source in sources for path in places_of(block) for value in values_at(source, path))
    codes = dict.fromkeys(map(as_code, values))
    return [code for code in codes if code is not None and as_status(code) is None]


class HttpAnswer(NamedTuple):
    """What an error or a response carries of a server's answer."""

    status: int | None
    headers: dict[str, str]
    codes: list[str]
    reported: list[str]
    """The codes in the body: the exception of an application may have such codes of its own."""
    infos: list[Any]
    """Details in Google's form: protobuf messages, or the JSON of them."""
    text: str

    @classmethod
    def of(cls, error: object) -> HttpAnswer | None:
        """None if it has neither a status nor a code."""
        status, holders = status_of(error), _holders_of(error)
        body = _body_text(holders)
        # Without a status, `data` and `details` may be business data, and are not read.
        names = _BODIES if status is not None else _BODIES[:1]
        bodies = [read(source, name) for source in holders for name in names] + [parse_json(body)]
        objects = [plain for content in bodies if content and (plain := _error_object(content))]
        reported = _codes_at("codes.body", objects)
        codes = [*dict.fromkeys((*_codes_at("codes.error", [error]), *reported))]
        if status is None and not codes:
            return None
        details = [value for source in (error, *objects) for value in values_at(source, "details")]
        infos = [info for value in details for info in as_list(value)]
        text = f"{read_text(error, 4_000)} {body[:4_000]}"
        return cls(status, headers_of(error), codes, reported, infos, text)


def http_finding(error: object, now: float) -> Opinion | None:
    """The opinion on an exception or response by its HTTP status, codes and text, or None."""
    answer = HttpAnswer.of(error)
    if answer is None:
        return None
    opinion = _by_code_or_words(answer) or _by_status(answer) or _in_a_stream(answer)
    if opinion is None:
        return None
    category, status, headers = opinion.category, answer.status, answer.headers
    details: dict[str, Any] = {} if status is None else {"status": status}
    if answer.codes:
        details["provider_code"] = answer.codes[0]
    limited = 429 if category is C.RATE_LIMIT else status
    wait = wait_of(error, headers, limited, now, answer.infos, answer.text if category in WAITING else "")
    # The server's own advice cannot make work retryable that is too big.
    advice = headers.get("x-should-retry", headers.get("stripe-should-retry", "")).lower()
    again = True if advice == "true" and category.kind is not ErrorKind.RESOURCE else None
    # With 501 and 505 the server cannot do it, and will not learn it.
    retryable = False if advice == "false" or status in (501, 505) else again
    return opinion._replace(retry_after=wait, details=details | wait_bounds(headers), retryable=retryable)


def _by_code_or_words(answer: HttpAnswer) -> Opinion | None:
    """The category from the provider's code or words, if they are more exact than the status."""
    status, text = answer.status, answer.text
    for code in answer.codes:
        category = C.RESOURCE_EXHAUSTED if says("spent", code) else codes_of("decisive").get(code)
        if category is not None and (status is None or status_category(status) is not category):
            return Opinion(category, code)
    streamed = status is None or status < 300  # the error came after the status was sent
    if (streamed or status in (400, 413, 422)) and (big := says("overflow", text)):
        return big
    may_be_spent = streamed or status in (400, 402, 403, 422, 429, 500, 503)
    if may_be_spent and says("spent", text) and wait_in_text(text) is None:
        return Opinion(C.RESOURCE_EXHAUSTED, "billing_error")
    return says("too_large", text) if status == 429 else None


def _by_status(answer: HttpAnswer) -> Opinion | None:
    status, headers, text = answer.status, answer.headers, answer.text
    category = None if status is None else status_category(status)
    if status == 403:  # by its headers, the provider's code or its words, it may be a rate limit
        throttled = not codes_of("throttled").keys().isdisjoint(answer.codes)
        if throttled or is_used_up(headers) or "retry-after" in headers or says("throttled", text):
            category = C.RATE_LIMIT
    if status in (400, 409) and says("race", text):
        category = C.UNAVAILABLE
    if status == 402 and says("unpaid", text):
        category = C.RESOURCE_EXHAUSTED
    return None if category is None else Opinion(category, str(status))


def _in_a_stream(answer: HttpAnswer) -> Opinion | None:
    """By a code that counts where no status gives the category."""
    for code in answer.codes:
        category = codes_of("streamed").get(code) or codes_of("throttled").get(code)
        if category is None and code in answer.reported:
            category = codes_in_small("grpc", "aws").get(code.lower())
        if category is not None:
            return Opinion(category, code)
    return None


# AWS, and the status codes of gRPC: grpc.io, "Status codes and their use in gRPC".

_EVENT_TYPE = Regex(r""":(?:exception-type|error-code)["']?\s?[:=,]\s?["']?(\w{1,80})""")


def aws_finding(error: object, now: float) -> Opinion | None:
    """botocore's ClientError: by the service's code, else by the HTTP status of the answer.

    Another client may raise the text of an exception in AWS's event stream, with its headers.
    """
    response, text = as_dict(read(error, "response")), read_text(error, 4_000)
    if not response:
        event = _EVENT_TYPE.search(text)
        return None if event is None else match_code(codes_in_small("aws"), event[1].lower())
    code = as_code(value_at(response, "Error.Code"))
    status = as_status(value_at(response, "ResponseMetadata.HTTPStatusCode"))
    headers = plain_headers(value_at(response, "ResponseMetadata.HTTPHeaders"))
    wait = retry_after_seconds(headers, status=status, now=now)
    details: dict[str, Any] = wait_bounds(headers) | ({} if status is None else {"status": status})
    category = codes_in_small("aws").get((code or "").lower())
    # Why DynamoDB cancelled a transaction: the code of each failed item. Other items have "None".
    causes = [as_code(value_at(item, "Code")) for item in as_list(value_at(response, "CancellationReasons"))]
    if reasons := [cause for cause in causes if cause is not None and cause != "None"]:
        # One permanent reason is enough: a retry of the transaction would be cancelled too.
        categories = [codes_in_small("aws").get(reason.lower(), C.CONFLICT) for reason in reasons]
        category = min(categories, key=lambda reason: reason.retryable)
        details["reasons"] = reasons
    # Throttling may also mention "too many tokens": only an `invalid` or unknown code may be an overflow.
    if category in (None, C.INVALID) and (big := says("overflow", text)):
        return big._replace(retry_after=wait, details=details)
    category = category or (status_category(status) if status else None)
    return Opinion(category, code or str(status), wait, details) if category else None


def rpc_finding(error: object, now: float) -> Opinion | None:
    """By a status of gRPC, an enum: of grpcio, grpclib, google-api-core, temporalio and clients like them."""
    places = (call(error, "code"), *(read(error, name) for name in ("code", "grpc_status_code", "status")))
    name = next((name for place in places if (name := _enum_name(place)) in codes_of("grpc")), None)
    if name is None:
        return None
    opinion = http_finding(error, now) if read(error, "grpc_status_code") is not None else None
    if opinion is not None and opinion.category in (C.OVERFLOW, C.RATE_LIMIT, C.RESOURCE_EXHAUSTED):
        return opinion  # the body of Google's answer is more exact than its gRPC status
    details = {**(opinion.details or {}), "grpc_status": name} if opinion else {}
    big = too_big(read_text(error, 4_000)) if name in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED") else None
    if big is not None:
        return big._replace(details=details)
    pairs = call(error, "trailing_metadata")
    trailing = plain_headers(list(cast("Iterable[Any]", pairs)) if isinstance(pairs, Iterable) else None)
    refused = (as_number(trailing.get(PUSHBACK)) or 0) < 0  # gRFC A6: no retry
    wait = opinion.retry_after if opinion else None if refused else _wait(trailing, now)
    code = as_status(read(error, "code")) if opinion else None
    retryable = False if refused else None
    return Opinion(codes_of("grpc")[name], str(code or name), wait, details, retryable=retryable)


def _enum_name(value: object) -> str:
    name = read(value, "name")
    return name if isinstance(name, str) and as_status(value) is None else ""  # not HTTPStatus.NOT_FOUND


def _wait(trailing: dict[str, str], now: float) -> float | None:
    """The wait in seconds from the trailing metadata: the pushback, HTTP's header, or RetryInfo."""
    wait = retry_after_seconds(trailing, status=None, now=now)
    status = trailing.get("grpc-status-details-bin", "").encode("latin-1", "replace")
    return retry_info_delay(status) if wait is None else wait
