"""Databases, by SQLSTATE, by the numbers of their servers, or by words.

SQLSTATE classes are those of ISO/IEC 9075 and of PostgreSQL's appendix "Error Codes". A statement that lost a
deadlock or met a lock can be retried, so it is `unavailable`.
"""

from __future__ import annotations

import re
from typing import Any, cast

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.classify.http import says_lost_race, status_category
from prefect_resilience.errors.classify.names import text_finding
from prefect_resilience.errors.classify.shapes import (
    as_dict,
    as_number,
    as_status,
    first_argument,
    read,
    read_text,
)
from prefect_resilience.errors.taxonomy import (
    CATEGORY_CODES,
    NETWORK_ERROR,
    Look,
    Opinion,
    by_words,
    coded,
    found_by_code,
)
from prefect_resilience.errors.taxonomy import ErrorCategory as C

_SQLSTATES = coded(
    invalid="0A* 21* 22* 23502 23514 25* 26* 42* 54* P0*",
    # 25006: a replica that is about to take over; 53300: too many connections; 55P03: lock not available
    unavailable="25006 25P03 40* 53300 55006 55P03 57*",
    auth="28* 42501",
    network="08*",
    conflict="23* 55*",
    not_found="3D* 3F* 57P04 P0002",
    resource_exhausted="53*",
    infrastructure="58*",
    server_error="XX* HY*",
)
_SQLSTATE = Regex(r"[0-9A-Z]{5}")


def sqlstate_finding(error: object, now: float = 0.0) -> Opinion | None:
    """By `sqlstate` (psycopg, asyncpg) or `pgcode` (psycopg2); None when the exception has neither."""
    return _by_sqlstate(read(error, "sqlstate") or read(error, "pgcode"), error)


def _by_sqlstate(state: object, error: object) -> Opinion | None:
    if not isinstance(state, str) or not _SQLSTATE.fullmatch(state):
        return None
    if state == "57014":  # cancelled, by the server's statement_timeout or by a person
        return Opinion(C.TIMEOUT if "timeout" in read_text(error, 2_000) else C.CANCELLED, state)
    return found_by_code(_SQLSTATES, state, own=True)


postgres: list[Look | Opinion] = [
    sqlstate_finding,
    # messages of libpq and the server before there is a connection, which have no SQLSTATE
    by_words(r"""
        auth        -       authentication failed|no pg_hba\.conf entry|no password supplied
        auth        -       role .{1,80} does not exist
        not_found   -       database .{1,80} does not exist
        unavailable -       starting up|shutting down|in recovery|too many (?:connections|clients)
        unavailable -       connection slots
        timeout     TIMEOUT timeout expired|timed out|timeout
    """),
    # Without a SQLSTATE the server never answered a statement: the connection is at fault.
    Opinion(C.NETWORK, NETWORK_ERROR),
]

sqlite: Look = by_words(r"""
    unavailable        SQLITE_BUSY       is locked|database is busy|schema has changed
    conflict           SQLITE_CONSTRAINT unique constraint|primary key|must be unique|is not unique
    invalid            SQLITE_CONSTRAINT constraint failed
    not_found          SQLITE_CANTOPEN   unable to open
    resource_exhausted SQLITE_FULL       is full
    infrastructure     SQLITE_IOERR      disk i/o error|malformed
    auth               SQLITE_READONLY   readonly|not authorized|access .{0,40}prohibited
    cancelled          SQLITE_INTERRUPT  interrupted
    invalid            -                 no such (?:table|column|index|function)|syntax error
    invalid            -                 not a database|incomplete input
""")
"""By words, which are the same on every Python version."""

_REDIS = coded(
    unavailable="LOADING BUSY TRYAGAIN CLUSTERDOWN MASTERDOWN READONLY NOREPLICAS",
    resource_exhausted="OOM",
    auth="NOAUTH WRONGPASS NOPERM",
)


def redis_finding(error: object, now: float) -> Opinion:
    """An error reply of Redis, by its first word."""
    word = read_text(error, 200).partition(" ")[0].rstrip(":")
    return found_by_code(_REDIS, word, own=True) or Opinion(C.INVALID)


_MYSQL = coded(
    unavailable="1205 1213 1040 1053 1203 1290",
    network="2002 2003 2005 2006 2013 2055",
    auth="1044 1045 1142 1227",
    conflict="1062 1451 1452 1586",
    not_found="1049",
    invalid="1054 1064 1146 1364 1406",
    timeout="3024 1969",
    overflow="1153",  # larger than max_allowed_packet
)


def mysql_finding(error: object, now: float) -> Opinion | None:
    """By the server's number, in `errno` or first in `args`; a lost connection has no number."""
    found = found_by_code(_MYSQL, read(error, "errno") or first_argument(error), own=True)
    text = read_text(error, 2_000).lower()
    if found is None and ("lost connection" in text or text == "(0, '')"):  # a closed connection was used
        return Opinion(C.NETWORK, NETWORK_ERROR)
    return found


# MongoDB's error_codes.yml; the retryable ones are those of the driver specification "Retryable Writes".
_MONGO = coded(
    network="6 7 89 9001",
    unavailable="91 189 11600 11602 10107 13435 13436 112 251 24",
    timeout="50 262 202",
    auth="13 18 31 8000",
    conflict="11000 11001 12582 48 85 86",
    not_found="26 43 27",
    rate_limit="16500",  # Azure's Mongo API: too many request units
    invalid="2 9 14 59 72 121",
    resource_exhausted="146 292",
)
_MONGO_RETRYABLE = ("TransientTransactionError", "RetryableWriteError", "UnknownTransactionCommitResult")


def mongo_finding(error: object, now: float) -> Opinion | None:
    """An error of pymongo: by its labels, else by the server's number."""
    number = read(error, "code")
    written = as_dict(read(error, "details")).get("writeErrors")
    if number in (None, 65) and isinstance(written, list) and written:  # BulkWriteError: as its first member
        number = as_dict(cast("list[Any]", written)[0]).get("code", number)
    found = found_by_code(_MONGO, number)
    labels = read(error, "has_error_label")
    again = callable(labels) and any(labels(label) is True for label in _MONGO_RETRYABLE)
    if again and not (found and found.category.retryable):
        return Opinion(C.UNAVAILABLE, None if number is None else str(number))
    return found


# snowflake.connector.errorcode and the server's own numbers.
_SNOWFLAKE = coded(
    network="250001 250002 250003 250005 251004 252010",
    auth="390110 390112 390113 390114 390115 390144 390195 390303 390318 3001",
    unavailable="625 251012",
    timeout="630 251011",
    invalid="1003 904 251001 251005 251006 251007",
    cancelled="604",
    conflict="2002",
    not_found="2003",
)
_SNOWFLAKE_HTTP = 290_000
"""The connector adds this number to the status of a plain HTTP error."""


def snowflake_finding(error: object, now: float) -> Opinion | None:
    """An error of snowflake.connector: a lost race, its number, its SQLSTATE, or its words."""
    text, number = read_text(error, 4_000), read(error, "errno")
    code = None if as_number(number) is None else str(number)
    found = found_by_code(_SNOWFLAKE, number)
    if found is not None and found.category is C.NETWORK and "username or password" in text:
        return Opinion(C.AUTH, code)
    status = as_status((as_number(number) or 0) - _SNOWFLAKE_HTTP)
    category = status_category(status) if status else None
    if found is None and category is not None:
        return Opinion(category, CATEGORY_CODES.get(category, code))
    if found is None and says_lost_race(text):
        return Opinion(C.UNAVAILABLE, code)
    return found or sqlstate_finding(error)


# SQL Server's numbers; those above 40000 are Azure SQL's, from Microsoft's list of transient errors.
_SQL_SERVER = coded(
    unavailable="""
            1205 3960 3961 1222 41302 41305 41325 4060 40197 40501 40613 49918 49919 49920 4221
            """,
    rate_limit="10928 10929",
    network="233 10053 10054 10060 20006 20009 20002",
    auth="18456 229",
    conflict="2627 2601 547",
    invalid="208 207 102",
)


def sql_server_finding(error: object, now: float) -> Opinion | None:
    """By the first argument: an SQLSTATE of pyodbc, or a number of pymssql."""
    first = first_argument(error)
    if not isinstance(first, str):
        return found_by_code(_SQL_SERVER, first)
    numbers = re.findall(r"\((\d{2,5})\)", read_text(error, 2_000))[:5]
    return found_by_code(_SQL_SERVER, *numbers) or _by_sqlstate(first, error)


_ORACLE = coded(
    unavailable="60 8177 54 104 18014 1033 1034 1089 1090 12514 12516 12518 12519 12520",
    network="3113 3114 3135 12170 12541 12543 12545 12547 12537 28 1012",
    auth="1017 1031 28000 28001",
    conflict="1 2291 2292",
    invalid="942 904 900 1400 1722",
    cancelled="1013",
)
_ORACLE_CODE = Regex(r"\b(?:ORA|DPY|DPI)-0*(\d{1,5})\b")


def oracle_finding(error: object, now: float) -> Opinion | None:
    """oracledb and cx_Oracle, by the number in the text."""
    match = _ORACLE_CODE.search(read_text(error, 2_000))
    found = found_by_code(_ORACLE, match[1]) if match else None
    return found._replace(code=match[0]) if found and match and found.code == match[1] else found


def pg8000_finding(error: object, now: float) -> Opinion | None:
    """pg8000 keeps the server's fields in a dict: `C` is the SQLSTATE."""
    return _by_sqlstate(as_dict(first_argument(error)).get("C"), error)


_DBAPI_CLASSES = {"IntegrityError": C.CONFLICT, "ProgrammingError": C.INVALID, "DataError": C.INVALID}


def worded_finding(error: object, now: float) -> Opinion | None:
    """By its words: an exception that only quotes another system, as dbt quotes a database's error."""
    named = _DBAPI_CLASSES.get(type(error).__name__)
    return text_finding(read_text(error, 8_000)) or (Opinion(named) if named else None)
