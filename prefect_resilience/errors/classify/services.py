"""Cloud SDKs and services with numbers, codes or replies of their own.

AWS's lists follow botocore's own retry handlers; the gRPC meanings follow grpc.io, "Status codes and their
use in gRPC".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.classify.http import (
    AWS,
    GRPC,
    OVERFLOW_CODE,
    STATUSES,
    http_finding,
    says_overflow,
    says_too_large,
    status_category,
)
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
    first_argument,
    first_of,
    read,
    read_text,
)
from prefect_resilience.errors.taxonomy import ErrorCategory as C
from prefect_resilience.errors.taxonomy import (
    Look,
    Opinion,
    by_attribute,
    by_pattern,
    by_words,
    coded,
    found_by_code,
)


def aws_finding(error: object, now: float) -> Opinion | None:
    """botocore's ClientError: by the service's code, else by the HTTP status of the answer."""
    response = as_dict(read(error, "response"))
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
    return AWS.get((code or "").lower())


_EVENT_TYPE = Regex(r""":(?:exception-type|error-code)["']?\s?[:=,]\s?["']?(\w{1,80})""")


def aws_event(error: object, now: float) -> Opinion | None:
    """A client that raises the text of an exception in AWS's event stream, with its headers."""
    event = _EVENT_TYPE.search(read_text(error, 4_000))
    return None if event is None else found_by_code(AWS, event[1].lower())


def _cancellation_reasons(response: dict[Any, Any]) -> list[str]:
    """Why DynamoDB cancelled a transaction: the code of each failed item. Other items have "None"."""
    listed = response.get("CancellationReasons")
    reasons = cast("list[object]", listed)[:100] if isinstance(listed, list) else []
    codes = (as_code(as_dict(reason).get("Code")) for reason in reasons)
    return [code for code in codes if code is not None and code != "None"]


def grpc_finding(error: object, now: float) -> Opinion | None:
    """grpc.RpcError: by the status its `code()` returns."""
    name = _grpc_status(error)
    if name is None:
        return None
    too_big = _grpc_too_big(name, read_text(error, 4_000))
    if too_big is not None:
        return too_big
    pairs = called(error, "trailing_metadata")
    trailing = plain_headers(list(cast("Iterable[Any]", pairs)) if isinstance(pairs, Iterable) else None)
    pushback = trailing.get("grpc-retry-pushback-ms")
    if pushback is not None and (as_number(pushback) or 0) < 0:
        return Opinion(GRPC[name], name, retryable=False)  # gRFC A6: a negative pushback forbids retries
    return Opinion(GRPC[name], name, _grpc_wait(error, trailing, now))


def _grpc_too_big(name: str, text: str) -> Opinion | None:
    if name not in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"):
        return None
    if says_too_large(text):
        return Opinion(C.OVERFLOW, "MESSAGE_TOO_LARGE", details={"resource": "message"})
    return Opinion(C.OVERFLOW, OVERFLOW_CODE) if says_overflow(text) else None


def google_finding(error: object, now: float) -> Opinion | None:
    """google-api-core's GoogleAPICallError: by its gRPC status, which is more exact than its HTTP status."""
    found = http_finding(error, now)
    name = _enum_name(read(error, "grpc_status_code"))
    if name not in GRPC or (found is not None and found.category in _SAID_BY_GOOGLE):
        return found
    code = as_status(read(error, "code"))
    details = dict((found.details if found else None) or {}, grpc_status=name)
    too_big = _grpc_too_big(name, read_text(error, 4_000))
    if too_big is not None:
        return too_big._replace(details={**details, **(too_big.details or {})})
    return Opinion(GRPC[name], str(code) if code else name, found.retry_after if found else None, details)


# For these categories the body of the answer is more exact than its gRPC status.
_SAID_BY_GOOGLE = (C.OVERFLOW, C.RATE_LIMIT, C.RESOURCE_EXHAUSTED)


def _grpc_status(error: object) -> str | None:
    name = _enum_name(called(error, "code") or read(error, "code"))
    return name if name in GRPC else None


def _enum_name(value: object) -> str:
    name = read(value, "name")
    return name if isinstance(name, str) else ""


def _grpc_wait(error: object, trailing: dict[str, str], now: float) -> float | None:
    """The wait in seconds from the trailing metadata: the pushback, RetryInfo, or HTTP's header."""
    pushback = as_number(trailing.get("grpc-retry-pushback-ms"))
    if pushback is not None:
        return wait_of_value(pushback / 1000, now)
    status = trailing.get("grpc-status-details-bin", "").encode("latin-1", "replace")
    wait = retry_info_delay(status)
    return retry_after_seconds(trailing, status=None, now=now) if wait is None else wait


neo4j: Look = by_attribute(
    "code",
    rate_limit="Neo.ClientError.Security.AuthenticationRateLimit*",
    auth="Neo.ClientError.Security.*",
    conflict="Neo.ClientError.Schema.Constraint*",
    not_found="Neo.ClientError.Database.DatabaseNotFound*",
    timeout="Neo.ClientError.Transaction.TransactionTimedOut*",
    invalid="Neo.ClientError.*",
    unavailable="""Neo.ClientError.Cluster.NotALeader* Neo.ClientError.General.ForbiddenOnReadOnlyDatabase*
        Neo.TransientError.*""",
    server_error="Neo.DatabaseError.*",
)
"""Status codes of Neo4j: Neo.<classification>.<category>.<title>."""

# Trino's StandardErrorCode; other codes are classified by their type.
_TRINO = coded(
    auth="PERMISSION_DENIED INVALID_CREDENTIALS",
    rate_limit="QUERY_QUEUE_FULL EXCEEDED_QUEUE_LIMIT",
    timeout="EXCEEDED_TIME_LIMIT ABANDONED_QUERY",
    unavailable="""SERVER_STARTING_UP SERVER_SHUTTING_DOWN NO_NODES_AVAILABLE CLUSTER_OUT_OF_MEMORY
        TRANSACTION_CONFLICT PAGE_TRANSPORT_TIMEOUT TOO_MANY_REQUESTS_FAILED""",
    not_found="TABLE_NOT_FOUND CATALOG_NOT_FOUND SCHEMA_NOT_FOUND",
    network="REMOTE_HOST_GONE PAGE_TRANSPORT_ERROR REMOTE_TASK_ERROR",
    cancelled="USER_CANCELED",
    conflict="ALREADY_EXISTS",
)
_TRINO_TYPES = coded(
    invalid="USER_ERROR",
    server_error="INTERNAL_ERROR",
    resource_exhausted="INSUFFICIENT_RESOURCES",
    unavailable="EXTERNAL",
)


def trino_finding(error: object, now: float) -> Opinion | None:
    """A failed query of Trino, by the error's name, else by its type."""
    name = read(error, "error_name")
    by_type = found_by_code(_TRINO_TYPES, read(error, "error_type"))
    return found_by_code(_TRINO, name) or (
        by_type and by_type._replace(code=name if isinstance(name, str) else None)
    )


def trino_http_finding(error: object, now: float) -> Opinion | None:
    """An HTTP error of the coordinator: the status is in the text."""
    return found_by_code(STATUSES, *re.findall(r"\berror (\d{3})\b", read_text(error, 500))[:1])


# ClickHouse's ErrorCodes.cpp.
_CLICKHOUSE = coded(
    network="3 32 95 96 101 102 198 210 279 1000",
    timeout="159 160 209",
    rate_limit="201 202",
    resource_exhausted="241 243",
    unavailable="164 225 242 252 265 285 319 999",
    auth="192 193 194 195 497 516",
    conflict="57 82",
    not_found="60 81",
    invalid="6 27 36 43 46 47 53 62 70",
    cancelled="394",
)


def clickhouse_finding(error: object, now: float) -> Opinion | None:
    """By the number; clickhouse-connect has it only in the text."""
    told = re.findall(r"(?i)\bcode: (\d{1,4})\b", read_text(error, 2_000))
    return found_by_code(_CLICKHOUSE, read(error, "code"), *told[:1])


ftp: Look = by_pattern(
    r"\A\s*(\d{3})\b",
    network="425 426",
    auth="430 530 532",
    resource_exhausted="452 552",
    not_found="550",
    unavailable="4*",
    invalid="5*",
)
"""RFC 959: 4yz is transient, 5yz is permanent."""

mailbox: list[Look | Opinion] = [
    by_pattern(
        r"\[([A-Z/-]+)[^\]]*\]",
        auth="AUTHENTICATIONFAILED AUTHORIZATIONFAILED EXPIRED NOPERM PRIVACYREQUIRED AUTH",
        unavailable="UNAVAILABLE INUSE IN-USE SYS/TEMP SERVERBUG",
        rate_limit="LIMIT LOGIN-DELAY THROTTLED",
        not_found="NONEXISTENT TRYCREATE",
        conflict="ALREADYEXISTS",
        resource_exhausted="OVERQUOTA",
    ),
    by_words(r"rate_limit - too many (?:simultaneous |concurrent )?(?:connections|logins)"),
]
"""An error of an IMAP or POP3 server, by its response code in brackets: RFC 5530, RFC 3206."""

ldap_bind: Look = by_words(r"""
    auth        - invalidCredentials\Z
    unavailable - (?:busy|unavailable)\Z
""")
"""An automatic bind of ldap3: the result is only in the text."""

asyncpg_client: Look = by_words("network NETWORK_ERROR connection (?:is|was|has been) closed|pool is clos")
"""A mistake in using asyncpg, unless the connection or the pool was closed."""

ssh: Look = by_words("timeout TIMEOUT timeout\nnetwork NETWORK_ERROR .|\\Z")
"""paramiko's SSHException: only the text distinguishes a timeout from a lost connection."""

amqp: Look = by_attribute(
    "reply_code",
    overflow="311",
    not_found="312 404",
    network="320",  # an operator closed the connection, or the broker is going down
    auth="403",
    conflict="405 406",
    unavailable="506",
    server_error="541",
    invalid="3* 4* 5*",  # a mistake of the client
)
"""A channel or connection that the broker closed: AMQP 0-9-1, "Reply codes"."""

# Names with a leading `_` are librdkafka's own codes. Other codes are `unavailable` if they are retriable.
_KAFKA = coded(
    network="_TRANSPORT _ALL_BROKERS_DOWN _RESOLVE",
    timeout="_TIMED_OUT _MSG_TIMED_OUT _TIMED_OUT_QUEUE REQUEST_TIMED_OUT",
    unavailable="_QUEUE_FULL UNKNOWN_TOPIC_OR_PART",
    auth="""_AUTHENTICATION SASL_AUTHENTICATION_FAILED TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED
        CLUSTER_AUTHORIZATION_FAILED""",
    rate_limit="THROTTLING_QUOTA_EXCEEDED",
    overflow="MSG_SIZE_TOO_LARGE",
    not_found="_UNKNOWN_TOPIC",
)


def kafka_finding(error: object, now: float) -> Opinion | None:
    """confluent_kafka's KafkaException, by the KafkaError in it; kafka-python's, by its `retriable`."""
    inner = first_argument(error)
    name = called(inner, "name")
    retriable = read(error, "retriable") is True or called(inner, "retriable") is True
    passing = Opinion(C.UNAVAILABLE, name if isinstance(name, str) else None) if retriable else None
    return found_by_code(_KAFKA, name) or passing


def smtp_finding(error: object, now: float) -> Opinion | None:
    """SMTP replies, RFC 5321: 4yz is transient (greylisting, a busy server), 5yz is permanent.

    If several recipients were rejected, the worst reply counts: permanent before transient.
    """
    replies = list(_smtp_replies(error))
    if not replies:
        return None
    worst = max(replies)
    if worst < 500:
        return Opinion(C.UNAVAILABLE, str(worst))
    refused = worst in _SMTP_AUTH or "authentication" in type(error).__name__.lower()
    return Opinion(C.AUTH if refused else C.INVALID, str(worst))


_SMTP_AUTH = frozenset({530, 534, 535, 538})


def _smtp_replies(error: object) -> list[int]:
    own = as_number(read(error, "smtp_code"))
    own = as_number(read(error, "code")) if own is None else own
    if own is not None:
        return [int(own)]
    recipients = read(error, "recipients")
    if isinstance(recipients, Mapping):  # smtplib: {address: (code, text)}
        found = [as_number(first_of(reply)) for reply in cast("Mapping[Any, object]", recipients).values()]
    elif isinstance(recipients, list | tuple):  # aiosmtplib: exceptions
        found = [as_number(read(refused, "code")) for refused in cast("list[object]", recipients)]
    else:
        found = []
    return [int(code) for code in found if code is not None]
