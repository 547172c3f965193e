"""Databases: SQLSTATE codes, SQLite's words, Redis's words, MySQL's numbers.

SQLSTATE classes are those of ISO/IEC 9075 and of PostgreSQL's appendix "Error Codes". A statement that lost a
deadlock or met a lock did nothing wrong and may be tried again, so it is `unavailable`.
"""

from __future__ import annotations

import re

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.classify.names import NETWORK_ERROR, TIMEOUT
from prefect_resilience.errors.classify.shapes import as_number, read, read_text
from prefect_resilience.errors.info import Finding
from prefect_resilience.errors.taxonomy import ErrorCategory as C

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
