"""What the command line understands and how it says times: pure functions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from prefect_resilience import CircuitSnapshot
from prefect_resilience.base.text import lasting
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations.cli import circuits as commands
from prefect_resilience.operations.cli import look, options

ZONE = timezone(timedelta(hours=2))
NOW = datetime(2026, 11, 20, 12, 0, tzinfo=ZONE)


@pytest.mark.parametrize(
    ("text", "seconds"), [("10m", 600), ("1h30m", 5400), ("90s", 90), ("2D", 172_800), ("0.5h", 1800)]
)
def test_until_as_a_span(text: str, seconds: float) -> None:
    assert options.until(text, NOW) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-20T18:00", datetime(2026, 11, 20, 18, tzinfo=ZONE)),
        ("2026-11-20T18:00:00Z", datetime(2026, 11, 20, 18, tzinfo=UTC)),
        ("2026-11-21", datetime(2026, 11, 21, tzinfo=ZONE)),
    ],
)
def test_until_as_a_time_is_local_unless_it_says_so(text: str, moment: datetime) -> None:
    assert options.until(text, NOW) == moment


@pytest.mark.parametrize(
    "text", ["", "10", "soon", "0s", "99999d", "-5m", "5m ago", "2026-11-20T11:59", "9e9h"]
)
def test_until_that_is_no_time_to_come(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--until"):
        options.until(text, NOW)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"),
        (0.0123, "12 ms"),
        (0.9999, "1 s"),
        (2.345, "2.3 s"),
        (28.4, "28 s"),
        (119, "119 s"),
        (7200, "2 h"),
        (3605, "60 min"),
        (90_061, "25 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert lasting(seconds) == text


def test_a_time_has_its_age() -> None:
    assert look.local(1000.0, 1090.0).endswith("(90 s ago)")
    assert look.local(1090.0, 1000.0).endswith("(in 90 s)")


def test_names_and_globs() -> None:
    circuits = [CircuitSnapshot(name=name) for name in ("llm:a", "llm:b", "LLM:c", "odd[1]")]
    assert [found.name for found in commands.matching("llm:*", circuits)] == ["llm:a", "llm:b"]
    assert commands.is_glob("llm:?", circuits)
    assert not commands.is_glob("llm:a", circuits)
    assert not commands.is_glob("odd[1]", circuits), "a circuit is really called so"


def test_what_a_service_says_cannot_move_the_cursor() -> None:
    assert look.printable("a\x1b[2J\nb\tc") == "a\N{REPLACEMENT CHARACTER}[2J b c"
