"""Databases: by a call, or as the SDK itself builds the error from the server's answer."""

import json

from tests.errors.more_sdks import clients
from tests.errors.more_sdks.acts import Situations, answers, of, refused
from tests.errors.sdks.model import Act, constructed
from tests.errors.sdks.service import Service


def mysql(number: int, text: str, state: str = "HY000") -> Act:
    return lambda _: of("mysql.connector.errors.get_mysql_exception")(number, text, state)


def mysql_refused(service: Service) -> object:
    host, _, port = service.refused.removeprefix("http://").partition(":")
    return of("mysql.connector.connect")(host=host, port=int(port), user="u", password="p", use_pure=True)


MYSQL: Situations = {
    "connection refused": mysql_refused,
    "2013, lost connection": mysql(2013, "Lost connection to MySQL server during query"),
    "1045, access denied": mysql(1045, "Access denied for user 'u'@'localhost'", "28000"),
    "1040, too many connections": mysql(1040, "Too many connections", "08004"),
    "1205, lock wait timeout": mysql(1205, "Lock wait timeout exceeded; try restarting transaction"),
    "1213, deadlock": mysql(1213, "Deadlock found when trying to get lock", "40001"),
    "1366, HY000, incorrect value": mysql(1366, "Incorrect integer value: 'x' for column 'n' at row 1"),
    "1364, HY000, no default value": mysql(1364, "Field 'n' doesn't have a default value"),
    "3819, HY000, check constraint": mysql(3819, "Check constraint 'c' is violated."),
    "1305, no such procedure": mysql(1305, "PROCEDURE d.p does not exist", "42000"),
    "1114, HY000, the table is full": mysql(1114, "The table 't' is full"),
    "1021, HY000, disk full": mysql(1021, "Disk full (/tmp); waiting for someone to free some space..."),
    "1226, max_questions are used up": mysql(
        1226, "User 'u' has exceeded the 'max_questions' resource (current value: 10)", "42000"
    ),
    "1062, duplicate entry": mysql(1062, "Duplicate entry '1' for key 't.PRIMARY'", "23000"),
    "3024, max_execution_time": mysql(3024, "Query execution was interrupted, maximum statement time"),
    "1317, the query was interrupted": mysql(1317, "Query execution was interrupted", "70100"),
    "1153, packet too large": mysql(1153, "Got a packet bigger than 'max_allowed_packet' bytes", "08S01"),
}


def pymysql(number: int, text: str, state: str = "HY000") -> Act:
    def act(_: Service) -> object:
        raw = b"\xff" + number.to_bytes(2, "little") + b"#" + state.encode() + text.encode()
        return of("pymysql.err.raise_mysql_exception")(raw)

    return act


def pymysql_refused(service: Service) -> object:
    host, _, port = service.refused.removeprefix("http://").partition(":")
    return of("pymysql.connect")(host=host, port=int(port), user="u", password="p")


PYMYSQL: Situations = {
    "connection refused": pymysql_refused,
    "1366, HY000, incorrect value": pymysql(1366, "Incorrect integer value: 'x' for column 'n' at row 1"),
    "1114, HY000, the table is full": pymysql(1114, "The table 't' is full"),
    "1305, no such procedure": pymysql(1305, "PROCEDURE d.p does not exist", "42000"),
    "1205, lock wait timeout": pymysql(1205, "Lock wait timeout exceeded; try restarting transaction"),
}

COUCHBASE: Situations = {
    name: constructed(f"couchbase.exceptions.{name}", message=f"<{name}>")
    for name in (
        *("AmbiguousTimeoutException", "UnAmbiguousTimeoutException", "AuthenticationException"),
        *("BucketNotFoundException", "DocumentNotFoundException", "DocumentExistsException"),
        *("CASMismatchException", "DocumentLockedException", "TemporaryFailException"),
        *("RateLimitedException", "QuotaLimitedException"),
        *("ParsingFailedException", "ServiceUnavailableException"),
    )
}


def milvus(code: int, text: str, compatible: int = 1, **said: bool) -> Act:
    return constructed("pymilvus.exceptions.MilvusException", code, text, compatible, **said)


def milvus_refused(service: Service) -> object:
    return of("pymilvus.MilvusClient")(service.refused, timeout=1)


MILVUS: Situations = {
    "connection refused": milvus_refused,
    "1, service not ready": milvus(1, "service not ready[NotReadyProxy]", retriable=True),
    "3, memory limit exceeded": milvus(3, "memory limit exceeded[predict=2][limit=1]"),
    "8, rate limited": milvus(8, "rate limit exceeded[rate=1]", retriable=True),
    "9, writes denied: the disk quota is used up": milvus(9, "quota exceeded[reason=disk quota exceeded]"),
    "100, no such collection": milvus(100, "collection not found[collection=c]"),
    "700, no such index": milvus(700, "index not found[collection=c]"),
    "1100, invalid parameter": milvus(
        1100, "invalid parameter[expected=valid][actual=x]", is_input_error=True
    ),
    "1401, permission denied": milvus(1401, "permission deny", is_input_error=True),
    "a parameter that the client refuses": constructed(
        "pymilvus.exceptions.ParamError", message="`limit` value 0 is illegal"
    ),
}

arango = answers(clients.arango)


def of_arango(status: int, number: int, text: str) -> Act:
    return arango(status, {"error": True, "code": status, "errorNum": number, "errorMessage": text})


ARANGO: Situations = {
    "401, 11, not authorized": of_arango(401, 11, "not authorized to execute this request"),
    "403, 1004, read only": of_arango(403, 1004, "server is in read-only mode"),
    "404, 1202, no such document": lambda _: of("arango.exceptions.DocumentGetError")(
        *arango_answer(404, 1202, "document not found")
    ),
    "404, 1203, no such collection": of_arango(404, 1203, "collection or view not found: c"),
    "409, 1200, write-write conflict": of_arango(409, 1200, "write-write conflict"),
    "409, 1210, unique constraint": of_arango(409, 1210, "unique constraint violated"),
    "412, 1200, another revision": lambda _: of("arango.exceptions.DocumentRevisionError")(
        *arango_answer(412, 1200, "conflict, _rev values do not match")
    ),
    "412, 21004, queue time violated": lambda _: of("arango.exceptions.DocumentGetError")(
        *arango_answer(412, 21004, "queue time violated")
    ),
    "500, 32, memory limit of a query": of_arango(
        500, 32, "AQL: query would use more memory than allowed (while executing) resource limit exceeded"
    ),
    "400, 1501, parse error": of_arango(400, 1501, "AQL: syntax error, unexpected identifier"),
    "410, 1500, query killed": of_arango(410, 1500, "query killed"),
    "503": arango(503, {}),
    "connection refused": refused(clients.arango),
}


def arango_answer(status: int, number: int, text: str) -> tuple[object, object]:
    """The client's own response and request: for what `get` does not raise."""
    body = json.dumps({"error": True, "code": status, "errorNum": number, "errorMessage": text})
    made = of("arango.response.Response")("get", "http://db", {}, status, "x", body)
    made.body, made.error_code, made.error_message = json.loads(body), number, text
    made.is_success = False
    return made, of("arango.request.Request")("get", "/c/k")
