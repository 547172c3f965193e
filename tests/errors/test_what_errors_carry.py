"""What an error carries comes before what it is called, whatever library it is of."""

import enum
from types import SimpleNamespace
from typing import Any

import pytest

from prefect_resilience import ErrorCategory as C
from prefect_resilience import classify
from prefect_resilience.errors.classify.table import blocks, read_table
from tests.errors.by_name import made


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
