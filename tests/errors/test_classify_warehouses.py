"""Databases beyond SQLSTATE."""

from __future__ import annotations

import pytest

from prefect_resilience import ErrorCategory as C
from prefect_resilience import classify
from tests.errors.by_name import made

MONGO = "pymongo.errors.PyMongoError"
SNOWFLAKE = "snowflake.connector.errors.Error"


def labelled(*labels: str) -> object:
    return lambda label: label in labels


CASES = [
    (made(MONGO, "x", code=18), C.AUTH, "18"),
    (made(MONGO, "x", code=112), C.UNAVAILABLE, "112"),  # read as an HTTP status, 112 said nothing
    (made(MONGO, "x", code=50), C.TIMEOUT, "TIMEOUT"),
    (made(MONGO, "x", code=6), C.NETWORK, "NETWORK_ERROR"),
    (made(MONGO, "x", code=4711), C.UNEXPECTED, "PyMongoError"),
    (made(MONGO, "x", code=65, details={"writeErrors": [{"code": 11000}]}), C.CONFLICT, "11000"),
    (made(MONGO, "x", code=65, details={"writeErrors": []}), C.UNEXPECTED, "PyMongoError"),
    (made(MONGO, "x", has_error_label=labelled("TransientTransactionError")), C.UNAVAILABLE, "PyMongoError"),
    (made(MONGO, "x", code=11000, has_error_label=labelled("RetryableWriteError")), C.UNAVAILABLE, "11000"),
    (made(MONGO, "x", code=6, has_error_label=labelled("RetryableWriteError")), C.NETWORK, "NETWORK_ERROR"),
    (made(MONGO, "x", code=18, has_error_label=labelled()), C.AUTH, "18"),
    (made(SNOWFLAKE, "x", errno=250001), C.NETWORK, "NETWORK_ERROR"),
    (made(SNOWFLAKE, "Incorrect username or password", errno=250001), C.AUTH, "250001"),
    (made(SNOWFLAKE, "x", errno=625), C.UNAVAILABLE, "625"),
    (made(SNOWFLAKE, "x", errno=290503), C.UNAVAILABLE, "290503"),
    (made(SNOWFLAKE, "x", errno=290504), C.TIMEOUT, "TIMEOUT"),
    (made(SNOWFLAKE, "the transaction was aborted: deadlock detected", errno=1), C.UNAVAILABLE, "1"),
    (made(SNOWFLAKE, "x", errno=1, sqlstate="42501"), C.AUTH, "42501"),
    (made(SNOWFLAKE, "deadlock detected"), C.UNAVAILABLE, "Error"),
    (made(SNOWFLAKE, "x"), C.UNEXPECTED, "Error"),
    (made("pyodbc.Error", "40001", "[40001] deadlock victim (1205)"), C.UNAVAILABLE, "1205"),
    (made("pyodbc.Error", "08S01", "link failure"), C.NETWORK, "08S01"),
    (made("pymssql.Error", 1205, b"deadlock"), C.UNAVAILABLE, "1205"),
    (made("pymssql.Error", 20009, b"gone"), C.NETWORK, "NETWORK_ERROR"),
    (made("pymssql.Error"), C.UNEXPECTED, "Error"),
    (made("oracledb.exceptions.Error", "ORA-00060: deadlock"), C.UNAVAILABLE, "ORA-00060"),
    (made("oracledb.exceptions.Error", "ORA-03113: end-of-file"), C.NETWORK, "NETWORK_ERROR"),
    (made("oracledb.exceptions.Error", "ORA-99999"), C.UNEXPECTED, "Error"),
    (made("oracledb.exceptions.Error", "x"), C.UNEXPECTED, "Error"),
    (made("pg8000.dbapi.DatabaseError", {"C": "40P01"}), C.UNAVAILABLE, "40P01"),
    (made("pg8000.dbapi.DatabaseError", "x"), C.UNEXPECTED, "DatabaseError"),
    (made("pymysql.err.MySQLError", 1213, "deadlock"), C.UNAVAILABLE, "1213"),
    (made("pymysql.err.MySQLError", 0, "Lost connection to server"), C.NETWORK, "NETWORK_ERROR"),
    (made("pymysql.err.MySQLError", "x"), C.UNEXPECTED, "MySQLError"),
    (made("dbt_common.exceptions.DbtDatabaseError", "could not serialize access"), C.UNAVAILABLE, None),
    (made("databricks.sql.exc.Error", "[DELTA_CONCURRENT_APPEND] x"), C.UNAVAILABLE, "Error"),
    (made("databricks.sql.exc.Error", "x", sqlstate="28000"), C.AUTH, "28000"),
    (made("databricks.sql.exc.Error", "x"), C.UNEXPECTED, "Error"),
]


@pytest.mark.parametrize(("error", "category", "code"), CASES)
def test_what_a_driver_raises(error, category, code) -> None:
    info = classify(error)
    assert (info.category, info.code) == (category, code or type(error).__name__)


def test_a_driver_s_class_tells_what_its_words_do_not() -> None:
    base = type("Error", (Exception,), {"__module__": "databricks.sql.exc"})
    error = type("ProgrammingError", (base,), {"__module__": "databricks.sql.exc"})("no such column")
    assert classify(error).category is C.INVALID
