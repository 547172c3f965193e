"""Cloud SDKs: AWS error codes and gRPC statuses.

AWS's lists follow botocore's own retry handlers; the gRPC meanings follow grpc.io, "Status codes and their
use in gRPC".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from .http import OVERFLOW_CODE, OVERFLOW_TEXT, http_finding, status_category
from .info import Finding
from .retry_after import plain_headers, retry_after_seconds
from .shapes import as_code, as_dict, as_number, as_status, read, read_text
from .taxonomy import ErrorCategory as C

_AWS: dict[C, str] = {
    C.RATE_LIMIT: """
        Throttling ThrottlingException ThrottledException RequestThrottledException RequestThrottled
        TooManyRequestsException ProvisionedThroughputExceededException TransactionInProgressException
        RequestLimitExceeded BandwidthLimitExceeded PriorRequestNotComplete SlowDown EC2ThrottledException
        """,
    C.RESOURCE_EXHAUSTED: "LimitExceededException LimitExceededFault ServiceQuotaExceededException",
    C.UNAVAILABLE: "ServiceUnavailable ServiceUnavailableException ModelNotReadyException",
    C.TIMEOUT: "RequestTimeout RequestTimeoutException ModelTimeoutException",
    C.SERVER_ERROR: """
        InternalError InternalFailure InternalServerError InternalServerException ModelErrorException
        """,
    C.AUTH: """
        AccessDenied AccessDeniedException UnauthorizedOperation UnrecognizedClientException ExpiredToken
        ExpiredTokenException InvalidClientTokenId InvalidAccessKeyId SignatureDoesNotMatch AuthFailure
        MissingAuthenticationToken NotAuthorizedException InvalidSignatureException
        """,
    C.NOT_FOUND: "NoSuchKey NoSuchBucket ResourceNotFoundException NotFoundException NoSuchEntity 404",
    C.CONFLICT: """
        ConditionalCheckFailedException ResourceInUseException ConflictException BucketAlreadyExists
        EntityAlreadyExists PreconditionFailed ResourceConflictException TransactionConflictException
        """,
    C.INVALID: """
        ValidationException ValidationError InvalidParameterValue InvalidRequest MalformedQueryString
        """,
}
_AWS_CODES = {code: category for category, codes in _AWS.items() for code in codes.split()}

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
    if OVERFLOW_TEXT.search(read_text(error, 4_000)):
        return Finding(C.OVERFLOW, OVERFLOW_CODE, wait, details)
    category = _AWS_CODES.get(code or "") or (status_category(status) if status else None)
    return Finding(category, code or str(status), wait, details) if category else None


def grpc_finding(error: object, now: float) -> Finding | None:
    """grpc.RpcError: by the status its `code()` returns."""
    name = _grpc_status(error)
    if name is None:
        return None
    if name in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED") and OVERFLOW_TEXT.search(read_text(error, 4_000)):
        return Finding(C.OVERFLOW, OVERFLOW_CODE)
    return Finding(GRPC[name], name, _grpc_wait(error, now))


def google_finding(error: object, now: float) -> Finding | None:
    """google-api-core's GoogleAPICallError: an HTTP status, and a gRPC status that is more exact."""
    found = http_finding(error, now)
    name = _enum_name(read(error, "grpc_status_code"))
    if found is not None and found.category is C.OVERFLOW:
        return found
    if name not in GRPC:
        return found
    code = as_status(read(error, "code"))
    details = dict((found.details if found else None) or {}, grpc_status=name)
    return Finding(GRPC[name], str(code) if code else name, _google_wait(error, found), details)


def _google_wait(error: object, found: Finding | None) -> float | None:
    """The wait of the headers, else that of a google.rpc.RetryInfo among the error's details."""
    if found is not None and found.retry_after is not None:
        return found.retry_after
    details = read(error, "details")
    for detail in cast("list[object]", details) if isinstance(details, list | tuple) else ():
        delay = read(detail, "retry_delay")
        seconds = as_number(read(delay, "seconds"))
        if seconds is not None:
            return max(0.0, seconds + (as_number(read(delay, "nanos")) or 0.0) / 1e9)
    return None


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


def _grpc_wait(error: object, now: float) -> float | None:
    """What a server says in its trailing metadata."""
    trailing = read(error, "trailing_metadata")
    try:
        pairs = trailing() if callable(trailing) else None
    except Exception:  # noqa: BLE001 - somebody else's method
        return None
    headers = plain_headers(list(cast("Iterable[Any]", pairs)) if pairs else None)
    pushback = as_number(headers.get("grpc-retry-pushback-ms"))
    if pushback is not None and pushback >= 0:
        return pushback / 1000
    return retry_after_seconds(headers, status=None, now=now)
