"""Retry-After in all its spellings."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.errors import classify
from prefect_resilience.errors.classify.retry_after import (
    duration,
    plain_headers,
    retry_after_seconds,
    wait_of_value,
)

NOW = 1_790_000_000.0
THEN = datetime.fromtimestamp(NOW, UTC)
IN_90_S = format_datetime(THEN + timedelta(seconds=90), usegmt=True)
A_DAY_AGO = format_datetime(THEN - timedelta(days=1), usegmt=True)

HEADERS: list[tuple[dict[str, str], int, float | None]] = [
    ({"Retry-After": "7"}, 503, 7.0),
    ({"Retry-After": " 1.5 "}, 400, 1.5),
    ({"Retry-After": "-3"}, 503, 0.0),
    ({"Retry-After": "inf"}, 503, None),
    ({"Retry-After": "nan"}, 503, None),
    ({"Retry-After": "soon"}, 503, None),
    ({"Retry-After": ""}, 503, None),
    ({"Retry-After": "9" * 400}, 503, None),
    ({"Retry-After": "x" * 400}, 503, None),
    ({"Retry-After": "20s"}, 503, 20.0),
    ({"Retry-After": IN_90_S}, 503, 90.0),
    ({"Retry-After": A_DAY_AGO}, 503, 0.0),
    ({"Retry-After": IN_90_S, "Date": format_datetime(THEN + timedelta(seconds=60), usegmt=True)}, 503, 30.0),
    ({"Retry-After": IN_90_S, "Date": "garbage"}, 503, 90.0),
    ({"retry-after-ms": "250", "retry-after": "9"}, 429, 0.25),
    ({"retry-after-ms": "garbage", "retry-after": "9"}, 429, 9.0),
    ({"x-ratelimit-reset": "12"}, 429, 12.0),
    ({"x-ratelimit-reset": "12"}, 503, 12.0),
    ({"x-ratelimit-reset": "12"}, 500, None),
    ({"x-ratelimit-reset": "12", "retry-after": "3"}, 429, 3.0),
    ({"x-ratelimit-reset": str(NOW + 40)}, 429, 40.0),
    ({"x-ratelimit-reset": str((NOW + 40) * 1000)}, 429, 40.0),
    ({"x-ratelimit-reset": str(NOW - 40)}, 429, 0.0),
    ({"x-ratelimit-reset": "garbage"}, 429, None),
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
]


@pytest.mark.parametrize(("headers", "status", "expected"), HEADERS)
def test_headers(headers, status, expected) -> None:
    wait = classify(httpx.Response(status, headers=headers), now=NOW).retry_after
    assert wait == (None if expected is None else pytest.approx(expected, abs=1e-3))


def test_durations() -> None:
    assert duration("1h2m3.5s") == 3723.5
    assert duration("1d") == 86400.0
    for garbage in ("", "s", "1", "1x", "-1s", "1s!", "1" * 50 + "s"):
        assert duration(garbage) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3.0),
        (-3, 0.0),
        (True, None),
        (None, None),
        (math.nan, None),
        (math.inf, None),
        (10**400, None),
        ("4", 4.0),
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


header_values = st.text(max_size=30) | st.floats().map(str) | st.datetimes().map(str) | st.integers().map(str)
header_names = st.sampled_from([*{name for headers, _, _ in HEADERS for name in headers}, "x"])


@given(st.dictionaries(header_names.map(str.lower), header_values), st.sampled_from([None, 200, 429, 503]))
def test_a_wait_is_a_number_of_seconds_or_none(headers, status) -> None:
    for now in (0.0, NOW, 1e12):
        wait = retry_after_seconds(headers, status=status, now=now)
        assert wait is None or (math.isfinite(wait) and wait >= 0)


@given(
    st.one_of(st.none(), st.text(), st.integers(), st.floats(), st.timedeltas(), st.datetimes(), st.binary())
)
def test_a_value_is_a_number_of_seconds_or_none(value) -> None:
    wait = wait_of_value(value, NOW)
    assert wait is None or (math.isfinite(wait) and wait >= 0)
