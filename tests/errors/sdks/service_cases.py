"""More services: clusters, graphs, mailboxes, chat, directories; their own exceptions, as they make them."""

import importlib
from types import SimpleNamespace
from typing import Any

from prefect_resilience import ErrorCategory as C
from tests.errors.sdks.model import Act, Case, Expected, Situations, constructed, of
from tests.errors.sdks.service import Service

BY_CLASS: dict[tuple[str, str], dict[str, C]] = {
    ("kazoo", "kazoo.exceptions"): {
        **dict.fromkeys(("ConnectionLoss", "SessionExpiredError"), C.NETWORK),
        **dict.fromkeys(("OperationTimeoutError", "LockTimeout"), C.TIMEOUT),
        **dict.fromkeys(("NodeExistsError", "BadVersionError"), C.CONFLICT),
        **dict.fromkeys(("AuthFailedError", "NoAuthError"), C.AUTH),
        "NoNodeError": C.NOT_FOUND,
    },
    ("nats-py", "nats.errors"): {
        **dict.fromkeys(("NoServersError", "ConnectionClosedError", "StaleConnectionError"), C.NETWORK),
        "TimeoutError": C.TIMEOUT,
        "NoRespondersError": C.UNAVAILABLE,
        "AuthorizationError": C.AUTH,
        "MaxPayloadError": C.OVERFLOW,
    },
    ("ldap3", "ldap3.core.exceptions"): {
        **dict.fromkeys(("LDAPBusyResult", "LDAPUnavailableResult"), C.UNAVAILABLE),
        **dict.fromkeys(("LDAPTimeLimitExceededResult", "LDAPResponseTimeoutError"), C.TIMEOUT),
        **dict.fromkeys(("LDAPSocketReceiveError", "LDAPSocketOpenError"), C.NETWORK),
        "LDAPInvalidCredentialsResult": C.AUTH,
        "LDAPNoSuchObjectResult": C.NOT_FOUND,
        "LDAPEntryAlreadyExistsResult": C.CONFLICT,
    },
    ("databricks-sdk", "databricks.sdk.errors"): {
        **dict.fromkeys(("TemporarilyUnavailable", "Aborted"), C.UNAVAILABLE),
        **dict.fromkeys(("TooManyRequests", "RequestLimitExceeded"), C.RATE_LIMIT),
        **dict.fromkeys(("PermissionDenied", "Unauthenticated"), C.AUTH),
        **dict.fromkeys(("AlreadyExists", "ResourceConflict"), C.CONFLICT),
        "NotFound": C.NOT_FOUND,
        "InternalError": C.SERVER_ERROR,
        "DeadlineExceeded": C.TIMEOUT,
        "BadRequest": C.INVALID,
        "Cancelled": C.CANCELLED,
    },
    ("hvac", "hvac.exceptions"): {
        **dict.fromkeys(("Forbidden", "Unauthorized"), C.AUTH),
        **dict.fromkeys(("VaultDown", "VaultNotInitialized", "BadGateway"), C.UNAVAILABLE),
        "InvalidPath": C.NOT_FOUND,
        "RateLimitExceeded": C.RATE_LIMIT,
        "InternalServerError": C.SERVER_ERROR,
        "InvalidRequest": C.INVALID,
    },
    ("billiard", "billiard.exceptions"): {
        "SoftTimeLimitExceeded": C.TIMEOUT,
        "WorkerLostError": C.AGENT_CRASH,
    },
    ("typesense", "typesense.exceptions"): {
        "ServiceUnavailable": C.UNAVAILABLE,
        "Timeout": C.TIMEOUT,
        "RequestUnauthorized": C.AUTH,
        "ObjectNotFound": C.NOT_FOUND,
        "ObjectAlreadyExists": C.CONFLICT,
    },
    ("asyncssh", "asyncssh"): {
        "ConnectionLost": C.NETWORK,
        "PermissionDenied": C.AUTH,
        "SFTPNoSuchFile": C.NOT_FOUND,
    },
    ("duckdb", "duckdb"): {
        "OutOfMemoryException": C.RESOURCE_EXHAUSTED,
        "TransactionException": C.UNAVAILABLE,
        "ConstraintException": C.CONFLICT,
        "ParserException": C.INVALID,
        "ConversionException": C.INVALID,
    },
    ("asyncpg", "asyncpg.exceptions"): {
        "SerializationError": C.UNAVAILABLE,
        "TooManyConnectionsError": C.UNAVAILABLE,
        "UniqueViolationError": C.CONFLICT,
        "InvalidPasswordError": C.AUTH,
    },
}
"""What says by its class alone what happened: the distribution, the module, its classes."""


def neo4j(code: str) -> Act:
    def act(_: Service) -> object:
        hydrated: Any = importlib.import_module("neo4j.exceptions").Neo4jError
        return hydrated._hydrate_neo4j(code=code, message="no")

    return act


def trino(kind: str, name: str) -> Act:
    told = {"errorType": kind, "errorName": name, "message": "no", "errorCode": 1}
    return constructed("trino.exceptions.TrinoQueryError", told, "q1")


def graphql(**error: Any) -> Act:
    told = [{"message": "no", **error}]
    return constructed("gql.transport.exceptions.TransportQueryError", "no", errors=told)


def unreachable(_: Service) -> object:
    cluster: Any = importlib.import_module("cassandra.cluster")
    return cluster.NoHostAvailable(
        "Unable to connect to any servers", {"a": ConnectionRefusedError(111, "x")}
    )


def praw(_: Service) -> object:
    made: Any = importlib.import_module("prawcore.exceptions")
    requests: Any = importlib.import_module("requests")
    return made.RequestException(requests.ConnectionError("refused"), (), {})


BY_CODE: Situations = {
    "neo4j": {
        "deadlock": (neo4j("Neo.TransientError.Transaction.DeadlockDetected"), C.UNAVAILABLE),
        "unauthorized": (neo4j("Neo.ClientError.Security.Unauthorized"), C.AUTH),
        "not a leader": (neo4j("Neo.ClientError.Cluster.NotALeader"), C.UNAVAILABLE),
        "constraint": (neo4j("Neo.ClientError.Schema.ConstraintValidationFailed"), C.CONFLICT),
        "syntax": (neo4j("Neo.ClientError.Statement.SyntaxError"), C.INVALID),
        "too many wrong passwords": (neo4j("Neo.ClientError.Security.AuthenticationRateLimit"), C.RATE_LIMIT),
    },
    "trino": {
        "syntax": (trino("USER_ERROR", "SYNTAX_ERROR"), C.INVALID),
        "denied": (trino("USER_ERROR", "PERMISSION_DENIED"), C.AUTH),
        "memory": (trino("INSUFFICIENT_RESOURCES", "EXCEEDED_LOCAL_MEMORY_LIMIT"), C.RESOURCE_EXHAUSTED),
        "queue is full": (trino("INSUFFICIENT_RESOURCES", "QUERY_QUEUE_FULL"), C.RATE_LIMIT),
        "starting up": (trino("INTERNAL_ERROR", "SERVER_STARTING_UP"), C.UNAVAILABLE),
        "internal": (trino("INTERNAL_ERROR", "GENERIC_INTERNAL_ERROR"), C.SERVER_ERROR),
        "503": (constructed("trino.exceptions.Http503Error", "error 503"), C.UNAVAILABLE),
        "429": (constructed("trino.exceptions.HttpError", "error 429: slow"), C.RATE_LIMIT),
    },
    "cassandra-driver": {
        "no host available": (unreachable, C.NETWORK),
        "timed out": (constructed("cassandra.OperationTimedOut"), C.TIMEOUT),
        "unavailable": (constructed("cassandra.Unavailable", "x"), C.UNAVAILABLE),
        "overloaded": (
            constructed("cassandra.protocol.OverloadedErrorMessage", 0x1001, "x", None),
            C.UNAVAILABLE,
        ),
    },
    "clickhouse-driver": {
        **{
            f"code {number}": (constructed("clickhouse_driver.errors.ServerException", "x", number), category)
            for number, category in {
                202: C.RATE_LIMIT,
                241: C.RESOURCE_EXHAUSTED,
                159: C.TIMEOUT,
                60: C.NOT_FOUND,
                62: C.INVALID,
                516: C.AUTH,
                242: C.UNAVAILABLE,
            }.items()
        },
    },
    "clickhouse-connect": {
        "code 202": (
            constructed(
                "clickhouse_connect.driver.exceptions.DatabaseError", "ClickHouse exception, code: 202, x"
            ),
            C.RATE_LIMIT,
        ),
    },
    "gql": {
        "GitHub's rate limit": (graphql(type="RATE_LIMITED"), C.RATE_LIMIT),
        "Shopify's throttle": (graphql(extensions={"code": "THROTTLED"}), C.RATE_LIMIT),
        "unauthenticated": (graphql(extensions={"code": "UNAUTHENTICATED"}), C.AUTH),
        "wrong query": (graphql(extensions={"code": "GRAPHQL_VALIDATION_FAILED"}), C.INVALID),
    },
    "python-telegram-bot": {
        "flood control": (constructed("telegram.error.RetryAfter", 17), Expected(C.RATE_LIMIT, 17)),
        "timed out": (constructed("telegram.error.TimedOut"), C.TIMEOUT),
        "network": (constructed("telegram.error.NetworkError", "x"), C.NETWORK),
        "blocked": (constructed("telegram.error.Forbidden", "blocked"), C.AUTH),
    },
    "python-gitlab": {
        "503": (constructed("gitlab.exceptions.GitlabGetError", "x", response_code=503), C.UNAVAILABLE),
    },
    "praw": {
        "connection refused": (praw, C.NETWORK),
    },
    "discord.py": {
        "403": (constructed("discord.Forbidden", SimpleNamespace(status=403, reason="r"), "no"), C.AUTH),
    },
    "asyncpg": {
        "closed connection": (constructed("asyncpg.InterfaceError", "connection is closed"), C.NETWORK),
    },
    "ldap3": {
        "bind": (constructed("ldap3.core.exceptions.LDAPBindError", "x - invalidCredentials"), C.AUTH),
    },
    "docker": {
        "image not found": (constructed("docker.errors.ImageNotFound", "x"), C.NOT_FOUND),
    },
    "pymssql": {
        "connection refused": (constructed("pymssql.OperationalError", (20009, b"x")), C.NETWORK),
        "deadlock": (constructed("pymssql.OperationalError", (1205, b"x")), C.UNAVAILABLE),
    },
    "PyMySQL": {
        "deadlock": (constructed("pymysql.err.OperationalError", 1213, "x"), C.UNAVAILABLE),
        "closed connection": (constructed("pymysql.err.InterfaceError", 0, ""), C.NETWORK),
        "packet too large": (constructed("pymysql.err.OperationalError", 1153, "x"), C.OVERFLOW),
    },
}

SERVICE_CASES = [
    *(
        Case(
            package,
            name,
            constructed(f"{module}.{name}", *(("x",) if module != "nats.errors" else ())),
            Expected(category),
        )
        for (package, module), classes in BY_CLASS.items()
        for name, category in classes.items()
    ),
    *of(BY_CODE),
]
