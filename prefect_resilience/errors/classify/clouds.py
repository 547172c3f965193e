"""AWS, and the status codes of gRPC: grpc.io, "Status codes and their use in gRPC"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.classify.http import aws_codes, http_finding
from prefect_resilience.errors.classify.retry_after import (
    plain_headers,
    retry_after_seconds,
    retry_info_delay,
    wait_bounds,
    wait_of_value,
)
from prefect_resilience.errors.classify.shapes import (
    as_code,
    as_dict,
    as_number,
    as_status,
    called,
    read,
    read_text,
)
from prefect_resilience.errors.classify.table import codes_of
from prefect_resilience.errors.classify.texts import OVERFLOW_CODE, says_overflow, status_category, too_big
from prefect_resilience.errors.taxonomy import ErrorCategory as C
from prefect_resilience.errors.taxonomy import Opinion, found_by_code

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
