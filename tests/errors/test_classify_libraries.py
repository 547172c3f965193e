"""Message brokers, mail servers, SSH, and databases beyond SQLSTATE."""

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


MONGO = "pymongo.errors.PyMongoError"
SNOWFLAKE = "snowflake.connector.errors.Error"


def labelled(*labels: str) -> object:
    return lambda label: label in labels


GREYLISTED = (450, b"4.2.0 Greylisted, try again later")
CLOSED = "pika.exceptions.AMQPError"
CASES = [
    (made("cimpl.KafkaException", kafka_error("_TRANSPORT")), C.NETWORK, "NETWORK_ERROR"),
    (made("cimpl.KafkaException", kafka_error("NEW", retriable=True)), C.UNAVAILABLE, "NEW"),
    (made("cimpl.KafkaException", kafka_error("NEW")), C.UNEXPECTED, "KafkaException"),
    (made("cimpl.KafkaException", broken()), C.UNEXPECTED, "KafkaException"),
    (made("cimpl.KafkaException"), C.UNEXPECTED, "KafkaException"),
    (made("kafka.errors.KafkaError", "x", retriable=True), C.UNAVAILABLE, "KafkaError"),
    (made("paramiko.ssh_exception.SSHException", "Timeout opening channel."), C.TIMEOUT, "TIMEOUT"),
    (made("aiosmtplib.errors.SMTPException", "x", code=421), C.UNAVAILABLE, "421"),
    (
        made("aiosmtplib.errors.SMTPException", "x", recipients=[SimpleNamespace(code=450), 3]),
        C.UNAVAILABLE,
        "450",
    ),
    # a reply code decides about a closed channel
    (made(CLOSED, reply_code=404), C.NOT_FOUND, "404"),
    (made(CLOSED, reply_code=320), C.NETWORK, "NETWORK_ERROR"),
    (made(CLOSED, reply_code=200), C.UNEXPECTED, "AMQPError"),
    # mail
    (smtplib.SMTPRecipientsRefused({"a@x": GREYLISTED, "b@x": (451, b"later")}), C.UNAVAILABLE, "451"),
    (smtplib.SMTPRecipientsRefused({"a@x": GREYLISTED, "b@x": (550, b"no such user")}), C.INVALID, "550"),
    (smtplib.SMTPRecipientsRefused({"a@x": "odd"}), C.UNEXPECTED, "SMTPRecipientsRefused"),  # type: ignore[dict-item]
    (smtplib.SMTPRecipientsRefused({}), C.UNEXPECTED, "SMTPRecipientsRefused"),
    (smtplib.SMTPSenderRefused(421, b"busy", "a@x"), C.UNAVAILABLE, "421"),
    (smtplib.SMTPAuthenticationError(454, b"temporary"), C.UNAVAILABLE, "454"),
    (smtplib.SMTPResponseException(530, b"authenticate first"), C.AUTH, "530"),
    # databases
    (made(MONGO, "x", code=112), C.UNAVAILABLE, "112"),  # read as an HTTP status, 112 said nothing
    (made(MONGO, "x", code=6), C.NETWORK, "NETWORK_ERROR"),
    (made(MONGO, "x", code=4711), C.UNEXPECTED, "PyMongoError"),
    (made(MONGO, "x", code=65, details={"writeErrors": [{"code": 11000}]}), C.CONFLICT, "11000"),
    (made(MONGO, "x", has_error_label=labelled("TransientTransactionError")), C.UNAVAILABLE, "PyMongoError"),
    (made(MONGO, "x", code=11000, has_error_label=labelled("RetryableWriteError")), C.UNAVAILABLE, "11000"),
    (made(MONGO, "x", code=6, has_error_label=labelled("RetryableWriteError")), C.NETWORK, "NETWORK_ERROR"),
    (made(MONGO, "x", code=18, has_error_label=labelled()), C.AUTH, "18"),
    (made(SNOWFLAKE, "Incorrect username or password", errno=250001), C.AUTH, "250001"),
    (made(SNOWFLAKE, "the transaction was aborted: deadlock detected", errno=1), C.UNAVAILABLE, "1"),
    (made(SNOWFLAKE, "x", errno=1, sqlstate="42501"), C.AUTH, "42501"),
    (made(SNOWFLAKE, "deadlock detected"), C.UNAVAILABLE, "Error"),
    (made(SNOWFLAKE, "x"), C.UNEXPECTED, "Error"),
    (made("pyodbc.Error", "40001", "[40001] deadlock victim (1205)"), C.UNAVAILABLE, "1205"),
    (made("pymssql.Error", 20009, b"gone"), C.NETWORK, "NETWORK_ERROR"),
    (made("pymssql.Error"), C.UNEXPECTED, "Error"),
    (made("oracledb.exceptions.Error", "ORA-00060: deadlock"), C.UNAVAILABLE, "ORA-00060"),
    (made("oracledb.exceptions.Error", "ORA-99999"), C.UNEXPECTED, "Error"),
    (made("pg8000.dbapi.DatabaseError", {"C": "40P01"}), C.UNAVAILABLE, "40P01"),
    (made("pymysql.err.MySQLError", 1213, "deadlock"), C.UNAVAILABLE, "1213"),
    (made("pymysql.err.MySQLError", 1045, "Access denied"), C.AUTH, "1045"),
    (made("pymysql.err.MySQLError"), C.UNEXPECTED, "MySQLError"),
    (made("mysql.connector.errors.Error", "duplicate", errno=1062), C.CONFLICT, "1062"),
    (made("pymysql.err.MySQLError", 0, "Lost connection to server"), C.NETWORK, "NETWORK_ERROR"),
    (
        made("dbt_common.exceptions.DbtDatabaseError", "could not serialize access"),
        C.UNAVAILABLE,
        "DbtDatabaseError",
    ),
    (made("databricks.sql.exc.Error", "[DELTA_CONCURRENT_APPEND] x"), C.UNAVAILABLE, "Error"),
    (made("databricks.sql.exc.Error", "x", sqlstate="28000"), C.AUTH, "28000"),
    (made("databricks.sql.exc.Error", "x"), C.UNEXPECTED, "Error"),
]


@pytest.mark.parametrize(("error", "category", "code"), CASES)
def test_what_a_library_raises(error: Exception, category: C, code: str) -> None:
    info = classify(error)
    assert (info.category, info.code) == (category, code)


def test_a_driver_s_class_tells_what_its_words_do_not() -> None:
    base = type("Error", (Exception,), {"__module__": "databricks.sql.exc"})
    error = type("ProgrammingError", (base,), {"__module__": "databricks.sql.exc"})("no such column")
    assert classify(error).category is C.INVALID
