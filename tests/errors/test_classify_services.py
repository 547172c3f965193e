"""Services with codes of their own, and classes that nobody knows but whose names say what happened."""

from typing import Any

import pytest

from prefect_resilience import ErrorCategory as C
from prefect_resilience import classify
from tests.errors.by_name import made

NEO4J, TRINO = "neo4j.exceptions.Neo4jError", "trino.exceptions.TrinoQueryError"
CLICKHOUSE, GQL = "clickhouse_driver.errors.Error", "gql.transport.exceptions.TransportQueryError"

CASES = [
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


@pytest.mark.parametrize(("error", "category"), CASES, ids=lambda value: str(value)[:40])
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
