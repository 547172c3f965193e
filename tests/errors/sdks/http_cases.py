"""The same HTTP situations for every SDK that talks HTTP, by its own client."""

from collections.abc import Callable, Iterator

from prefect_resilience import ErrorCategory as C
from tests.errors.sdks import clients, model_clients
from tests.errors.sdks.model import NOW, Act, Case, Expected
from tests.errors.sdks.service import Service

Ask = Callable[[str, float], object]
"""Makes one call to a base URL with a timeout in seconds, without the SDK's own retries."""

Body = Callable[[str, str], object]
"""The provider's body for an error with this code and message."""

USED_UP = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": f"{NOW + 60:.0f}"}
_NOT_OF_AWS = ("403, allowance used up until a time", "answer cut in the middle")


def said(ask: Ask, status: int, body: object = None, headers: dict[str, str] | None = None) -> Act:
    def act(service: Service) -> object:
        service.says(status, body, headers)
        return ask(service.url, 5.0)

    return act


def _refused(ask: Ask) -> Act:
    return lambda service: ask(service.refused, 2.0)


def _silent(ask: Ask) -> Act:
    return lambda service: ask(service.silent, 0.3)


def _cut(ask: Ask) -> Act:
    def act(service: Service) -> object:
        service.cuts()
        return ask(service.url, 5.0)

    return act


def _generic(package: str, ask: Ask, body: Body) -> Iterator[Case]:
    lost = package in clients.HEADERS_LOST
    remark = "the exception keeps no headers" if lost else ""
    yield Case(
        package,
        "429, Retry-After: 3",
        said(ask, 429, body("rate_limit", "slow down"), {"Retry-After": "3"}),
        Expected(C.RATE_LIMIT, None if lost else 3.0),
        remark,
    )
    yield Case(
        package,
        "403, allowance used up until a time",
        said(ask, 403, body("forbidden", "API rate limit exceeded"), USED_UP),
        Expected(C.RATE_LIMIT, None if lost else 60.0),
        remark,
    )
    yield Case(package, "503", said(ask, 503, body("unavailable", "busy")), Expected(C.UNAVAILABLE))
    yield Case(package, "401", said(ask, 401, body("auth", "no")), Expected(C.AUTH))
    yield Case(package, "403", said(ask, 403, body("forbidden", "no")), Expected(C.AUTH))
    lost_connection = Expected(C.SERVER_ERROR if package == "litellm" else C.NETWORK)
    remark = "the SDK makes it a status 500 of its own" if package == "litellm" else ""
    yield Case(package, "connection refused", _refused(ask), lost_connection, remark)
    yield Case(package, "no answer in time", _silent(ask), Expected(C.TIMEOUT))
    yield Case(package, "answer cut in the middle", _cut(ask), lost_connection, remark)


def _model(package: str, ask: Ask, body: Body) -> Iterator[Case]:
    yield Case(
        package,
        "400, prompt too long",
        said(ask, 400, body("invalid_request_error", "prompt is too long: 9 tokens > 8 maximum")),
        Expected(C.OVERFLOW),
    )
    yield Case(
        package,
        "429, 'try again in 1m30s'",
        said(ask, 429, body("rate_limit_error", "Rate limit reached. Please try again in 1m30s.")),
        Expected(C.RATE_LIMIT, 90.0),
    )
    yield Case(
        package,
        "400, usage limits reached",
        said(ask, 400, body("invalid_request_error", "You have reached your specified API usage limits.")),
        Expected(C.RESOURCE_EXHAUSTED),
    )


def _plain(code: str, message: str) -> object:
    return {"error": {"type": code, "code": code, "message": message}, "message": message}


def _flat(code: str, message: str) -> object:
    return {"message": message, "code": code}


def _google(code: str, message: str) -> object:
    return {"error": {"message": message, "status": code, "errors": [{"reason": code}]}}


def http_cases() -> list[Case]:
    found: list[Case] = []
    for package, ask in clients.PLAIN.items():
        found += _generic(package, ask, _plain)
    for package, ask in clients.FLAT.items():
        found += _generic(package, ask, _flat)
    for package, ask in clients.GOOGLE.items():
        found += _generic(package, ask, _google)
        found += [
            Case(
                package,
                f"403 {reason}",
                said(ask, 403, {"error": {"code": 403, "message": "x", "errors": [{"reason": reason}]}}),
                Expected(C.RATE_LIMIT),
            )
            for reason in ("rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded")
        ]
    for package, ask in model_clients.MODELS.items():
        found += _generic(package, ask, _plain)
        found += _model(package, ask, _plain)
    return [case for case in found if case.package != "boto3" or case.situation not in _NOT_OF_AWS]
