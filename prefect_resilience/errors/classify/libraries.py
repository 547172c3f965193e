"""Exceptions that need a closer look than their name, each with the function that looks."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable

from prefect_resilience.errors.classify.cloud import aws_finding, google_finding, grpc_finding
from prefect_resilience.errors.classify.databases import (
    mongo_finding,
    mysql_or_words,
    oracle_finding,
    pg8000_finding,
    postgres_finding,
    redis_finding,
    snowflake_finding,
    sql_server_finding,
    sqlite_finding,
    sqlstate_finding,
    worded_finding,
)
from prefect_resilience.errors.classify.http import OVERFLOW_CODE, http_finding
from prefect_resilience.errors.classify.messages import text_finding
from prefect_resilience.errors.classify.names import BY_BARE_NAME, BY_NAME, CATEGORY_CODES
from prefect_resilience.errors.classify.resources import (
    output_format_error,
    resource_exhausted,
    subtask_error,
    task_failure,
)
from prefect_resilience.errors.classify.retry_after import wait_of_value
from prefect_resilience.errors.classify.services import (
    amqp_finding,
    asyncpg_client_finding,
    clickhouse_finding,
    ftp_finding,
    kafka_finding,
    ldap_bind_finding,
    mailbox_finding,
    neo4j_finding,
    smtp_finding,
    ssh_finding,
    trino_finding,
    trino_http_finding,
)
from prefect_resilience.errors.classify.shapes import as_number, class_names, read, read_text
from prefect_resilience.errors.taxonomy import ErrorCategory as C
from prefect_resilience.errors.taxonomy import ErrorKind, FailureReason, Finding

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


def _process_died(error: object, now: float) -> Finding:
    """A child process that ended before its call did, by a signal or by itself."""
    code = as_number(read(error, "exit_code"))
    ended = Finding(C.AGENT_CRASH) if code is None else _called_process(_Returned(code), now)
    return ended._replace(category=C.AGENT_CRASH)


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


def _pause_timeout(error: object, now: float) -> Finding:
    """Nobody resumed the flow run in time. It stays paused, so that another attempt would fail at once."""
    return Finding(C.TIMEOUT, CATEGORY_CODES[C.TIMEOUT], kind=ErrorKind.PERMANENT, retryable=False)


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


def _by_reason(error: object, now: float) -> Finding | None:
    """urllib's and urllib3's wrappers say why in `reason`."""
    reason = read(error, "reason")
    found = find(reason, now) if isinstance(reason, BaseException) and reason is not error else None
    return found or http_finding(error, now) or text_finding(read_text(error, 4_000))


def _google_auth(error: object, now: float) -> Finding | None:
    """google-auth says itself whether a failure to get a token may be tried again."""
    return Finding(C.UNAVAILABLE) if read(error, "retryable") is True else None


def _by_http_or_words(error: object, now: float) -> Finding | None:
    """By the status or code, else by the words: in the middle of a stream there is nothing but words."""
    return http_finding(error, now) or sqlstate_finding(error) or worded_finding(error, now)


# Exceptions that may carry nothing but another system's text.
_QUOTING = (
    *("openai.APIError", "anthropic.APIError", "groq.APIError", "google.APIError", "cohere.ApiError"),
    *("mistralai.SDKError", "mistralai.MistralError", "ollama.ResponseError", "litellm.APIError"),
    *("huggingface_hub.InferenceTimeoutError", "pydantic_ai.ModelAPIError", "httpx_sse.SSEError"),
    *("dbt_common.DbtDatabaseError", "dbt.DbtDatabaseError", "dbt_common.DbtRuntimeError"),
    *("databricks.Error", "google.GoogleCloudError", "elastic_transport.TransportError"),
    *("opensearchpy.TransportError", "stripe.APIConnectionError"),
)


def _exit(error: object, now: float) -> Finding:
    """SystemExit carries a `code` that is no HTTP status."""
    return Finding(C.CANCELLED, CATEGORY_CODES[C.CANCELLED])


_LOOKS: dict[str, Look] = {
    "builtins.SystemExit": _exit,
    "subprocess.CalledProcessError": _called_process,
    "prefect_resilience.ProcessDied": _process_died,
    "prefect.TerminationSignal": _termination,
    "prefect.PrefectHTTPStatusError": _prefect_api,
    "prefect.FlowPauseTimeout": _pause_timeout,
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
    **dict.fromkeys(("pymysql.MySQLError", "MySQLdb.MySQLError", "mysql.Error"), mysql_or_words),
    **dict.fromkeys(("pyodbc.Error", "pymssql.Error", "pymssql._mssql.Error"), sql_server_finding),
    **dict.fromkeys(("oracledb.Error", "cx_Oracle.Error"), oracle_finding),
    "pg8000.DatabaseError": pg8000_finding,
    "pymongo.PyMongoError": mongo_finding,
    "snowflake.Error": snowflake_finding,
    "cimpl.KafkaException": kafka_finding,
    "confluent_kafka.KafkaException": kafka_finding,
    "kafka.KafkaError": kafka_finding,
    **dict.fromkeys(("pika.AMQPError", "pika.ConnectionClosed", "amqp.AMQPError"), amqp_finding),
    **dict.fromkeys(("smtplib.SMTPException", "aiosmtplib.SMTPException"), smtp_finding),
    **dict.fromkeys(("smtplib.SMTPAuthenticationError", "aiosmtplib.SMTPAuthenticationError"), smtp_finding),
    "paramiko.SSHException": ssh_finding,
    "neo4j.Neo4jError": neo4j_finding,
    "trino.TrinoQueryError": trino_finding,
    "trino.HttpError": trino_http_finding,
    "asyncpg.InterfaceError": asyncpg_client_finding,
    **dict.fromkeys(("clickhouse_driver.Error", "clickhouse_connect.Error"), clickhouse_finding),
    "ftplib.Error": ftp_finding,
    **dict.fromkeys(("imaplib.error", "poplib.error_proto"), mailbox_finding),
    "ldap3.LDAPBindError": ldap_bind_finding,
    "urllib3.MaxRetryError": _by_reason,
    "urllib.URLError": _by_reason,
    "google.GoogleAuthError": _google_auth,
    "databricks.InternalError": lambda error, now: Finding(C.SERVER_ERROR),
    **dict.fromkeys(_QUOTING, _by_http_or_words),
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
    found = _declared(error) or http_finding(error, now) or sqlstate_finding(error) or _named(error, names)
    if found is not None and found.category not in (C.INVALID, C.SUBTASK):
        return found
    return _too_big(error, names) or found or _asks_for_a_wait(error, now)


def _too_big(error: BaseException, names: list[str]) -> Finding | None:
    """A class that says by its name that the work is too big, whatever status it came with."""
    bare = {name.rpartition(".")[2] for name in names}
    named = next((name for name in bare if BY_BARE_NAME.get(name) is C.OVERFLOW), None)
    return Finding(C.OVERFLOW, OVERFLOW_CODE) if named else None


def _asks_for_a_wait(error: object, now: float) -> Finding | None:
    """An exception nobody knows that says when to come back, such as a chat client's flood control."""
    wait = wait_of_value(read(error, "retry_after"), now)
    return None if wait is None else Finding(C.RATE_LIMIT, retry_after=wait)


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
