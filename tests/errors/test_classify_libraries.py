"""Brokers, mail, SSH, databases and services with codes of their own; what an error carries comes first."""

import enum
import smtplib
from types import SimpleNamespace
from typing import Any

import pytest

from prefect_resilience import ErrorCategory as C
from prefect_resilience import classify
from prefect_resilience.errors.classify.table import blocks, read_table
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


NEO4J, TRINO = "neo4j.exceptions.Neo4jError", "trino.exceptions.TrinoQueryError"
CLICKHOUSE, GQL = "clickhouse_driver.errors.Error", "gql.transport.exceptions.TransportQueryError"

CODES = [
    (made(NEO4J, code="Neo.TransientError.Transaction.DeadlockDetected"), C.UNAVAILABLE),
    (made(NEO4J, code="Neo.ClientError.Security.AuthenticationRateLimit"), C.RATE_LIMIT),
    (made(NEO4J, code=5), C.UNEXPECTED),
    (made(NEO4J, code="else"), C.UNEXPECTED),
    (made(TRINO, error_name="PERMISSION_DENIED", error_type="USER_ERROR"), C.AUTH),
    (made(TRINO, error_name="ELSE", error_type="EXTERNAL"), C.UNAVAILABLE),
    (made(TRINO, error_name="ELSE", error_type="ELSE"), C.UNEXPECTED),
    (made("trino.exceptions.HttpError", "error 429: slow down"), C.RATE_LIMIT),
    (made("trino.exceptions.HttpError", "no status"), C.UNEXPECTED),
    (made(CLICKHOUSE, "x", code=202), C.RATE_LIMIT),
    (made(CLICKHOUSE, "x", code=4711), C.UNEXPECTED),
    (made("clickhouse_connect.driver.exceptions.Error", "x"), C.UNEXPECTED),
    (made("ftplib.Error", "421 Too many connections"), C.UNAVAILABLE),
    (made("ftplib.Error", "530 Login incorrect"), C.AUTH),
    (made("ftplib.Error", "gone"), C.UNEXPECTED),
    (made("imaplib.error", "[ALERT] x [UNAVAILABLE] y"), C.UNAVAILABLE),
    (made("imaplib.error", "[ALERT] Too many simultaneous connections. (Failure)"), C.RATE_LIMIT),
    (made("imaplib.error", "x"), C.UNEXPECTED),
    (made("poplib.error_proto", b"-ERR [IN-USE] Do you have another POP session running?"), C.UNAVAILABLE),
    (made("ldap3.core.exceptions.LDAPBindError", "bind not successful - invalidCredentials"), C.AUTH),
    (made("ldap3.core.exceptions.LDAPBindError", "x"), C.UNEXPECTED),
    (made("asyncpg.exceptions.InterfaceError", "cannot call: connection is closed"), C.NETWORK),
    (made("asyncpg.exceptions.InterfaceError", "expects 2 arguments"), C.UNEXPECTED),
    (made(GQL, errors=[{"message": "slow", "extensions": {"code": "THROTTLED"}}]), C.RATE_LIMIT),
    (made("gitlab.exceptions.GitlabError", response_code=503), C.UNAVAILABLE),
    (made("pymssql.Error", (1205, b"deadlock")), C.UNAVAILABLE),
    (made("somebodys.Wrapper", original_exception=ConnectionResetError()), C.NETWORK),
]  # fmt: skip


@pytest.mark.parametrize(("error", "category"), CODES, ids=lambda value: str(value)[:40])
def test_services_with_codes_of_their_own(error: BaseException, category: C) -> None:
    assert classify(error).category is category


NAMES: dict[C, str] = {
    C.TIMEOUT: "LockTimeout OperationTimedOut LDAPTimeLimitExceededResult QueryDeadlineExceeded",
    C.NETWORK: "ConnectionLost ConnectionClosedError NoServersError StaleConnectionError LDAPSocketOpenError "
    "TransportClosed DisconnectError NetworkError ConnectionFailure",
    C.UNAVAILABLE: "TemporarilyUnavailable LDAPBusyResult OverloadedErrorMessage IsBootstrappingErrorMessage "
    "TransientError Aborted NotALeader DeadlockError Http503Error ServerBusyError",
    C.RATE_LIMIT: "ApiRateLimitError TooManyRequestsException ThrottledException FloodWaitError Http429Error",
    C.AUTH: "Unauthorized Unauthenticated AccessDeniedException PermissionDenied InvalidToken "
    "AuthFailedError LDAPInvalidCredentialsResult NoAuthError LoginFailure",
    C.NOT_FOUND: "ObjectNotFound NoSuchKey DoesNotExist NoNodeError LDAPNoSuchObjectResult",
    C.CONFLICT: "ObjectAlreadyExists ResourceConflict DuplicateKeyError BadVersionError IntegrityError",
    C.INVALID: "InvalidRequest BadRequest SyntaxException ParserError ProgrammingError TimeoutConfigError",
    C.SERVER_ERROR: "InternalServerException RemoteServerError",
    C.RESOURCE_EXHAUSTED: "OutOfMemoryException QuotaExceeded DiskFull",
    C.AGENT_CRASH: "WorkerLostError",
    C.UNEXPECTED: "Boom OrderRejected JobAborted SessionExpired InternalError InsufficientFunds "
    "OrderCancelled NeuralNetworkError Networking Error Http200Response " + "X" * 101 + "Timeout",
}


@pytest.mark.parametrize(
    ("name", "category"), [(name, category) for category, names in NAMES.items() for name in names.split()]
)
def test_a_name_that_says_it(name: str, category: C) -> None:
    assert classify(made(f"somebody.sdk.{name}")).category is category


def test_a_base_s_name_says_it_too_and_the_nearest_counts() -> None:
    base: Any = made("sdk.NetworkError").__class__
    assert classify(made("sdk.Gone", base=base)).category is C.NETWORK
    assert classify(made("sdk.Unauthorized", base=base)).category is C.AUTH


def test_a_known_cause_says_more_than_a_name() -> None:
    error = made("sdk.ConnectionFailed")
    error.__cause__ = FileNotFoundError("x")
    assert classify(error).category is C.NOT_FOUND
    error.__cause__ = made("sdk.Boom")
    assert classify(error).category is C.NETWORK


def test_a_mistake_is_never_tried_again_for_its_name() -> None:
    assert classify(made("shop.OrderTimeout", base=ValueError)).category is C.UNEXPECTED
    assert classify(made("shop.OrderNotFound", base=LookupError)).category is C.NOT_FOUND


class Code(enum.Enum):
    UNAVAILABLE = "unavailable"
    RATE_LIMITED = 429


class Tree(Exception):
    """A client's own error around another, in an attribute."""

    def __init__(self, inner: BaseException, place: str = "error") -> None:
        super().__init__("failed")
        setattr(self, place, inner)


def answer(status: int, **headers: str) -> Any:
    return SimpleNamespace(
        status_code=status, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


def said(name: str) -> Any:
    return made(f"shop.{name}", "no")


def raised_from(outer: BaseException, cause: BaseException) -> BaseException:
    outer.__cause__ = cause
    return outer


REFUSED = ConnectionRefusedError(111, "refused")
CARRIED = [
    # the status is where the client put it
    (made("shop.Failure", "x", http_code=503), C.UNAVAILABLE, None),
    (made("shop.Failure", "x", http_status_code=404), C.NOT_FOUND, None),
    (made("shop.Failure", "x", status=Code.RATE_LIMITED), C.RATE_LIMIT, None),
    (made("shop.Failure", "x", response_info=answer(429, Retry_After="3")), C.RATE_LIMIT, 3),
    (made("shop.Failure", "x", resp={"status": "403", "retry-after": "7"}, status_code=403), C.RATE_LIMIT, 7),
    (said("Failure").with_traceback(None), C.UNEXPECTED, None),
    (made("shop.Failure", "HTTP status 502"), C.UNAVAILABLE, None),
    (RuntimeError("the shop answered with status code 503"), C.UNAVAILABLE, None),
    (ValueError("HTTP status 502 is no price"), C.UNEXPECTED, None),
    (made("shop.Failure", "connect: [Errno 111] Connection refused"), C.NETWORK, None),
    (made("shop.Failure", "tcp connect error: Connection refused (os error 111)"), C.NETWORK, None),
    # codes of remote procedure calls, in an enum
    (made("shop.Failure", "x", status=Code.UNAVAILABLE), C.UNAVAILABLE, None),
    # what it says of a retry
    (made("shop.Failure", "x", retriable=True), C.UNAVAILABLE, None),
    (made("shop.Failure", "x", is_retryable=lambda: True), C.UNAVAILABLE, None),
    (made("shop.Failure", "x", retriable=False), C.UNEXPECTED, None),
    (made("shop.TopicNotFound", "x", retriable=True), C.UNAVAILABLE, None),
    (made("shop.RequestTimedOut", "x", retriable=True), C.TIMEOUT, None),
    # a wait of its own
    (made("shop.TooManyRequests", "x", retry_after=5), C.RATE_LIMIT, 5),
    (made("shop.TooManyRequests", "x", back_off=6), C.RATE_LIMIT, 6),
    (made("shop.ServiceUnavailable", "x", error=SimpleNamespace(retry_after_s=8)), C.UNAVAILABLE, 8),
    (made("shop.Busy", "x", retry_after_s=9), C.RATE_LIMIT, 9),
    (made("shop.Busy", "x", retry_after_ms=1500), C.RATE_LIMIT, 1.5),
    (
        raised_from(
            made("shop.Throttled", "x"), made("http.Failure", "x", response=answer(429, Retry_After="4"))
        ),
        C.RATE_LIMIT,
        4,
    ),
    # the cause is precise, the error around it vague
    (raised_from(made("openai.APIConnectionError", "x"), TimeoutError("x")), C.TIMEOUT, None),
    (
        raised_from(
            made("openai.APIConnectionError", "x"), made("ssl.SSLError", "[SSL: CERTIFICATE_VERIFY_FAILED]")
        ),
        C.AUTH,
        None,
    ),
    (raised_from(made("azure.core.ClientAuthenticationError", "x"), REFUSED), C.NETWORK, None),
    (raised_from(made("azure.core.ClientAuthenticationError", "x"), KeyError("x")), C.AUTH, None),
    (Tree(REFUSED), C.NETWORK, None),
    (Tree(TimeoutError("x"), "inner"), C.TIMEOUT, None),
    (made("shop.Failure", REFUSED), C.NETWORK, None),
    # an allowance is used up, a size is too big, a server cannot do it
    (made("shop.Failure", "monthly unit limit reached", status_code=429), C.RESOURCE_EXHAUSTED, None),
    (made("shop.Failure", "no budget is left", status_code=402), C.RESOURCE_EXHAUSTED, None),
    (made("shop.Failure", "card declined", status_code=402), C.INVALID, None),
    (made("shop.QuotaExceeded", "x", status_code=456), C.RESOURCE_EXHAUSTED, None),
    (made("shop.Failure", "x", status_code=507), C.RESOURCE_EXHAUSTED, None),
    # names, last and by whole words
    (said("SerializationError"), C.INVALID, None),
    (said("MessageTooBig"), C.OVERFLOW, None),
    (said("Configurator"), C.UNEXPECTED, None),
    (said("ForbiddenCityNotVisited"), C.AUTH, None),
    (said("Http503Failure"), C.UNAVAILABLE, None),
    (said("Http200Failure"), C.UNEXPECTED, None),
    (said("N" * 101), C.UNEXPECTED, None),
]


@pytest.mark.parametrize(("error", "category", "wait"), CARRIED, ids=lambda value: repr(value)[:60])
def test_what_an_error_carries_decides(error: BaseException, category: C, wait: float | None) -> None:
    info = classify(error)
    assert (info.category, info.retry_after) == (category, wait)


def test_a_nearer_name_corrects_the_base() -> None:
    base = type(made("aiormq.exceptions.AMQPConnectionError", "x"))
    refused = type("AuthenticationError", (base,), {"__module__": "aiormq.exceptions"})
    lost = type("ConnectionLost", (base,), {"__module__": "aiormq.exceptions"})
    assert classify(refused("x")).category is C.AUTH
    assert classify(lost("x")).category is C.NETWORK


def test_every_line_of_the_table_is_read() -> None:
    assert len(blocks()) > 60
    assert all(block.steps for block in blocks().values())
    with pytest.raises(ValueError, match="nonsense"):
        read_table("[shop.Failure]\nnonsense 1 2")
