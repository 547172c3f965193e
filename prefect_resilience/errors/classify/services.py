"""Services with numbers, codes or replies of their own: Neo4j, Trino, ClickHouse, FTP, IMAP, POP3, LDAP."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from prefect_resilience.errors.classify.http import status_category
from prefect_resilience.errors.classify.names import CATEGORY_CODES, NETWORK_ERROR, TIMEOUT
from prefect_resilience.errors.classify.shapes import as_number, read, read_text
from prefect_resilience.errors.taxonomy import ErrorCategory as C
from prefect_resilience.errors.taxonomy import Finding

# Status codes of Neo4j, the nearest first: Neo.<classification>.<category>.<title>.
_NEO4J: tuple[tuple[str, C], ...] = (
    ("Neo.ClientError.Security.AuthenticationRateLimit", C.RATE_LIMIT),
    ("Neo.ClientError.Security.", C.AUTH),
    ("Neo.ClientError.Schema.Constraint", C.CONFLICT),
    ("Neo.ClientError.Cluster.NotALeader", C.UNAVAILABLE),
    ("Neo.ClientError.General.ForbiddenOnReadOnlyDatabase", C.UNAVAILABLE),
    ("Neo.ClientError.Database.DatabaseNotFound", C.NOT_FOUND),
    ("Neo.ClientError.Transaction.TransactionTimedOut", C.TIMEOUT),
    ("Neo.ClientError.", C.INVALID),
    ("Neo.TransientError.", C.UNAVAILABLE),
    ("Neo.DatabaseError.", C.SERVER_ERROR),
)

# Trino's StandardErrorCode; what is missing is judged by its type.
_TRINO: dict[str, C] = {
    **dict.fromkeys(("PERMISSION_DENIED", "INVALID_CREDENTIALS"), C.AUTH),
    **dict.fromkeys(("QUERY_QUEUE_FULL", "EXCEEDED_QUEUE_LIMIT"), C.RATE_LIMIT),
    **dict.fromkeys(("EXCEEDED_TIME_LIMIT", "ABANDONED_QUERY"), C.TIMEOUT),
    **dict.fromkeys(("SERVER_STARTING_UP", "SERVER_SHUTTING_DOWN", "NO_NODES_AVAILABLE"), C.UNAVAILABLE),
    **dict.fromkeys(("CLUSTER_OUT_OF_MEMORY", "TRANSACTION_CONFLICT"), C.UNAVAILABLE),
    **dict.fromkeys(("TABLE_NOT_FOUND", "CATALOG_NOT_FOUND", "SCHEMA_NOT_FOUND"), C.NOT_FOUND),
    **dict.fromkeys(("REMOTE_HOST_GONE", "PAGE_TRANSPORT_ERROR", "REMOTE_TASK_ERROR"), C.NETWORK),
    **dict.fromkeys(("PAGE_TRANSPORT_TIMEOUT", "TOO_MANY_REQUESTS_FAILED"), C.UNAVAILABLE),
    "USER_CANCELED": C.CANCELLED,
    "ALREADY_EXISTS": C.CONFLICT,
}
_TRINO_TYPES: dict[str, C] = {
    "USER_ERROR": C.INVALID,
    "INTERNAL_ERROR": C.SERVER_ERROR,
    "INSUFFICIENT_RESOURCES": C.RESOURCE_EXHAUSTED,
    "EXTERNAL": C.UNAVAILABLE,
}

# ClickHouse's ErrorCodes.cpp.
_CLICKHOUSE: dict[int, C] = {
    **dict.fromkeys((3, 32, 95, 96, 101, 102, 198, 210, 279, 1000), C.NETWORK),
    **dict.fromkeys((159, 160, 209), C.TIMEOUT),
    **dict.fromkeys((201, 202), C.RATE_LIMIT),
    **dict.fromkeys((241, 243), C.RESOURCE_EXHAUSTED),
    **dict.fromkeys((164, 225, 242, 252, 265, 285, 319, 999), C.UNAVAILABLE),
    **dict.fromkeys((192, 193, 194, 195, 497, 516), C.AUTH),
    **dict.fromkeys((57, 82), C.CONFLICT),
    **dict.fromkeys((60, 81), C.NOT_FOUND),
    **dict.fromkeys((6, 27, 36, 43, 46, 47, 53, 62, 70), C.INVALID),
    394: C.CANCELLED,
}
_CLICKHOUSE_CODE = re.compile(r"\bcode: (\d{1,4})\b", re.IGNORECASE)

# RFC 959; what is missing is judged by its first digit.
_FTP: dict[int, C] = {
    **dict.fromkeys((425, 426), C.NETWORK),
    **dict.fromkeys((430, 530, 532), C.AUTH),
    **dict.fromkeys((452, 552), C.RESOURCE_EXHAUSTED),
    550: C.NOT_FOUND,
}
_REPLY = re.compile(r"\s*(\d{3})\b")

# RFC 5530 for IMAP, RFC 3206 for POP3.
_RESPONSE_CODES: dict[str, C] = {
    **dict.fromkeys(("AUTHENTICATIONFAILED", "AUTHORIZATIONFAILED", "EXPIRED", "NOPERM"), C.AUTH),
    **dict.fromkeys(("PRIVACYREQUIRED", "AUTH"), C.AUTH),
    **dict.fromkeys(("UNAVAILABLE", "INUSE", "IN-USE", "SYS/TEMP", "SERVERBUG"), C.UNAVAILABLE),
    **dict.fromkeys(("LIMIT", "LOGIN-DELAY", "THROTTLED"), C.RATE_LIMIT),
    **dict.fromkeys(("NONEXISTENT", "TRYCREATE"), C.NOT_FOUND),
    "ALREADYEXISTS": C.CONFLICT,
    "OVERQUOTA": C.RESOURCE_EXHAUSTED,
}
_BRACKETED = re.compile(r"\[([A-Z/-]+)[^\]]*\]")
_MANY_CONNECTIONS = re.compile(
    r"too many (?:simultaneous |concurrent )?(?:connections|logins)", re.IGNORECASE
)


def neo4j_finding(error: object, now: float) -> Finding | None:
    """An error of the Neo4j server, by its status code."""
    code = read(error, "code")
    if not isinstance(code, str):
        return None
    category = next((category for prefix, category in _NEO4J if code.startswith(prefix)), None)
    return _found(category, code)


def trino_finding(error: object, now: float) -> Finding | None:
    """A query that Trino gave up, by the error's name, else by its type."""
    name, kind = read(error, "error_name"), read(error, "error_type")
    category = _TRINO.get(name) if isinstance(name, str) else None
    if category is None and isinstance(kind, str):
        category = _TRINO_TYPES.get(kind)
    return _found(category, name)


def asyncpg_client_finding(error: object, now: float) -> Finding | None:
    """A mistake in using asyncpg, unless it is a connection that somebody has closed."""
    closed = re.search(r"connection (?:is|was|has been) closed|pool is clos", read_text(error, 500))
    return _found(C.NETWORK, None) if closed else None


def trino_http_finding(error: object, now: float) -> Finding | None:
    """An answer of the coordinator that is no result: the status stands in the text."""
    status = re.search(r"\berror (\d{3})\b", read_text(error, 500))
    return None if status is None else _found(status_category(int(status[1])), status[1])


def clickhouse_finding(error: object, now: float) -> Finding | None:
    """An error of ClickHouse, by its number; clickhouse-connect has it in the text alone."""
    number = as_number(read(error, "code"))
    if number is None:
        match = _CLICKHOUSE_CODE.search(read_text(error, 2_000))
        number = None if match is None else int(match[1])
    return None if number is None else _found(_CLICKHOUSE.get(int(number)), str(int(number)))


def ftp_finding(error: object, now: float) -> Finding | None:
    """An FTP reply: 4yz passes, 5yz stays."""
    match = _REPLY.match(read_text(error, 200))
    if match is None:
        return None
    code = int(match[1])
    passing = {4: C.UNAVAILABLE, 5: C.INVALID}
    return _found(_FTP.get(code) or passing.get(code // 100), match[1])


def mailbox_finding(error: object, now: float) -> Finding | None:
    """A refusal of an IMAP or POP3 server, by its response code in brackets."""
    text = read_text(error, 1_000)
    codes = (found for found in _BRACKETED.findall(text) if found in _RESPONSE_CODES)
    code = next(codes, None)
    if code is not None:
        return _found(_RESPONSE_CODES[code], code)
    return Finding(C.RATE_LIMIT) if _MANY_CONNECTIONS.search(text) else None


def ldap_bind_finding(error: object, now: float) -> Finding | None:
    """A bind that ldap3 made by itself, which has the result in its text alone."""
    text = read_text(error, 500)
    named: Mapping[str, C] = {
        "invalidCredentials": C.AUTH,
        "busy": C.UNAVAILABLE,
        "unavailable": C.UNAVAILABLE,
    }
    return next((Finding(category) for word, category in named.items() if text.endswith(word)), None)


def _found(category: C | None, code: object) -> Finding | None:
    if category is None:
        return None
    return Finding(category, CATEGORY_CODES.get(category) or (code if isinstance(code, str) else None))


# AMQP 0-9-1, "Reply codes". What is missing here is a mistake of the client.
_AMQP: dict[int, C] = {
    311: C.OVERFLOW,
    312: C.NOT_FOUND,
    320: C.NETWORK,  # an operator closed the connection, or the broker is going down
    403: C.AUTH,
    404: C.NOT_FOUND,
    405: C.CONFLICT,
    406: C.CONFLICT,
    506: C.UNAVAILABLE,
    541: C.SERVER_ERROR,
}

# librdkafka's codes below zero are its own; only those that it does not call retriable are missing trouble.
_KAFKA: dict[str, C] = {
    "_TRANSPORT": C.NETWORK,
    "_ALL_BROKERS_DOWN": C.NETWORK,
    "_RESOLVE": C.NETWORK,
    "_TIMED_OUT": C.TIMEOUT,
    "_MSG_TIMED_OUT": C.TIMEOUT,
    "_TIMED_OUT_QUEUE": C.TIMEOUT,
    "REQUEST_TIMED_OUT": C.TIMEOUT,
    "_QUEUE_FULL": C.UNAVAILABLE,
    "_AUTHENTICATION": C.AUTH,
    "SASL_AUTHENTICATION_FAILED": C.AUTH,
    "TOPIC_AUTHORIZATION_FAILED": C.AUTH,
    "GROUP_AUTHORIZATION_FAILED": C.AUTH,
    "CLUSTER_AUTHORIZATION_FAILED": C.AUTH,
    "THROTTLING_QUOTA_EXCEEDED": C.RATE_LIMIT,
    "MSG_SIZE_TOO_LARGE": C.OVERFLOW,
    "UNKNOWN_TOPIC_OR_PART": C.UNAVAILABLE,
    "_UNKNOWN_TOPIC": C.NOT_FOUND,
}


def amqp_finding(error: object, now: float) -> Finding | None:
    """A channel or connection that the broker closed, by the reply code."""
    number = as_number(read(error, "reply_code"))
    if number is None or int(number) == 200:
        return None
    category = _AMQP.get(int(number), C.INVALID)
    return Finding(category, CATEGORY_CODES.get(category) or str(int(number)))


def kafka_finding(error: object, now: float) -> Finding | None:
    """confluent_kafka's KafkaException, by the KafkaError in it; kafka-python's, by its `retriable`."""
    args = read(error, "args")
    inner: object = cast("tuple[object, ...]", args)[0] if isinstance(args, tuple) and args else None
    name = _called(inner, "name")
    category = _KAFKA.get(name) if isinstance(name, str) else None
    if category is None and (read(error, "retriable") is True or _called(inner, "retriable") is True):
        category = C.UNAVAILABLE
    if category is None:
        return None
    return Finding(category, CATEGORY_CODES.get(category) or (name if isinstance(name, str) else None))


def _called(source: object, name: str) -> Any:
    method = read(source, name)
    try:
        return method() if callable(method) else None
    except Exception:  # noqa: BLE001 - somebody else's method
        return None


def smtp_finding(error: object, now: float) -> Finding | None:
    """SMTP replies, RFC 5321: 4yz passes (greylisting, a busy server), 5yz stays.

    Of several refused recipients the worst reply counts: a permanent one before those that pass.
    """
    replies = list(_smtp_replies(error))
    if not replies:
        return None
    worst = max(replies)
    if worst < 500:
        return Finding(C.UNAVAILABLE, str(worst))
    refused = worst in _SMTP_AUTH or "authentication" in type(error).__name__.lower()
    return Finding(C.AUTH if refused else C.INVALID, str(worst))


_SMTP_AUTH = frozenset({530, 534, 535, 538})


def _smtp_replies(error: object) -> list[int]:
    own = as_number(read(error, "smtp_code"))
    own = as_number(read(error, "code")) if own is None else own
    if own is not None:
        return [int(own)]
    recipients = read(error, "recipients")
    if isinstance(recipients, Mapping):  # smtplib: {address: (code, text)}
        found = [_first(reply) for reply in cast("Mapping[Any, object]", recipients).values()]
    elif isinstance(recipients, list | tuple):  # aiosmtplib: exceptions
        found = [as_number(read(refused, "code")) for refused in cast("list[object]", recipients)]
    else:
        found = []
    return [int(code) for code in found if code is not None]


def _first(reply: object) -> float | None:
    return as_number(cast("tuple[object, ...]", reply)[0]) if isinstance(reply, tuple) and reply else None


def ssh_finding(error: object, now: float) -> Finding:
    """paramiko's SSHException, whose text alone tells a slow peer from a lost one."""
    if "timeout" in read_text(error, 500).lower():
        return Finding(C.TIMEOUT, TIMEOUT)
    return Finding(C.NETWORK, NETWORK_ERROR)
