"""Exceptions that need a closer look than their name, each with the function that looks."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable

from .cloud import aws_finding, google_finding, grpc_finding
from .databases import (
    mysql_finding,
    postgres_finding,
    redis_finding,
    sqlite_finding,
    sqlstate_finding,
)
from .http import http_finding
from .info import Finding
from .names import BY_BARE_NAME, BY_NAME, CATEGORY_CODES
from .own import output_format_error, resource_exhausted, subtask_error, task_failure
from .shapes import as_number, class_names, read, read_text
from .taxonomy import ErrorCategory as C
from .taxonomy import FailureReason

Look = Callable[[object, float], Finding | None]

_ERRNOS: dict[int, C] = {
    **dict.fromkeys((errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET), C.NETWORK),
    **dict.fromkeys((errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOTCONN, errno.EADDRNOTAVAIL), C.NETWORK),
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM), C.RESOURCE_EXHAUSTED
    ),
    **dict.fromkeys((errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ESTALE, errno.EDEADLK), C.UNAVAILABLE),
    **dict.fromkeys((errno.EADDRINUSE, errno.ENOTEMPTY), C.CONFLICT),
    **dict.fromkeys((errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP), C.INVALID),
    errno.ETIMEDOUT: C.TIMEOUT,
    errno.EIO: C.INFRASTRUCTURE,
    errno.EROFS: C.AUTH,
}


_DBAPI = {"OperationalError": Finding(C.UNAVAILABLE), "IntegrityError": Finding(C.CONFLICT)}


def _os_error(error: object, now: float) -> Finding | None:
    """OSError by its number; the code is the number's name, such as ENOSPC."""
    number = read(error, "errno")
    category = _ERRNOS.get(number) if isinstance(number, int) else None
    if category is None:
        return None
    return Finding(category, CATEGORY_CODES.get(category) or errno.errorcode.get(number))


def _called_process(error: object, now: float) -> Finding:
    """A command that failed is a tool's report; one that a signal ended is a process that died."""
    returned = as_number(read(error, "returncode"))
    if returned is None or returned >= 0:
        return Finding(C.TOOL_ERROR, None if returned is None else f"EXIT_{returned:.0f}")
    try:
        return Finding(C.AGENT_CRASH, signal.Signals(int(-returned)).name)
    except ValueError:
        return Finding(C.AGENT_CRASH, f"SIGNAL_{-returned:.0f}")


def _termination(error: object, now: float) -> Finding:
    number = as_number(read(error, "signal"))
    return _called_process(_Returned(-number), now) if number else Finding(C.AGENT_CRASH)


class _Returned:
    def __init__(self, returncode: float) -> None:
        self.returncode = returncode


def _circuit_open(error: object, now: float) -> Finding:
    wait = as_number(read(error, "retry_in"))
    name = read(error, "name")
    details = {"circuit": name} if isinstance(name, str) else None
    return Finding(C.CIRCUIT_OPEN, "CIRCUIT_OPEN", None if wait is None else max(0.0, wait), details)


def _prefect_api(error: object, now: float) -> Finding | None:
    """Prefect's own API: when it fails, the machinery failed and not the work."""
    found = http_finding(error, now)
    if found is None or (found.details or {}).get("status", 0) < 500:
        return found
    return found._replace(category=C.INFRASTRUCTURE)


def _smtp(error: object, now: float) -> Finding | None:
    """SMTP replies, RFC 5321: 4yz passes, 5yz stays."""
    code = as_number(read(error, "smtp_code"))
    if code is None:
        return None
    return Finding(C.UNAVAILABLE if code < 500 else C.INVALID, f"{code:.0f}")


def _xml(error: object, now: float) -> Finding:
    return Finding(C.VALIDATION, reason=FailureReason.XML_VALIDATION_FAILURE)


def _wrapped_by_sqlalchemy(error: object, now: float) -> Finding | None:
    """SQLAlchemy's wrapper around a driver's exception, which it keeps as `orig`."""
    if read(error, "connection_invalidated") is True:
        return Finding(C.NETWORK, CATEGORY_CODES[C.NETWORK])
    original = read(error, "orig")
    found = find(original, now) if isinstance(original, BaseException) and original is not error else None
    # For a driver that nobody here knows, the DB-API's own classes still tell two things apart.
    return found or _DBAPI.get(type(error).__name__)


def _exit(error: object, now: float) -> Finding:
    """SystemExit carries a `code` that is no HTTP status."""
    return Finding(C.CANCELLED, CATEGORY_CODES[C.CANCELLED])


_LOOKS: dict[str, Look] = {
    "builtins.SystemExit": _exit,
    "subprocess.CalledProcessError": _called_process,
    "prefect.TerminationSignal": _termination,
    "prefect.PrefectHTTPStatusError": _prefect_api,
    "prefect_resilience.CircuitOpenError": _circuit_open,
    "prefect_resilience.ConfigurationError": lambda error, now: Finding(C.INVALID),
    "prefect_resilience.ResourceExhausted": resource_exhausted,
    "prefect_resilience.TaskFailure": task_failure,
    "prefect_resilience.SubtaskError": subtask_error,
    "prefect_resilience.OutputFormatError": output_format_error,
    "botocore.ClientError": aws_finding,
    "grpc.RpcError": grpc_finding,
    "grpclib.GRPCError": grpc_finding,
    "google.GoogleAPICallError": google_finding,
    "psycopg.IntegrityError": lambda error, now: sqlstate_finding(error) or Finding(C.CONFLICT),
    "psycopg.ProgrammingError": lambda error, now: sqlstate_finding(error) or Finding(C.INVALID),
    "psycopg.DataError": lambda error, now: sqlstate_finding(error) or Finding(C.INVALID),
    "psycopg.NotSupportedError": lambda error, now: sqlstate_finding(error) or Finding(C.INVALID),
    "psycopg.OperationalError": lambda error, now: postgres_finding(error),
    "psycopg2.OperationalError": lambda error, now: postgres_finding(error),
    "sqlite3.Error": lambda error, now: sqlite_finding(error),
    "sqlalchemy.StatementError": _wrapped_by_sqlalchemy,
    "redis.ResponseError": lambda error, now: redis_finding(error),
    "pymysql.MySQLError": lambda error, now: mysql_finding(error),
    "MySQLdb.MySQLError": lambda error, now: mysql_finding(error),
    "mysql.Error": lambda error, now: mysql_finding(error),
    "smtplib.SMTPResponseException": _smtp,
    "xml.ParseError": _xml,
    "builtins.OSError": _os_error,
}


def find(error: BaseException, now: float) -> Finding | None:
    """What the default rules know about one exception, looking at nothing but itself; None is no opinion.

    The order: a closer look by class, a declared `error_category`, HTTP by shape, SQLSTATE by shape, the
    name of the class or of a base, the bare name.
    """
    names = class_names(error)
    for name in names:
        look = _LOOKS.get(name)
        if name in BY_NAME and look is None:
            break  # a nearer class is known by name; a look at a base knows less
        found = look(error, now) if look else None
        if found is not None:
            return found
    return _declared(error) or http_finding(error, now) or sqlstate_finding(error) or _named(error, names)


def _declared(error: BaseException) -> Finding | None:
    """A class may say itself what it means: `error_category = "tool_error"`."""
    declared = read(error, "error_category")
    try:
        return Finding(C(declared)) if isinstance(declared, str) else None
    except ValueError:
        return None


def _named(error: BaseException, names: list[str]) -> Finding | None:
    category = next((BY_NAME[name] for name in names if name in BY_NAME), None)
    if category is None:
        bare = (name.rpartition(".")[2] for name in names)
        category = next((BY_BARE_NAME[name] for name in bare if name in BY_BARE_NAME), None)
    if category is None:
        return None
    if category is C.NETWORK and "CERTIFICATE_VERIFY_FAILED" in read_text(error, 4_000):
        # A peer that cannot prove who it is will not prove it a second later.
        return Finding(C.AUTH, "CERTIFICATE_VERIFY_FAILED")
    return Finding(category, CATEGORY_CODES.get(category))
