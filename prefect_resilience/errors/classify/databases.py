"""Databases: SQLSTATE codes, SQLite's words, Redis's words, MySQL's numbers.

SQLSTATE classes are those of ISO/IEC 9075 and of PostgreSQL's appendix "Error Codes". A statement that lost a
deadlock or met a lock did nothing wrong and may be tried again, so it is `unavailable`.
"""

from __future__ import annotations

import re
from typing import Any, cast

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.classify.http import says_lost_race, status_category
from prefect_resilience.errors.classify.messages import text_finding
from prefect_resilience.errors.classify.names import CATEGORY_CODES, NETWORK_ERROR, TIMEOUT
from prefect_resilience.errors.classify.shapes import as_dict, as_number, read, read_text
from prefect_resilience.errors.taxonomy import ErrorCategory as C
from prefect_resilience.errors.taxonomy import Finding

_SQLSTATES: dict[str, C] = {
    "23502": C.INVALID,
    "23514": C.INVALID,
    "25006": C.UNAVAILABLE,  # read-only: a replica that is about to take over
    "28": C.AUTH,
    "08": C.NETWORK,
    "0A": C.INVALID,
    "21": C.INVALID,
    "22": C.INVALID,
    "23": C.CONFLICT,
    "25": C.INVALID,
    "25P03": C.UNAVAILABLE,
    "26": C.INVALID,
    "3D": C.NOT_FOUND,
    "3F": C.NOT_FOUND,
    "40": C.UNAVAILABLE,
    "42": C.INVALID,
    "42501": C.AUTH,
    "53": C.RESOURCE_EXHAUSTED,
    "53300": C.UNAVAILABLE,  # too many connections
    "54": C.INVALID,
    "55": C.CONFLICT,
    "55P03": C.UNAVAILABLE,  # lock not available
    "55006": C.UNAVAILABLE,
    "57": C.UNAVAILABLE,
    "57P04": C.NOT_FOUND,
    "58": C.INFRASTRUCTURE,
    "P0": C.INVALID,
    "P0002": C.NOT_FOUND,
    "XX": C.SERVER_ERROR,
    "HY": C.SERVER_ERROR,
}
_SQLSTATE = Regex(r"[0-9A-Z]{5}")

# What libpq and the server say before there is a connection, when no SQLSTATE comes along.
_CONNECTING: tuple[tuple[str, C, str | None], ...] = (
    (
        r"authentication failed|no pg_hba\.conf entry|no password supplied|role .{1,80} does not exist",
        C.AUTH,
        None,
    ),
    (r"database .{1,80} does not exist", C.NOT_FOUND, None),
    (
        r"starting up|shutting down|in recovery|too many (?:connections|clients)|connection slots",
        C.UNAVAILABLE,
        None,
    ),
    (r"timeout expired|timed out|timeout", C.TIMEOUT, TIMEOUT),
)

_SQLITE: tuple[tuple[str, C, str | None], ...] = (
    (r"is locked|database is busy|schema has changed", C.UNAVAILABLE, "SQLITE_BUSY"),
    (r"unique constraint|primary key|must be unique|is not unique", C.CONFLICT, "SQLITE_CONSTRAINT"),
    (r"constraint failed", C.INVALID, "SQLITE_CONSTRAINT"),
    (r"unable to open", C.NOT_FOUND, "SQLITE_CANTOPEN"),
    (r"is full", C.RESOURCE_EXHAUSTED, "SQLITE_FULL"),
    (r"disk i/o error|malformed", C.INFRASTRUCTURE, "SQLITE_IOERR"),
    (r"readonly|not authorized|access .{0,40}prohibited", C.AUTH, "SQLITE_READONLY"),
    (r"interrupted", C.CANCELLED, "SQLITE_INTERRUPT"),
    (
        r"no such (?:table|column|index|function)|syntax error|not a database|incomplete input",
        C.INVALID,
        None,
    ),
)

_REDIS: dict[str, C] = {
    "LOADING": C.UNAVAILABLE,
    "BUSY": C.UNAVAILABLE,
    "TRYAGAIN": C.UNAVAILABLE,
    "CLUSTERDOWN": C.UNAVAILABLE,
    "MASTERDOWN": C.UNAVAILABLE,
    "READONLY": C.UNAVAILABLE,
    "NOREPLICAS": C.UNAVAILABLE,
    "OOM": C.RESOURCE_EXHAUSTED,
    "NOAUTH": C.AUTH,
    "WRONGPASS": C.AUTH,
    "NOPERM": C.AUTH,
}

_MYSQL: dict[int, C] = {
    **dict.fromkeys((1205, 1213, 1040, 1053, 1203, 1290), C.UNAVAILABLE),
    **dict.fromkeys((2002, 2003, 2005, 2006, 2013, 2055), C.NETWORK),
    **dict.fromkeys((1044, 1045, 1142, 1227), C.AUTH),
    **dict.fromkeys((1062, 1451, 1452, 1586), C.CONFLICT),
    **dict.fromkeys((1049,), C.NOT_FOUND),
    **dict.fromkeys((1054, 1064, 1146, 1364, 1406), C.INVALID),
    **dict.fromkeys((3024, 1969), C.TIMEOUT),
    1153: C.OVERFLOW,  # larger than max_allowed_packet
}


def sqlstate_finding(error: object) -> Finding | None:
    """By `sqlstate` (psycopg, asyncpg) or `pgcode` (psycopg2); None when the exception carries neither."""
    state = read(error, "sqlstate") or read(error, "pgcode")
    if not isinstance(state, str) or not _SQLSTATE.fullmatch(state):
        return None
    if state == "57014":  # cancelled, by the server's statement_timeout or by a person
        timed_out = "timeout" in read_text(error, 2_000)
        return Finding(C.TIMEOUT if timed_out else C.CANCELLED, state)
    category = _SQLSTATES.get(state) or _SQLSTATES.get(state[:2])
    return Finding(category, state) if category else None


def postgres_finding(error: object) -> Finding:
    """An error of a PostgreSQL driver: by SQLSTATE, else by what was said while connecting."""
    found = sqlstate_finding(error)
    if found is not None:
        return found
    said = _by_words(_CONNECTING, read_text(error, 4_000))
    # Without a SQLSTATE the server never answered a statement: the connection is at fault.
    return said or Finding(C.NETWORK, NETWORK_ERROR)


def sqlite_finding(error: object) -> Finding | None:
    """An error of sqlite3, by its words, which are the same on every Python version."""
    return _by_words(_SQLITE, read_text(error, 4_000))


def redis_finding(error: object) -> Finding:
    """An error reply of Redis, by its first word."""
    word = read_text(error, 200).partition(" ")[0].rstrip(":")
    category = _REDIS.get(word)
    return Finding(category, word) if category else Finding(C.INVALID)


def mysql_finding(error: object) -> Finding | None:
    """An error of a MySQL driver, by the server's number, which stands first in `args` or in `errno`."""
    args = read(error, "args")
    first = args[0] if isinstance(args, tuple) and args else None  # pyright: ignore[reportUnknownVariableType]
    number = as_number(read(error, "errno")) or as_number(first)  # pyright: ignore[reportUnknownArgumentType]
    category = _MYSQL.get(int(number)) if number else None
    return Finding(category, str(int(number))) if category and number else None


def _by_words(table: tuple[tuple[str, C, str | None], ...], text: str) -> Finding | None:
    for pattern, category, code in table:
        if re.search(pattern, text, re.IGNORECASE):
            return Finding(category, code)
    return None


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
