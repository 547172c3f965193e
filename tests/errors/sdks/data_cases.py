"""Databases, warehouses, brokers, SSH: real clients where nobody listens, else the SDK's own exceptions."""

from __future__ import annotations

import importlib
from typing import Any
from urllib.parse import urlsplit

from prefect_resilience import ErrorCategory as C
from tests.errors.sdks.model import Act, Case, Expected, constructed
from tests.errors.sdks.service import Service


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 0


def mongo(silent: bool) -> Act:
    def act(service: Service) -> object:
        pymongo: Any = importlib.import_module("pymongo")
        host, port = _address(service.silent if silent else service.refused)
        made = pymongo.MongoClient(
            host, port, serverSelectionTimeoutMS=300, connectTimeoutMS=200, socketTimeoutMS=200
        )
        return made.db.command("ping")

    return act


def mongo_failure(code: int, *labels: str) -> Act:
    return constructed("pymongo.errors.OperationFailure", "no", code, {"errorLabels": list(labels)})


MONGO = [
    Case("pymongo", "connection refused", mongo(False), Expected(C.NETWORK)),
    Case("pymongo", "server selection timed out", mongo(True), Expected(C.NETWORK)),
    Case(
        "pymongo",
        "AutoReconnect",
        constructed("pymongo.errors.AutoReconnect", "connection closed"),
        Expected(C.NETWORK),
    ),
    Case(
        "pymongo",
        "NetworkTimeout",
        constructed("pymongo.errors.NetworkTimeout", "timed out"),
        Expected(C.TIMEOUT),
    ),
    Case(
        "pymongo",
        "NotPrimaryError",
        constructed("pymongo.errors.NotPrimaryError", "not primary"),
        Expected(C.UNAVAILABLE),
    ),
    Case(
        "pymongo",
        "112 WriteConflict",
        mongo_failure(112, "TransientTransactionError"),
        Expected(C.UNAVAILABLE),
    ),
    Case("pymongo", "18 AuthenticationFailed", mongo_failure(18), Expected(C.AUTH)),
    Case(
        "pymongo",
        "50 MaxTimeMSExpired",
        constructed("pymongo.errors.ExecutionTimeout", "x", 50),
        Expected(C.TIMEOUT),
    ),
    Case(
        "pymongo",
        "11000 DuplicateKey",
        constructed("pymongo.errors.DuplicateKeyError", "x", 11000),
        Expected(C.CONFLICT),
    ),
    Case(
        "pymongo",
        "bulk write, duplicate key",
        constructed("pymongo.errors.BulkWriteError", {"writeErrors": [{"code": 11000, "errmsg": "dup"}]}),
        Expected(C.CONFLICT),
    ),
    Case("pymongo", "16500, request units used up", mongo_failure(16500), Expected(C.RATE_LIMIT)),
]


def pika_connect(service: Service) -> object:
    pika: Any = importlib.import_module("pika")
    host, port = _address(service.refused)
    return pika.BlockingConnection(pika.ConnectionParameters(host, port, socket_timeout=1))


def kafka_connect(service: Service) -> object:
    kafka: Any = importlib.import_module("kafka")
    return kafka.KafkaProducer(
        bootstrap_servers="{}:{}".format(*_address(service.refused)), bootstrap_timeout_ms=300
    )


def confluent_connect(service: Service) -> object:
    admin: Any = importlib.import_module("confluent_kafka.admin")
    servers = "{}:{}".format(*_address(service.refused))
    return admin.AdminClient({"bootstrap.servers": servers, "logger": _Quiet()}).list_topics(timeout=0.3)


class _Quiet:
    def log(self, *_: object) -> None:
        return


def confluent(name: str) -> Act:
    def act(_: Service) -> object:
        sdk: Any = importlib.import_module("confluent_kafka")
        return sdk.KafkaException(sdk.KafkaError(getattr(sdk.KafkaError, name)))

    return act


BROKERS = [
    Case("pika", "connection refused", pika_connect, Expected(C.NETWORK)),
    Case(
        "pika",
        "StreamLostError",
        constructed("pika.exceptions.StreamLostError", "reset"),
        Expected(C.NETWORK),
    ),
    Case(
        "pika",
        "320, broker closes",
        constructed("pika.exceptions.ConnectionClosedByBroker", 320, "FORCED"),
        Expected(C.NETWORK),
    ),
    Case(
        "pika",
        "404, no queue",
        constructed("pika.exceptions.ChannelClosedByBroker", 404, "NOT_FOUND"),
        Expected(C.NOT_FOUND),
    ),
    Case(
        "pika",
        "403, no permission",
        constructed("pika.exceptions.ChannelClosedByBroker", 403, "ACCESS_REFUSED"),
        Expected(C.AUTH),
    ),
    Case(
        "pika",
        "406, other arguments",
        constructed("pika.exceptions.ChannelClosedByBroker", 406, "PRECONDITION"),
        Expected(C.CONFLICT),
    ),
    Case(
        "pika",
        "wrong password",
        constructed("pika.exceptions.ProbableAuthenticationError", "x"),
        Expected(C.AUTH),
    ),
    Case("pika", "NackError", constructed("pika.exceptions.NackError", []), Expected(C.UNAVAILABLE)),
    Case("kafka-python", "no brokers", kafka_connect, Expected(C.TIMEOUT)),
    Case(
        "kafka-python",
        "NotLeaderForPartition",
        constructed("kafka.errors.NotLeaderForPartitionError"),
        Expected(C.UNAVAILABLE),
    ),
    Case(
        "kafka-python",
        "authorization",
        constructed("kafka.errors.TopicAuthorizationFailedError"),
        Expected(C.AUTH),
    ),
    Case(
        "kafka-python",
        "message too large",
        constructed("kafka.errors.MessageSizeTooLargeError"),
        Expected(C.OVERFLOW),
    ),
    Case("confluent-kafka", "broker transport failure", confluent_connect, Expected(C.NETWORK)),
    Case("confluent-kafka", "timed out", confluent("_TIMED_OUT"), Expected(C.TIMEOUT)),
    Case("confluent-kafka", "queue full", confluent("_QUEUE_FULL"), Expected(C.UNAVAILABLE)),
    Case("confluent-kafka", "message too large", confluent("MSG_SIZE_TOO_LARGE"), Expected(C.OVERFLOW)),
    Case("confluent-kafka", "authorization", confluent("TOPIC_AUTHORIZATION_FAILED"), Expected(C.AUTH)),
]


def snowflake(number: int, state: str, text: str) -> Act:
    return constructed("snowflake.connector.errors.ProgrammingError", msg=text, errno=number, sqlstate=state)


WAREHOUSES = [
    Case(
        "snowflake-connector-python",
        "250001, cannot connect",
        snowflake(250001, "08001", "Could not connect"),
        Expected(C.NETWORK),
    ),
    Case(
        "snowflake-connector-python",
        "250001, wrong password",
        snowflake(250001, "08001", "Incorrect username or password was specified."),
        Expected(C.AUTH),
    ),
    Case(
        "snowflake-connector-python",
        "000625, lock waiters",
        snowflake(
            625, "57014", "your statement was aborted because the number of waiters for this lock exceeds 20"
        ),
        Expected(C.UNAVAILABLE),
    ),
    Case(
        "snowflake-connector-python",
        "390114, token expired",
        snowflake(390114, "08001", "expired"),
        Expected(C.AUTH),
    ),
    Case(
        "snowflake-connector-python",
        "000630, statement timeout",
        snowflake(630, "57014", "timeout"),
        Expected(C.TIMEOUT),
    ),
    Case(
        "snowflake-connector-python",
        "002003, no such table",
        snowflake(2003, "42S02", "does not exist"),
        Expected(C.NOT_FOUND),
    ),
    Case("snowflake-connector-python", "290503", snowflake(290503, "08001", "503"), Expected(C.UNAVAILABLE)),
    Case(
        "databricks-sql-connector",
        "ConcurrentAppendException",
        constructed(
            "databricks.sql.exc.ServerOperationError",
            "[DELTA_CONCURRENT_APPEND] ConcurrentAppendException: files were added",
            {},
        ),
        Expected(C.UNAVAILABLE),
    ),
    Case(
        "databricks-sql-connector",
        "temporarily unavailable",
        constructed("databricks.sql.exc.OperationalError", "the service is temporarily unavailable", {}),
        Expected(C.UNAVAILABLE),
    ),
    Case(
        "databricks-sql-connector",
        "retries used up",
        constructed("databricks.sql.exc.MaxRetryDurationError", "x", {}),
        Expected(C.NETWORK),
    ),
    Case(
        "dbt-core",
        "database error: deadlock",
        constructed("dbt_common.exceptions.DbtDatabaseError", "deadlock detected\nProcess 7 waits"),
        Expected(C.UNAVAILABLE),
    ),
    Case(
        "dbt-core",
        "database error: connection reset",
        constructed(
            "dbt_common.exceptions.DbtDatabaseError",
            "could not receive data from server: Connection reset by peer",
        ),
        Expected(C.NETWORK),
    ),
]


def postgres_connect(service: Service) -> object:
    psycopg: Any = importlib.import_module("psycopg")
    host, port = _address(service.refused)
    return psycopg.connect(host=host, port=port, connect_timeout=2)


def redis_connect(silent: bool) -> Act:
    def act(service: Service) -> object:
        redis: Any = importlib.import_module("redis")
        host, port = _address(service.silent if silent else service.refused)
        made = redis.Redis(host, port, socket_timeout=0.2, socket_connect_timeout=0.2, retry=None)
        return made.ping()

    return act


def urllib3_get(silent: bool) -> Act:
    def act(service: Service) -> object:
        urllib3: Any = importlib.import_module("urllib3")
        url = service.silent if silent else service.refused
        return urllib3.PoolManager().request("GET", url, timeout=0.3, retries=1)

    return act


def urllib3_new_connection(service: Service) -> object:
    urllib3: Any = importlib.import_module("urllib3")
    return urllib3.PoolManager().request("GET", service.refused, timeout=0.3, retries=False)


def ssh_connect(silent: bool) -> Act:
    def act(service: Service) -> object:
        paramiko: Any = importlib.import_module("paramiko")
        host, port = _address(service.silent if silent else service.refused)
        return paramiko.SSHClient().connect(
            host, port, username="a", password="b", timeout=0.3, banner_timeout=0.3
        )

    return act


DATA_CASES = [
    *MONGO,
    *BROKERS,
    *WAREHOUSES,
    Case("psycopg", "connection refused", postgres_connect, Expected(C.NETWORK)),
    Case(
        "psycopg",
        "40001",
        constructed("psycopg.errors.SerializationFailure", "could not serialize"),
        Expected(C.UNAVAILABLE),
    ),
    Case(
        "psycopg",
        "40P01",
        constructed("psycopg.errors.DeadlockDetected", "deadlock detected"),
        Expected(C.UNAVAILABLE),
    ),
    Case(
        "psycopg",
        "23505",
        constructed("psycopg.errors.UniqueViolation", "duplicate key"),
        Expected(C.CONFLICT),
    ),
    Case("redis", "connection refused", redis_connect(False), Expected(C.NETWORK)),
    Case("redis", "no answer in time", redis_connect(True), Expected(C.TIMEOUT)),
    Case("urllib3", "connection refused", urllib3_get(False), Expected(C.NETWORK)),
    Case("urllib3", "connection refused, no retries", urllib3_new_connection, Expected(C.NETWORK)),
    Case("urllib3", "no answer in time", urllib3_get(True), Expected(C.TIMEOUT)),
    Case("paramiko", "connection refused", ssh_connect(False), Expected(C.NETWORK)),
    Case("paramiko", "no banner in time", ssh_connect(True), Expected(C.NETWORK)),
    Case(
        "paramiko", "wrong password", constructed("paramiko.AuthenticationException", "x"), Expected(C.AUTH)
    ),
]
