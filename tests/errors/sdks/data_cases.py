"""Databases, warehouses, brokers, SSH: real clients where nobody listens, else the SDK's own exceptions."""

from __future__ import annotations

import importlib
from typing import Any
from urllib.parse import urlsplit

from prefect_resilience import ErrorCategory as C
from tests.errors.sdks.model import Act, Situations, constructed, errors_of, of
from tests.errors.sdks.service import Service

pymongo_error = errors_of("pymongo.errors")
pika_error = errors_of("pika.exceptions")
kafka_python_error = errors_of("kafka.errors")
databricks_sql_connector_error = errors_of("databricks.sql.exc")
dbt_core_error = errors_of("dbt_common.exceptions")
psycopg_error = errors_of("psycopg.errors")


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


MONGO: Situations = {
    "pymongo": {
        "connection refused": (mongo(False), C.NETWORK),
        "server selection timed out": (mongo(True), C.NETWORK),
        "AutoReconnect": (pymongo_error("AutoReconnect", "connection closed"), C.NETWORK),
        "NetworkTimeout": (pymongo_error("NetworkTimeout", "timed out"), C.TIMEOUT),
        "NotPrimaryError": (pymongo_error("NotPrimaryError", "not primary"), C.UNAVAILABLE),
        "112 WriteConflict": (mongo_failure(112, "TransientTransactionError"), C.UNAVAILABLE),
        "18 AuthenticationFailed": (mongo_failure(18), C.AUTH),
        "50 MaxTimeMSExpired": (pymongo_error("ExecutionTimeout", "x", 50), C.TIMEOUT),
        "11000 DuplicateKey": (pymongo_error("DuplicateKeyError", "x", 11000), C.CONFLICT),
        "bulk write, duplicate key": (
            pymongo_error("BulkWriteError", {"writeErrors": [{"code": 11000, "errmsg": "dup"}]}),
            C.CONFLICT,
        ),
        "16500, request units used up": (mongo_failure(16500), C.RATE_LIMIT),
    },
}


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


BROKERS: Situations = {
    "pika": {
        "connection refused": (pika_connect, C.NETWORK),
        "StreamLostError": (pika_error("StreamLostError", "reset"), C.NETWORK),
        "320, broker closes": (pika_error("ConnectionClosedByBroker", 320, "FORCED"), C.NETWORK),
        "404, no queue": (pika_error("ChannelClosedByBroker", 404, "NOT_FOUND"), C.NOT_FOUND),
        "403, no permission": (pika_error("ChannelClosedByBroker", 403, "ACCESS_REFUSED"), C.AUTH),
        "406, other arguments": (pika_error("ChannelClosedByBroker", 406, "PRECONDITION"), C.CONFLICT),
        "wrong password": (pika_error("ProbableAuthenticationError", "x"), C.AUTH),
        "NackError": (pika_error("NackError", []), C.UNAVAILABLE),
    },
    "kafka-python": {
        "no brokers": (kafka_connect, C.TIMEOUT),
        "NotLeaderForPartition": (kafka_python_error("NotLeaderForPartitionError"), C.UNAVAILABLE),
        "authorization": (kafka_python_error("TopicAuthorizationFailedError"), C.AUTH),
        "message too large": (kafka_python_error("MessageSizeTooLargeError"), C.OVERFLOW),
    },
    "confluent-kafka": {
        "broker transport failure": (confluent_connect, C.NETWORK),
        "timed out": (confluent("_TIMED_OUT"), C.TIMEOUT),
        "queue full": (confluent("_QUEUE_FULL"), C.UNAVAILABLE),
        "message too large": (confluent("MSG_SIZE_TOO_LARGE"), C.OVERFLOW),
        "authorization": (confluent("TOPIC_AUTHORIZATION_FAILED"), C.AUTH),
    },
}


def snowflake(number: int, state: str, text: str) -> Act:
    return constructed("snowflake.connector.errors.ProgrammingError", msg=text, errno=number, sqlstate=state)


WAREHOUSES: Situations = {
    "snowflake-connector-python": {
        "250001, cannot connect": (snowflake(250001, "08001", "Could not connect"), C.NETWORK),
        "250001, wrong password": (
            snowflake(250001, "08001", "Incorrect username or password was specified."),
            C.AUTH,
        ),
        "000625, lock waiters": (
            snowflake(
                625,
                "57014",
                "your statement was aborted because the number of waiters for this lock exceeds 20",
            ),
            C.UNAVAILABLE,
        ),
        "390114, token expired": (snowflake(390114, "08001", "expired"), C.AUTH),
        "000630, statement timeout": (snowflake(630, "57014", "timeout"), C.TIMEOUT),
        "002003, no such table": (snowflake(2003, "42S02", "does not exist"), C.NOT_FOUND),
        "290503": (snowflake(290503, "08001", "503"), C.UNAVAILABLE),
    },
    "databricks-sql-connector": {
        "ConcurrentAppendException": (
            databricks_sql_connector_error(
                "ServerOperationError",
                "[DELTA_CONCURRENT_APPEND] ConcurrentAppendException: files were added",
                {},
            ),
            C.UNAVAILABLE,
        ),
        "temporarily unavailable": (
            databricks_sql_connector_error("OperationalError", "the service is temporarily unavailable", {}),
            C.UNAVAILABLE,
        ),
        "retries used up": (databricks_sql_connector_error("MaxRetryDurationError", "x", {}), C.NETWORK),
    },
    "dbt-core": {
        "database error: deadlock": (
            dbt_core_error("DbtDatabaseError", "deadlock detected\nProcess 7 waits"),
            C.UNAVAILABLE,
        ),
        "database error: connection reset": (
            dbt_core_error(
                "DbtDatabaseError", "could not receive data from server: Connection reset by peer"
            ),
            C.NETWORK,
        ),
    },
}


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


OTHERS: Situations = {
    "psycopg": {
        "connection refused": (postgres_connect, C.NETWORK),
        "40001": (psycopg_error("SerializationFailure", "could not serialize"), C.UNAVAILABLE),
        "40P01": (psycopg_error("DeadlockDetected", "deadlock detected"), C.UNAVAILABLE),
        "23505": (psycopg_error("UniqueViolation", "duplicate key"), C.CONFLICT),
    },
    "redis": {
        "connection refused": (redis_connect(False), C.NETWORK),
        "no answer in time": (redis_connect(True), C.TIMEOUT),
    },
    "urllib3": {
        "connection refused": (urllib3_get(False), C.NETWORK),
        "connection refused, no retries": (urllib3_new_connection, C.NETWORK),
        "no answer in time": (urllib3_get(True), C.TIMEOUT),
    },
    "paramiko": {
        "connection refused": (ssh_connect(False), C.NETWORK),
        "no banner in time": (ssh_connect(True), C.NETWORK),
        "wrong password": (constructed("paramiko.AuthenticationException", "x"), C.AUTH),
    },
}

DATA_CASES = of(MONGO, BROKERS, WAREHOUSES, OTHERS)
