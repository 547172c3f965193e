"""What the command line understands and how it says times: pure functions."""

import io
from datetime import UTC, datetime, timedelta, timezone

import pytest
from rich.console import Console

from prefect_resilience.base.text import lasting
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations.cli import look, options

ZONE = timezone(timedelta(hours=2))
SECRET = "sk-ant-REDACTED"
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
    now = datetime.now().timestamp()
    assert look.cell("opened_at", now - 90).plain == "90 s ago"
    assert look.cell("retry_at", now + 90).plain == "in 90 s"
    assert look.cell("at", now - 90, in_full=True).plain.endswith(" (90 s ago)")
    assert look.cell("created_at", "2020-11-20T12:00:00Z").plain.endswith(" d ago")


def test_a_card_has_what_has_a_value() -> None:
    console = Console(width=100, file=io.StringIO())
    document = {
        **{"name": "a", "state": "open", "nothing": None, "empty": [], "count": 0, "key": f"k {SECRET}"},
        **{"error": f"no {SECRET}", "hint": {"why": "it failed", "next_at": None}},
        "passes": [{"code": "503", "attempts": 2}, {"code": "", "attempts": 1}],
    }
    console.print(look.card(document))
    rows = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert rows == [
        *("name a", "state ✗ open", "count 0", f"key k {SECRET}", "error no ***", "hint why = it failed"),
        *("passes code 503, attempts 2", "attempts 1"),
    ]


def test_what_a_service_says_cannot_move_the_cursor() -> None:
    assert look.printable("a\x1b[2J\nb\tc") == "a\N{REPLACEMENT CHARACTER}[2J b c"
