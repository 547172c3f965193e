"""Retry-After in all its spellings."""

import math
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace

import httpx
import pytest
import urllib3
from botocore.compat import HTTPHeaders
from botocore.exceptions import ClientError
from multidict import CIMultiDict

from prefect_resilience import Backoff, Retry, classify
from prefect_resilience.errors.classify.retry_after import (
    duration,
    plain_headers,
    wait_in_text,
    wait_of_value,
)

NOW = 1_790_000_000.0
THEN = datetime.fromtimestamp(NOW, UTC)
IN_90_S = format_datetime(THEN + timedelta(seconds=90), usegmt=True)
A_DAY_AGO = format_datetime(THEN - timedelta(days=1), usegmt=True)

HEADERS: list[tuple[dict[str, str] | list[tuple[str, str]], int, float | None]] = [
    ({"Retry-After": "7"}, 503, 7.0),
    ({"Retry-After": " 1.5 "}, 400, 1.5),
    ({"Retry-After": "-3"}, 503, 0.0),
    ({"Retry-After": "inf"}, 503, None),
    ({"Retry-After": "soon"}, 503, None),
    ({"Retry-After": "9" * 400}, 503, None),
    ({"Retry-After": IN_90_S}, 503, 90.0),
    ({"Retry-After": A_DAY_AGO}, 503, 0.0),
    ({"Retry-After": IN_90_S, "Date": format_datetime(THEN + timedelta(seconds=60), usegmt=True)}, 503, 30.0),
    ({"Retry-After": IN_90_S, "Date": "garbage"}, 503, 90.0),
    ({"retry-after-ms": "250", "retry-after": "9"}, 429, 0.25),
    ({"retry-after-ms": "garbage", "retry-after": "9"}, 429, 9.0),
    ({"x-ratelimit-reset": "12"}, 429, 12.0),
    ({"x-ratelimit-reset": "12"}, 500, None),
    ({"x-ratelimit-reset": str(NOW + 40)}, 429, 40.0),
    ({"x-ratelimit-reset": str((NOW + 40) * 1000)}, 429, 40.0),
    ({"x-ratelimit-reset-requests": "20ms"}, 429, 0.02),
    ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s"}, 429, 360.0),
    (
        {
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-tokens": "6m0s",
            "x-ratelimit-remaining-tokens": "100",
        },
        429,
        1.0,
    ),
    ({"anthropic-ratelimit-requests-reset": (THEN + timedelta(seconds=5)).isoformat()}, 429, 5.0),
    ({"anthropic-ratelimit-tokens-reset": "2026-09-21T14:13:25.12Z"}, 429, 5.12),
    ({"anthropic-ratelimit-tokens-reset": "2026-09-21T14:13:21.123456789Z"}, 429, 1.123456),
    ({}, 429, None),
    # a Unix time
    ({"Retry-After": str(NOW + 40)}, 503, 40.0),
    ({"Retry-After": f"{(NOW + 40) * 1e6:.0f}"}, 429, 40.0),
    ({"Retry-After": str(NOW - 40)}, 503, 0.0),
    ({"Retry-After": str(NOW + 10 * 86_400)}, 503, 86_400.0),
    ({"retry-after-ms": str((NOW + 40) * 1000)}, 503, 40.0),
    ({"RateLimit": f'"default";r=0;t={NOW + 40:.0f}'}, 429, 40.0),
    ({"RateLimit": f"limit=9, remaining=0, reset={NOW + 40:.0f}"}, 429, 40.0),
    # never more than a day
    ({"Retry-After": "172800"}, 503, 86_400.0),
    ({"Retry-After": format_datetime(THEN + timedelta(days=9), usegmt=True)}, 503, 86_400.0),
    ({"retry-after-ms": "999999999999"}, 503, 86_400.0),
    # several
    ([("Retry-After", "3"), ("Retry-After", "7")], 503, 7.0),
    ([("Retry-After", "3"), ("retry-after", IN_90_S)], 503, 90.0),
    ([("Retry-After", IN_90_S), ("Retry-After", "soon"), ("Retry-After", "120")], 503, 120.0),
    ({"Retry-After": "3, 7, 5"}, 503, 7.0),
    ({"Retry-After": ",,"}, 503, None),
    # durations in words
    ({"Retry-After": "7 seconds"}, 503, 7.0),
    ({"Retry-After": "1 hour and 2 minutes"}, 503, 3720.0),
    ({"Retry-After": "7 bananas"}, 503, None),
    # no numbers
    ({"Retry-After": "\u0667"}, 503, None),
    ({"retry-after-ms": "\u0667\u0660"}, 503, None),
    # resets
    ({"X-RateLimit-Reset-After": "4.65", "X-RateLimit-Remaining": "0"}, 429, 4.65),
    ({"X-RateLimit-Reset-After": "4.65", "X-RateLimit-Reset": str(NOW + 4.7)}, 429, 4.7),
    ({"X-RateLimit-Reset-After": "4.65", "X-RateLimit-Remaining": "12"}, 429, None),
    ({"x-ratelimit-reset-after": "4", "retry-after": "1"}, 429, 1.0),
    ({"ratelimit-reset": "30", "ratelimit-remaining": "0", "ratelimit-limit": "100"}, 429, 30.0),
    ({"x-ratelimit-reset-ms": "1500"}, 429, 1.5),
    # the IETF's fields
    ({"RateLimit": '"default";r=0;t=30'}, 429, 30.0),
    ({"RateLimit": '"default";r=50;t=30', "RateLimit-Policy": '"default";q=100;w=60'}, 429, None),
    ({"RateLimit": '"a, b";r=12;t=600, "day";r=0;t=45'}, 429, 45.0),
    ({"RateLimit": '"a";r=0;t=30, "b";r=0;t=45'}, 503, 45.0),
    ({"RateLimit": '"a";t=30'}, 429, 30.0),
    ({"RateLimit": '"a";r=0'}, 429, None),
    ({"RateLimit": "limit=100, remaining=0, reset=30"}, 429, 30.0),
    ({"RateLimit": "limit=100, remaining=9, reset=30"}, 429, None),
    ({"RateLimit": '"default";r=0;t=30'}, 500, None),
    ({"RateLimit-Policy": '"default";q=100;w=60'}, 429, None),
    ({"RateLimit": '"default";r=0;t=30', "Retry-After": "3"}, 429, 3.0),
    # AWS
    ({"x-amz-retry-after": "1500"}, 503, 1.5),
    ({"x-amz-retry-after": "1500", "retry-after": "7"}, 400, 1.5),
]


@pytest.mark.parametrize(("headers", "status", "expected"), HEADERS)
def test_headers(headers, status, expected) -> None:
    expected = None if expected is None else pytest.approx(expected, abs=1e-3)
    assert classify(httpx.Response(status, headers=in_utf8(headers)), now=NOW).retry_after == expected
    for kind in KINDS:
        wait = classify(Answer(status, kind(headers)), now=NOW).retry_after
        assert wait == expected, kind


class Answer:
    """The answer of a client that this package does not know."""

    def __init__(self, status, headers):
        self.status_code = status
        self.headers = headers


def pairs(headers):
    return [*headers.items()] if isinstance(headers, dict) else headers


def in_utf8(headers):
    return [(name, value.encode()) for name, value in pairs(headers)]


def of_botocore(headers):
    message = HTTPHeaders()
    for name, value in pairs(headers):
        message.add_header(name, value)
    return message


def lists(headers):
    values = {}
    for name, value in pairs(headers):
        values.setdefault(name.lower(), []).append(value)
    return values


KINDS = (pairs, of_botocore, lists, CIMultiDict, urllib3.HTTPHeaderDict)


@pytest.mark.parametrize(
    ("asked", "backoff", "delay"),
    [(1500, 0.1, 1.5), (1500, 3.0, 3.0), (600_000, 0.5, 5.5), (5_400, 0.5, 5.4), (-7, 0.5, 0.5)],
)
def test_aws_waits_at_most_5_seconds_beyond_the_backoff(asked, backoff, delay) -> None:
    headers = {"x-amz-retry-after": str(asked)}
    errors = (
        httpx.Response(503, headers=headers),
        ClientError(
            {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPHeaders": headers}}, "PutObject"
        ),
    )
    retry = Retry(backoff=Backoff.constant(backoff, jitter=0))
    for error in errors:
        verdict = retry.decide(classify(error, now=NOW), 1)
        assert (verdict.retry, verdict.delay) == (True, pytest.approx(delay))


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("Please try again in 7 seconds", 7.0),
        ("Please try again in \u0667 seconds", None),
        ("Please try again in 9000 hours", 86_400.0),
        ("retry after 2 minutes and 5 seconds", 125.0),
        ("Please try again in 1m30s.", 90.0),
        ("Please retry your requests after 2 minutes.", 120.0),
        ("Expected available in 1 hour and 5 minutes", 3900.0),
        ("Retry-After: 30", 30.0),
        ("try again in a few minutes", None),
        ("try again in 2026-01-01", None),
        ("", None),
    ],
)
def test_a_wait_in_a_text(text, wait) -> None:
    assert wait_in_text(text) == wait


def test_durations() -> None:
    assert duration("1h2m3.5s") == 3723.5
    assert duration("1d") == 86400.0
    for garbage in ("", "s", "1", "1x", "-1s", "1s!", "1" * 50 + "s"):
        assert duration(garbage) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3.0),
        (NOW + 40, 40.0),
        (10**9, 0.0),
        (10**7, 86_400.0),
        (str(NOW + 40), 40.0),
        ("7 seconds", 7.0),
        ("\uff17", None),
        (timedelta(days=3), 86_400.0),
        (True, None),
        (None, None),
        (math.nan, None),
        (math.inf, None),
        (10**400, None),
        (IN_90_S, 90.0),
        (timedelta(seconds=8), 8.0),
        (THEN + timedelta(seconds=2), 2.0),
        ((THEN + timedelta(seconds=2)).replace(tzinfo=None), 2.0),
        ([], None),
    ],
)
def test_an_exception_s_own_value(value, expected) -> None:
    assert wait_of_value(value, NOW) == expected


def test_headers_of_any_kind() -> None:
    expected = {"retry-after": "1"}
    assert plain_headers({"Retry-After": "1"}) == expected
    assert plain_headers([("Retry-After", "1")]) == expected
    assert plain_headers([(b"Retry-After", b"1")]) == expected
    assert plain_headers(SimpleNamespace(items=lambda: [("Retry-After", 1)])) == expected
    assert plain_headers(httpx.Headers(expected)) == expected
    for garbage in (None, 7, "text", [1], SimpleNamespace(items=3), SimpleNamespace(items=lambda: 1 / 0)):
        assert plain_headers(garbage) == {}
