"""Databases beyond SQLSTATE: MongoDB, Snowflake, Databricks, dbt, SQL Server, Oracle."""

from __future__ import annotations

import re
from typing import Any, cast

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.classify.databases import mysql_finding, sqlstate_finding
from prefect_resilience.errors.classify.http import status_category
from prefect_resilience.errors.classify.messages import text_finding
from prefect_resilience.errors.classify.names import CATEGORY_CODES, NETWORK_ERROR, TIMEOUT
from prefect_resilience.errors.classify.provider_codes import says_lost_race
from prefect_resilience.errors.classify.shapes import as_dict, as_number, read, read_text
from prefect_resilience.errors.info import Finding
from prefect_resilience.errors.taxonomy import ErrorCategory as C

# MongoDB's error_codes.yml; the retryable ones are those of the driver specification "Retryable Writes".
_MONGO: dict[int, C] = {
    **dict.fromkeys((6, 7, 89, 9001), C.NETWORK),
    **dict.fromkeys((91, 189, 11600, 11602, 10107, 13435, 13436, 112, 251, 24), C.UNAVAILABLE),
    **dict.fromkeys((50, 262, 202), C.TIMEOUT),
    **dict.fromkeys((13, 18, 31, 8000), C.AUTH),
    **dict.fromkeys((11000, 11001, 12582, 48, 85, 86), C.CONFLICT),
    **dict.fromkeys((26, 43, 27), C.NOT_FOUND),
    **dict.fromkeys((16500,), C.RATE_LIMIT),  # Azure's Mongo API: too many request units
    **dict.fromkeys((2, 9, 14, 59, 72, 121), C.INVALID),
    **dict.fromkeys((146, 292), C.RESOURCE_EXHAUSTED),
}
_MONGO_RETRYABLE = ("TransientTransactionError", "RetryableWriteError", "UnknownTransactionCommitResult")

# snowflake.connector.errorcode and the server's own numbers.
_SNOWFLAKE: dict[int, C] = {
    **dict.fromkeys((250001, 250002, 250003, 250005, 251004, 252010), C.NETWORK),
    **dict.fromkeys((390110, 390112, 390113, 390114, 390115, 390144, 390195, 390303, 390318, 3001), C.AUTH),
    **dict.fromkeys((625, 251012), C.UNAVAILABLE),
    **dict.fromkeys((630, 251011), C.TIMEOUT),
    **dict.fromkeys((1003, 904, 251001, 251005, 251006, 251007), C.INVALID),
    604: C.CANCELLED,
    2002: C.CONFLICT,
    2003: C.NOT_FOUND,
}
_SNOWFLAKE_HTTP = 290_000
"""Added to the HTTP status of an answer that was none of the service's own."""

# SQL Server's numbers; those above 40000 are Azure SQL's, from Microsoft's list of transient errors.
_SQL_SERVER: dict[int, C] = {
    **dict.fromkeys((1205, 3960, 3961, 1222, 41302, 41305, 41325), C.UNAVAILABLE),
    **dict.fromkeys((4060, 40197, 40501, 40613, 49918, 49919, 49920, 4221), C.UNAVAILABLE),
    **dict.fromkeys((10928, 10929), C.RATE_LIMIT),
    **dict.fromkeys((233, 10053, 10054, 10060, 20006, 20009, 20002), C.NETWORK),
    **dict.fromkeys((18456, 229), C.AUTH),
    **dict.fromkeys((2627, 2601, 547), C.CONFLICT),
    **dict.fromkeys((208, 207, 102), C.INVALID),
}
_ORACLE: dict[int, C] = {
    **dict.fromkeys((60, 8177, 54, 104, 18014), C.UNAVAILABLE),
    **dict.fromkeys((3113, 3114, 3135, 12170, 12541, 12543, 12545, 12547, 12537, 28, 1012), C.NETWORK),
    **dict.fromkeys((1033, 1034, 1089, 1090, 12514, 12516, 12518, 12519, 12520), C.UNAVAILABLE),
    **dict.fromkeys((1017, 1031, 28000, 28001), C.AUTH),
    **dict.fromkeys((1, 2291, 2292), C.CONFLICT),
    **dict.fromkeys((942, 904, 900, 1400, 1722), C.INVALID),
    **dict.fromkeys((1013,), C.CANCELLED),
}
_ORACLE_CODE = Regex(r"\b(?:ORA|DPY|DPI)-(\d{1,5})\b")
_DBAPI_CLASSES = {"IntegrityError": C.CONFLICT, "ProgrammingError": C.INVALID, "DataError": C.INVALID}


def mongo_finding(error: object, now: float) -> Finding | None:
    """An error of pymongo: by its labels, else by the server's number."""
    code = as_number(read(error, "code"))
    number = None if code is None else int(code)
    written = as_dict(read(error, "details")).get("writeErrors")
    first: Any = cast("list[Any]", written)[0] if isinstance(written, list) and written else None
    if number in (None, 65):  # BulkWriteError has the reasons of its members
        number = as_dict(first).get("code", number)
    labels = read(error, "has_error_label")
    known = _MONGO.get(number) if isinstance(number, int) else None
    if callable(labels) and any(labels(label) is True for label in _MONGO_RETRYABLE):
        known = known if known is not None and known.retryable else C.UNAVAILABLE
    return _numbered(known, number)


def snowflake_finding(error: object, now: float) -> Finding | None:
    """An error of snowflake.connector: a lost race, its number, its SQLSTATE, or its words."""
    text = read_text(error, 4_000)
    number = as_number(read(error, "errno"))
    known = None if number is None else _SNOWFLAKE.get(int(number))
    if known is C.NETWORK and "username or password" in text:
        known = C.AUTH
    if known is None and number is not None and 300 <= number - _SNOWFLAKE_HTTP < 600:
        known = status_category(int(number) - _SNOWFLAKE_HTTP)
    if known is None and says_lost_race(text):
        known = C.UNAVAILABLE
    return _numbered(known, None if number is None else int(number)) or sqlstate_finding(error)


def sql_server_finding(error: object, now: float) -> Finding | None:
    """pyodbc, whose first argument is an SQLSTATE, and pymssql, whose first argument is a number."""
    first = _first_argument(error)
    if isinstance(first, str):
        found = sqlstate_finding(_State(first))
        numbers = [int(each) for each in re.findall(r"\((\d{2,5})\)", read_text(error, 2_000))[:5]]
    else:
        found, numbers = None, [int(first)] if isinstance(first, int) else []
    known = next((_SQL_SERVER[number] for number in numbers if number in _SQL_SERVER), None)
    return _numbered(known, next((number for number in numbers if number in _SQL_SERVER), None)) or found


def oracle_finding(error: object, now: float) -> Finding | None:
    """oracledb and cx_Oracle, by the number in the text."""
    match = _ORACLE_CODE.search(read_text(error, 2_000))
    known = _ORACLE.get(int(match[1])) if match else None
    return Finding(known, CATEGORY_CODES.get(known) or match[0]) if known and match else None


def worded_finding(error: object, now: float) -> Finding | None:
    """An exception that only quotes what another system said, such as dbt's of a database: by its words."""
    return text_finding(read_text(error, 8_000)) or _by_class(error)


def pg8000_finding(error: object, now: float) -> Finding | None:
    """pg8000 keeps the server's fields in a dict: `C` is the SQLSTATE."""
    state = as_dict(_first_argument(error)).get("C")
    return sqlstate_finding(_State(state)) if isinstance(state, str) else None


def mysql_or_words(error: object, now: float) -> Finding | None:
    """A MySQL driver's error by its number; a conversation that broke off has none."""
    found = mysql_finding(error)
    broken = read_text(error, 2_000).lower()
    if found is None and ("lost connection" in broken or broken == "(0, '')"):  # a closed connection was used
        return Finding(C.NETWORK, NETWORK_ERROR)
    return found


class _State:
    def __init__(self, sqlstate: str) -> None:
        self.sqlstate = sqlstate


def _first_argument(error: object) -> object:
    """pymssql puts number and text in a tuple of their own."""
    first: object = (read(error, "args"),)
    while isinstance(first, tuple):
        items = cast("tuple[object, ...]", first)
        first = items[0] if items else None
    return first


def _by_class(error: object) -> Finding | None:
    category = _DBAPI_CLASSES.get(type(error).__name__)
    return Finding(category) if category else None


def _numbered(category: C | None, number: object) -> Finding | None:
    if category is None:
        return None
    code = TIMEOUT if category is C.TIMEOUT else CATEGORY_CODES.get(category)
    return Finding(category, code or (None if number is None else str(number)))
