"""Cloud SDKs: AWS error codes and gRPC statuses.

AWS's lists follow botocore's own retry handlers; the gRPC meanings follow grpc.io, "Status codes and their
use in gRPC".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from prefect_resilience.errors.classify.http import (
    OVERFLOW_CODE,
    http_finding,
    says_overflow,
    says_too_large,
    status_category,
)
from prefect_resilience.errors.classify.retry_after import (
    plain_headers,
    retry_after_seconds,
    retry_info_delay,
)
from prefect_resilience.errors.classify.shapes import as_code, as_dict, as_number, as_status, read, read_text
from prefect_resilience.errors.taxonomy import ErrorCategory as C
from prefect_resilience.errors.taxonomy import Finding

_AWS: dict[C, str] = {
    C.RATE_LIMIT: """
        Throttling ThrottlingException ThrottledException RequestThrottledException RequestThrottled
        TooManyRequestsException ProvisionedThroughputExceededException TransactionInProgressException
        RequestLimitExceeded BandwidthLimitExceeded PriorRequestNotComplete SlowDown EC2ThrottledException
        TooManyRequests ThrottlingError
        """,
    C.RESOURCE_EXHAUSTED: "LimitExceededException LimitExceededFault ServiceQuotaExceededException",
    C.UNAVAILABLE: """
        ServiceUnavailable ServiceUnavailableException ModelNotReadyException ResourceNotReadyException
        TransactionConflictException TransactionConflict ReplicatedWriteConflictException
        ConditionalRequestConflict OperationAborted DatabaseResumingException IDPCommunicationError
        """,
    C.TIMEOUT: "RequestTimeout RequestTimeoutException ModelTimeoutException StatementTimeoutException",
    C.SERVER_ERROR: """
        InternalError InternalFailure InternalServerError InternalServerException ModelErrorException
        ModelStreamErrorException
        """,
    C.AUTH: """
        AccessDenied AccessDeniedException UnauthorizedOperation UnrecognizedClientException ExpiredToken
        ExpiredTokenException InvalidClientTokenId InvalidAccessKeyId SignatureDoesNotMatch AuthFailure
        MissingAuthenticationToken NotAuthorizedException InvalidSignatureException
        """,
    C.NOT_FOUND: "NoSuchKey NoSuchBucket ResourceNotFoundException NotFoundException NoSuchEntity 404",
    C.CONFLICT: """
        ConditionalCheckFailedException ConditionalCheckFailed ResourceInUseException ConflictException
        BucketAlreadyExists EntityAlreadyExists PreconditionFailed ResourceConflictException
        DuplicateItem TransactionCanceledException
        """,
    C.INVALID: """
        ValidationException ValidationError InvalidParameterValue InvalidRequest MalformedQueryString
        ItemCollectionSizeLimitExceeded
        """,
}
# Event streams write their codes with a small first letter: `throttlingException`.
_AWS_CODES = {code.lower(): category for category, codes in _AWS.items() for code in codes.split()}

GRPC: dict[str, C] = {
    "CANCELLED": C.CANCELLED,
    "UNKNOWN": C.SERVER_ERROR,
    "INVALID_ARGUMENT": C.INVALID,
    "DEADLINE_EXCEEDED": C.TIMEOUT,
    "NOT_FOUND": C.NOT_FOUND,
    "ALREADY_EXISTS": C.CONFLICT,
    "PERMISSION_DENIED": C.AUTH,
    "RESOURCE_EXHAUSTED": C.RATE_LIMIT,
    "FAILED_PRECONDITION": C.CONFLICT,
    "ABORTED": C.UNAVAILABLE,  # the gRPC guide: "the client may retry at a higher level"
    "OUT_OF_RANGE": C.INVALID,
    "UNIMPLEMENTED": C.INVALID,
    "INTERNAL": C.SERVER_ERROR,
    "UNAVAILABLE": C.UNAVAILABLE,
    "DATA_LOSS": C.SERVER_ERROR,
    "UNAUTHENTICATED": C.AUTH,
}


def aws_finding(error: object, now: float) -> Finding | None:
    """botocore's ClientError: by the service's code, else by the HTTP status of the answer."""
    response = as_dict(read(error, "response"))
    code = as_code(as_dict(response.get("Error")).get("Code"))
    metadata = as_dict(response.get("ResponseMetadata"))
    status = as_status(metadata.get("HTTPStatusCode"))
    wait = retry_after_seconds(plain_headers(metadata.get("HTTPHeaders")), status=status, now=now)
    details: dict[str, Any] = {} if status is None else {"status": status}
    category = _aws_code(code)
    reasons = _cancellation_reasons(response)
    if reasons:
        # One reason that stays is enough: the transaction would be cancelled again.
        category = min(
            (_aws_code(reason) or C.CONFLICT for reason in reasons), key=lambda each: each.retryable
        )
        details["reasons"] = reasons
    # A throttle may talk of "too many tokens" too: only a code that blames the request can mean an overflow.
    if category in (None, C.INVALID) and says_overflow(read_text(error, 4_000)):
        return Finding(C.OVERFLOW, OVERFLOW_CODE, wait, details)
    category = category or (status_category(status) if status else None)
    return Finding(category, code or str(status), wait, details) if category else None


def _aws_code(code: str | None) -> C | None:
    return _AWS_CODES.get((code or "").lower())


def _cancellation_reasons(response: dict[Any, Any]) -> list[str]:
    """Why DynamoDB cancelled a transaction, item by item; "None" is said of the items that were fine."""
    listed = response.get("CancellationReasons")
    reasons = cast("list[object]", listed)[:100] if isinstance(listed, list) else []
    codes = (as_code(as_dict(reason).get("Code")) for reason in reasons)
    return [code for code in codes if code is not None and code != "None"]


def grpc_finding(error: object, now: float) -> Finding | None:
    """grpc.RpcError: by the status its `code()` returns."""
    name = _grpc_status(error)
    if name is None:
        return None
    too_big = _grpc_too_big(name, read_text(error, 4_000))
    if too_big is not None:
        return too_big
    trailing = _trailing_metadata(error)
    pushback = trailing.get("grpc-retry-pushback-ms")
    if pushback is not None and (as_number(pushback) or 0) < 0:
        return Finding(GRPC[name], name, retryable=False)  # gRFC A6: a negative pushback forbids retries
    return Finding(GRPC[name], name, _grpc_wait(error, trailing, now))


def _grpc_too_big(name: str, text: str) -> Finding | None:
    if name not in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"):
        return None
    if says_too_large(text):
        return Finding(C.OVERFLOW, "MESSAGE_TOO_LARGE", details={"resource": "message"})
    return Finding(C.OVERFLOW, OVERFLOW_CODE) if says_overflow(text) else None


def google_finding(error: object, now: float) -> Finding | None:
    """google-api-core's GoogleAPICallError: an HTTP status, and a gRPC status that is more exact."""
    found = http_finding(error, now)
    name = _enum_name(read(error, "grpc_status_code"))
    if name not in GRPC or (found is not None and found.category in _SAID_BY_GOOGLE):
        return found
    code = as_status(read(error, "code"))
    details = dict((found.details if found else None) or {}, grpc_status=name)
    too_big = _grpc_too_big(name, read_text(error, 4_000))
    if too_big is not None:
        return too_big._replace(details={**details, **(too_big.details or {})})
    return Finding(GRPC[name], str(code) if code else name, found.retry_after if found else None, details)


# What the body of an answer says is more exact than its gRPC status.
_SAID_BY_GOOGLE = (C.OVERFLOW, C.RATE_LIMIT, C.RESOURCE_EXHAUSTED)


def _grpc_status(error: object) -> str | None:
    code = read(error, "code")
    try:
        name = _enum_name(code() if callable(code) else code)
    except Exception:  # noqa: BLE001 - somebody else's method
        return None
    return name if name in GRPC else None


def _enum_name(value: object) -> str:
    name = read(value, "name")
    return name if isinstance(name, str) else ""


def _trailing_metadata(error: object) -> dict[str, str]:
    trailing = read(error, "trailing_metadata")
    try:
        pairs = trailing() if callable(trailing) else None
        return plain_headers(list(cast("Iterable[Any]", pairs)) if pairs else None)
    except Exception:  # noqa: BLE001 - somebody else's method
        return {}


def _grpc_wait(error: object, trailing: dict[str, str], now: float) -> float | None:
    """What a server says in its trailing metadata: the pushback, RetryInfo, or HTTP's header."""
    pushback = as_number(trailing.get("grpc-retry-pushback-ms"))
    if pushback is not None:
        return pushback / 1000
    status = trailing.get("grpc-status-details-bin", "").encode("latin-1", "replace")
    wait = retry_info_delay(status)
    return retry_after_seconds(trailing, status=None, now=now) if wait is None else wait
