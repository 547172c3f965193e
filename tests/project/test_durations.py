"""Durations: one parser, for every option."""

from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from prefect_resilience.base.durations import UNITS, as_seconds, seconds, seconds_of


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (30, 30.0),
        (0, 0.0),
        (-1, -1.0),
        ("30", 30.0),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("m", 60.0),
        ("1h30m", 5400.0),
        ("2d", 172_800.0),
        ("1w", 604_800.0),
        ("1h 30m 15s 250ms", 5415.25),
        (timedelta(minutes=1), 60.0),
        ("", None),
        ("soon", None),
        ("-5s", None),
        ("1s" * 100, None),
        (True, None),
        (None, None),
        (float("nan"), None),
        (float("inf"), None),
        (10**400, None),
    ],
)
def test_what_a_duration_may_be(written: object, found: float | None) -> None:
    assert seconds_of(written) == found


@given(st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(list(UNITS))), min_size=1, max_size=5))
def test_the_parts_of_a_text_are_added(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{number}{unit}" for number, unit in parts)
    assert seconds_of(text) == pytest.approx(sum(number * UNITS[unit] for number, unit in parts))


@given(st.text(max_size=20))
@example("0\x1f")
def test_no_text_is_too_strange(text: str) -> None:
    found = seconds_of(text)
    assert found is None or found >= 0


def test_bounds() -> None:
    assert seconds("It", "1m", least=60, most=60) == 60
    with pytest.raises(ValueError, match=r"It must be a duration such as 30 .seconds., .* not 'x'"):
        seconds("It", "x")
    with pytest.raises(ValueError, match="It must be between 1 seconds and ten years, not 0"):
        seconds("It", 0, least=1)
    with pytest.raises(ValueError, match="It must be between 0 seconds and 5 seconds, not 6"):
        seconds("It", 6, most=5)
    assert as_seconds("1m") == 60
    with pytest.raises(ValueError, match="'x' is not a duration: write 30"):
        as_seconds("x")
