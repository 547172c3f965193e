"""Message brokers and mail servers: AMQP reply codes, Kafka's own opinion, SMTP replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from prefect_resilience.errors.classify.names import CATEGORY_CODES, NETWORK_ERROR, TIMEOUT
from prefect_resilience.errors.classify.shapes import as_number, read, read_text
from prefect_resilience.errors.info import Finding
from prefect_resilience.errors.taxonomy import ErrorCategory as C

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
