"""Message brokers, mail servers, SSH."""

from __future__ import annotations

import smtplib
from types import SimpleNamespace
from typing import Any

import pytest

from prefect_resilience import ErrorCategory as C
from prefect_resilience import classify
from tests.errors.by_name import made


def kafka_error(name: str, retriable: object = False) -> Any:
    return SimpleNamespace(name=lambda: name, retriable=lambda: retriable)


def broken() -> Any:
    def name() -> str:
        raise RuntimeError

    return SimpleNamespace(name=name, retriable=name)


CASES = [
    (made("pika.exceptions.AMQPConnectionError", "x"), C.NETWORK, "NETWORK_ERROR"),
    (made("cimpl.KafkaException", kafka_error("_TRANSPORT")), C.NETWORK, "NETWORK_ERROR"),
    (made("cimpl.KafkaException", kafka_error("_QUEUE_FULL")), C.UNAVAILABLE, "_QUEUE_FULL"),
    (made("cimpl.KafkaException", kafka_error("NEW", retriable=True)), C.UNAVAILABLE, "NEW"),
    (made("cimpl.KafkaException", kafka_error("NEW")), C.UNEXPECTED, "KafkaException"),
    (made("cimpl.KafkaException", broken()), C.UNEXPECTED, "KafkaException"),
    (made("cimpl.KafkaException"), C.UNEXPECTED, "KafkaException"),
    (made("kafka.errors.KafkaError", "x", retriable=True), C.UNAVAILABLE, "KafkaError"),
    (made("kafka.errors.NoBrokersAvailable"), C.NETWORK, "NETWORK_ERROR"),
    (made("paramiko.ssh_exception.SSHException", "Timeout opening channel."), C.TIMEOUT, "TIMEOUT"),
    (made("paramiko.ssh_exception.SSHException", "banner"), C.NETWORK, "NETWORK_ERROR"),
    (made("aiosmtplib.errors.SMTPException", "x", code=421), C.UNAVAILABLE, "421"),
    (
        made("aiosmtplib.errors.SMTPException", "x", recipients=[SimpleNamespace(code=450), 3]),
        C.UNAVAILABLE,
        "450",
    ),
]


@pytest.mark.parametrize(("error", "category", "code"), CASES)
def test_what_a_broker_s_client_raises(error, category, code) -> None:
    info = classify(error)
    assert (info.category, info.code) == (category, code)


def test_a_reply_code_decides_about_a_closed_channel() -> None:
    closed = "pika.exceptions.AMQPError"
    assert classify(made(closed, reply_code=404)).code == "404"
    assert classify(made(closed, reply_code=320)).category is C.NETWORK
    assert classify(made(closed, reply_code=505)).category is C.INVALID
    assert classify(made(closed, reply_code=200)).category is C.UNEXPECTED


GREYLISTED = (450, b"4.2.0 Greylisted, try again later")
MAIL = [
    (smtplib.SMTPRecipientsRefused({"a@x": GREYLISTED, "b@x": (451, b"later")}), C.UNAVAILABLE, "451"),
    (smtplib.SMTPRecipientsRefused({"a@x": GREYLISTED, "b@x": (550, b"no such user")}), C.INVALID, "550"),
    (smtplib.SMTPRecipientsRefused({"a@x": "odd"}), C.UNEXPECTED, "SMTPRecipientsRefused"),  # type: ignore[dict-item]
    (smtplib.SMTPRecipientsRefused({}), C.UNEXPECTED, "SMTPRecipientsRefused"),
    (smtplib.SMTPSenderRefused(421, b"busy", "a@x"), C.UNAVAILABLE, "421"),
    (smtplib.SMTPConnectError(421, b"too many connections"), C.UNAVAILABLE, "421"),
    (smtplib.SMTPAuthenticationError(454, b"temporary"), C.UNAVAILABLE, "454"),
    (smtplib.SMTPAuthenticationError(554, b"no"), C.AUTH, "554"),
    (smtplib.SMTPResponseException(530, b"authenticate first"), C.AUTH, "530"),
]


@pytest.mark.parametrize(("error", "category", "code"), MAIL)
def test_what_a_mail_server_replies(error, category, code) -> None:
    info = classify(error)
    assert (info.category, info.code) == (category, code)
