"""Rules for exceptions that cannot be classified by the name of their class alone."""

from __future__ import annotations

import errno
import signal
from collections.abc import Sequence
from typing import Any

from prefect_resilience.errors.classify import databases, services
from prefect_resilience.errors.classify.http import OVERFLOW_CODE, http_finding
from prefect_resilience.errors.classify.names import BY_BARE_NAME, BY_NAME, text_finding
from prefect_resilience.errors.classify.retry_after import wait_of_value
from prefect_resilience.errors.classify.shapes import (
    as_dict,
    as_number,
    class_names,
    is_bare,
    read,
    read_text,
)
from prefect_resilience.errors.taxonomy import (
    CATEGORY_CODES,
    ErrorKind,
    FailureReason,
    Look,
    Opinion,
    bounded,
    coded,
    found_by_code,
)
from prefect_resilience.errors.taxonomy import ErrorCategory as C

_ERRNOS = coded(
    network="""
            ENETUNREACH EHOSTUNREACH ENETDOWN ENETRESET ECONNREFUSED ECONNRESET ENOTCONN EADDRNOTAVAIL
            """,
    resource_exhausted="ENOSPC EDQUOT EMFILE ENFILE ENOMEM",
    unavailable="EAGAIN EBUSY EINTR ESTALE EDEADLK",
    conflict="EADDRINUSE ENOTEMPTY",
    invalid="ENAMETOOLONG EINVAL ELOOP",
    timeout="ETIMEDOUT",
    infrastructure="EIO",
    auth="EROFS",
)
_DBAPI = {"OperationalError": Opinion(C.UNAVAILABLE), "IntegrityError": Opinion(C.CONFLICT)}


def _os_error(error: object, now: float) -> Opinion | None:
    """OSError by its number; the code is the number's name, such as ENOSPC."""
    number = read(error, "errno")
    return found_by_code(_ERRNOS, errno.errorcode.get(number) if isinstance(number, int) else None)


def _by_exit_code(name: str, category: C) -> Look:
    """A rule: a process that exited has this category; a process that a signal ended is an `agent_crash`."""

    def look(error: object, now: float) -> Opinion:
        code = as_number(read(error, name))
        if code is not None and code < 0:
            return _signalled(-code)
        return Opinion(category, None if code is None else f"EXIT_{code:.0f}")

    return look


def _termination(error: object, now: float) -> Opinion:
    number = as_number(read(error, "signal"))
    return _signalled(number) if number else Opinion(C.AGENT_CRASH)


def _signalled(number: float) -> Opinion:
    try:
        return Opinion(C.AGENT_CRASH, signal.Signals(int(number)).name)
    except ValueError:
        return Opinion(C.AGENT_CRASH, f"SIGNAL_{number:.0f}")


def _circuit_open(error: object, now: float) -> Opinion:
    wait = as_number(read(error, "retry_in"))
    name = read(error, "name")
    details = {"circuit": name} if isinstance(name, str) else None
    return Opinion(C.CIRCUIT_OPEN, "CIRCUIT_OPEN", None if wait is None else max(0.0, wait), details)


def _prefect_api(error: object, now: float) -> Opinion | None:
    """Prefect's own API: a status of 500 or more is a failure of the infrastructure, not of the work."""
    found = http_finding(error, now)
    if found is None or (found.details or {}).get("status", 0) < 500:
        return found
    return found._replace(category=C.INFRASTRUCTURE)


def _wrapped_by_sqlalchemy(error: object, now: float) -> Opinion | None:
    """SQLAlchemy's wrapper around a driver's exception, which it keeps as `orig`."""
    if read(error, "connection_invalidated") is True:
        return Opinion(C.NETWORK, CATEGORY_CODES[C.NETWORK])
    original = read(error, "orig")
    found = find(original, now) if isinstance(original, BaseException) and original is not error else None
    # For an unknown driver, two classes of the DB-API still give a category.
    return found or _DBAPI.get(type(error).__name__)


def _by_reason(error: object, now: float) -> Opinion | None:
    """urllib's and urllib3's wrappers keep the cause in `reason`."""
    reason = read(error, "reason")
    found = find(reason, now) if isinstance(reason, BaseException) and reason is not error else None
    return found or http_finding(error, now) or text_finding(read_text(error, 4_000))


def _google_auth(error: object, now: float) -> Opinion | None:
    """google-auth marks the failures to get a token that can be retried."""
    return Opinion(C.UNAVAILABLE) if read(error, "retryable") is True else None


# -- failures of this package's own classes

MOST_VIOLATIONS = 100
LONGEST_OUTPUT = 2_000
"""Characters of the original output in the details; the partial output has more of it."""

_BY_REASON = coded(
    not_found="context_retrieval_failure",
    validation="""
        context_matching_failure context_parsing_failure xml_validation_failure output_format_failure
        """,
    timeout="execution_timeout",
    cancelled="execution_halted",
    subtask="subtask_failure",
    invalid="input_validation_failure",
    unexpected="unexpected_error",
)


def _resource_exhausted(error: object, now: float) -> Opinion:
    known = {name: read(error, name) for name in ("resource", "usage", "limit")}
    details = {name: value for name, value in known.items() if value is not None}
    return Opinion(C.RESOURCE_EXHAUSTED, details=details)


def _task_failure(error: object, now: float) -> Opinion:
    """By its reason. A context matching failure is retryable: the next attempt may match better."""
    reason = FailureReason(str(read(error, "reason")))
    again = True if reason is FailureReason.CONTEXT_MATCHING_FAILURE else None
    details: dict[str, Any] = as_dict(read(error, "details"))
    return Opinion(_BY_REASON[reason.value], reason.value, details=details, retryable=again, reason=reason)


def _returned_state(error: object, now: float) -> Opinion:
    from prefect_resilience.errors.classify.classify import classify

    info = classify(read(error, "state"), now=now)
    about = info.model_dump(include={"retry_after", "details", "kind", "retryable", "reason"})
    return Opinion(info.category, info.code, **about)


def _subtask_error(error: object, now: float) -> Opinion:
    request = {"type": "step", "name": read(error, "name"), "inputs": as_dict(read(error, "inputs"))}
    step = read(error, "failed_step")
    details = {"subtask_request": request, "failed_step": request["name"] if step is None else step}
    return Opinion(C.SUBTASK, details=details)


def _output_format_error(error: object, now: float) -> Opinion:
    details: dict[str, Any] = {
        "expected_type": read(error, "expected_type"),
        "actual_type": read(error, "actual_type"),
        "violations": list(read(error, "violations") or ())[:MOST_VIOLATIONS],
    }
    original = read(error, "original_output")
    if original is not None:
        text = original if isinstance(original, str) else read_text(original)
        details["original_output"] = (
            original if len(text) <= LONGEST_OUTPUT else bounded(text, LONGEST_OUTPUT)
        )
    return Opinion(C.VALIDATION, details=details)


# -- the table: for each class a rule, an opinion, or several of them; the first one with an opinion counts

_Looks = Look | Opinion | Sequence[Look | Opinion]
_TABLE: tuple[tuple[str, _Looks], ...] = (
    # SystemExit has a `code` that is not an HTTP status.
    ("builtins.SystemExit", Opinion(C.CANCELLED, CATEGORY_CODES[C.CANCELLED])),
    ("builtins.OSError", _os_error),
    ("subprocess.CalledProcessError", _by_exit_code("returncode", C.TOOL_ERROR)),
    ("xml.ParseError", Opinion(C.VALIDATION, reason=FailureReason.XML_VALIDATION_FAILURE)),
    ("urllib3.MaxRetryError urllib.URLError", _by_reason),
    ("prefect.TerminationSignal", _termination),
    ("prefect.PrefectHTTPStatusError", _prefect_api),
    # The flow run was not resumed in time. It stays paused, so another attempt would fail at once.
    (
        "prefect.FlowPauseTimeout",
        Opinion(C.TIMEOUT, CATEGORY_CODES[C.TIMEOUT], kind=ErrorKind.PERMANENT, retryable=False),
    ),
    ("prefect_resilience.ProcessDied", _by_exit_code("exit_code", C.AGENT_CRASH)),
    ("prefect_resilience.CircuitOpenError", _circuit_open),
    ("prefect_resilience.StateReturned", _returned_state),
    ("prefect_resilience.ConfigurationError", Opinion(C.INVALID)),
    ("prefect_resilience.ResourceExhausted", _resource_exhausted),
    ("prefect_resilience.TaskFailure", _task_failure),
    ("prefect_resilience.StreamCut", lambda error, now: read(error, "found")),
    ("builtins.ValueError", services.aws_event),
    ("prefect_resilience.SubtaskError", _subtask_error),
    ("prefect_resilience.OutputFormatError", _output_format_error),
    ("botocore.ClientError", services.aws_finding),
    ("grpc.RpcError grpclib.GRPCError", services.grpc_finding),
    ("google.GoogleAPICallError", services.google_finding),
    ("google.GoogleAuthError", _google_auth),
    ("databricks.InternalError", Opinion(C.SERVER_ERROR)),
    ("psycopg.IntegrityError", [databases.sqlstate_finding, Opinion(C.CONFLICT)]),
    (
        "psycopg.ProgrammingError psycopg.DataError psycopg.NotSupportedError",
        [databases.sqlstate_finding, Opinion(C.INVALID)],
    ),
    ("psycopg.OperationalError psycopg2.OperationalError", databases.postgres),
    ("pg8000.DatabaseError", databases.pg8000_finding),
    ("asyncpg.InterfaceError", services.asyncpg_client),
    ("sqlite3.Error", databases.sqlite),
    ("sqlalchemy.StatementError", _wrapped_by_sqlalchemy),
    ("redis.ResponseError", databases.redis_finding),
    ("pymysql.MySQLError MySQLdb.MySQLError mysql.Error", databases.mysql_finding),
    ("pyodbc.Error pymssql.Error pymssql._mssql.Error", databases.sql_server_finding),
    ("oracledb.Error cx_Oracle.Error", databases.oracle_finding),
    ("pymongo.PyMongoError", databases.mongo_finding),
    ("snowflake.Error", databases.snowflake_finding),
    ("clickhouse_driver.Error clickhouse_connect.Error", services.clickhouse_finding),
    ("neo4j.Neo4jError", services.neo4j),
    ("trino.TrinoQueryError", services.trino_finding),
    ("trino.HttpError", services.trino_http_finding),
    ("cimpl.KafkaException confluent_kafka.KafkaException kafka.KafkaError", services.kafka_finding),
    ("pika.AMQPError pika.ConnectionClosed amqp.AMQPError", services.amqp),
    (
        """
            smtplib.SMTPException aiosmtplib.SMTPException smtplib.SMTPAuthenticationError
            aiosmtplib.SMTPAuthenticationError
            """,
        services.smtp_finding,
    ),
    ("paramiko.SSHException", services.ssh),
    ("ftplib.Error", services.ftp),
    ("imaplib.error poplib.error_proto", services.mailbox),
    ("ldap3.LDAPBindError", services.ldap_bind),
    # These may have only another system's text: an error in the middle of a stream has no status.
    (
        """
            openai.APIError anthropic.APIError groq.APIError google.APIError cohere.ApiError
            mistralai.SDKError mistralai.MistralError ollama.ResponseError litellm.APIError
            huggingface_hub.InferenceTimeoutError pydantic_ai.ModelAPIError httpx_sse.SSEError
            dbt_common.DbtDatabaseError dbt.DbtDatabaseError dbt_common.DbtRuntimeError databricks.Error
            google.GoogleCloudError elastic_transport.TransportError opensearchpy.TransportError
            stripe.APIConnectionError
            """,
        [http_finding, databases.sqlstate_finding, databases.worded_finding],
    ),
)
_LOOKS = {name: look for names, look in _TABLE for name in names.split()}


def _look(looks: _Looks, error: BaseException, now: float) -> Opinion | None:
    several = [looks] if isinstance(looks, Opinion) or callable(looks) else looks
    found = (look if isinstance(look, Opinion) else look(error, now) for look in several)
    return next((one for one in found if one is not None), None)


def find(error: BaseException, now: float) -> Opinion | None:
    """The opinion of the default rules on one exception, without its causes; None means no opinion.

    The order: a rule for the class, a declared `error_category`, HTTP by shape, SQLSTATE by shape, the
    name of the class or of a base, the bare name. A bare exception of Python has nothing but its class.
    """
    names = class_names(error)
    for name in names:
        look = _LOOKS.get(name)
        if name in BY_NAME and look is None:
            break  # a nearer class is known by name; the rule of a base is less exact
        found = _look(look, error, now) if look else None
        if found is not None:
            return found
    if is_bare(error):
        return _named(error, names)
    found = (
        _declared(error)
        or http_finding(error, now)
        or databases.sqlstate_finding(error)
        or _named(error, names)
    )
    if found is not None and found.category not in (C.INVALID, C.SUBTASK):
        return found
    return _too_big(error, names) or found or _asks_for_a_wait(error, now)


def _too_big(error: BaseException, names: list[str]) -> Opinion | None:
    """A class with a name that means that the work is too big, whatever its status is."""
    bare = {name.rpartition(".")[2] for name in names}
    named = next((name for name in bare if BY_BARE_NAME.get(name) is C.OVERFLOW), None)
    return Opinion(C.OVERFLOW, OVERFLOW_CODE) if named else None


def _asks_for_a_wait(error: object, now: float) -> Opinion | None:
    """An unknown exception that has a `retry_after`, such as a chat client's flood control."""
    wait = wait_of_value(read(error, "retry_after"), now)
    return None if wait is None else Opinion(C.RATE_LIMIT, retry_after=wait)


def _declared(error: BaseException) -> Opinion | None:
    """The category that the class declares: `error_category = "tool_error"`."""
    declared = read(error, "error_category")
    try:
        return Opinion(C(declared)) if isinstance(declared, str) else None
    except ValueError:
        return None


def _named(error: BaseException, names: list[str]) -> Opinion | None:
    category = next((BY_NAME[name] for name in names if name in BY_NAME), None)
    if category is None:
        bare = (name.rpartition(".")[2] for name in names)
        category = next((BY_BARE_NAME[name] for name in bare if name in BY_BARE_NAME), None)
    if category is None:
        return None
    if category is C.NETWORK and "CERTIFICATE_VERIFY_FAILED" in read_text(error, 4_000):
        # The peer's certificate is invalid; a retry does not change that.
        return Opinion(C.AUTH, "CERTIFICATE_VERIFY_FAILED")
    return Opinion(category, CATEGORY_CODES.get(category))
