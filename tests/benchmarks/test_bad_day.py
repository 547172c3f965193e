"""The bad day: its columns counted by hand on a small day, and its table in the README."""

from pathlib import Path

import pytest

from benchmarks import bad_day_page
from benchmarks.bad_day_calls import Attempt, Change, Seen
from benchmarks.bad_day_figures import Round, figures
from benchmarks.bad_day_script import FULL, RIVALS, WITH_CIRCUITS, Call
from benchmarks.bad_day_services import SECOND, Request

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
BEGINS = 1_000.0


def at(number: int, asked: str, began: float, ended: float, ok: bool) -> Attempt:
    return Attempt(number, asked, BEGINS + began, BEGINS + ended, ok)


def small_day(rival: str = RIVALS[-1]) -> Round:
    """Four calls of `stock`, which is dead from 30 to 50: one before, one that a retry saves after it, one
    that the open circuit hands to the second provider, one that is lost."""
    calls = [
        Call(0, "stock", 10, 0),
        Call(1, "stock", 40, 0),
        Call(2, "stock", 45, 0),
        Call(3, "stock", 46, 0),
    ]
    seen = Seen(
        begun={0: BEGINS + 10, 1: BEGINS + 40.5, 2: BEGINS + 45, 3: BEGINS + 46},
        attempts=[
            at(0, "stock", 10, 10.1, True),
            at(1, "stock", 40.5, 42.5, False),
            at(1, "stock", 51, 51.5, True),
            at(2, SECOND, 45, 45.1, False),
            at(2, SECOND, 45.5, 45.6, True),
            at(3, "stock", 46, 46.25, False),
        ],
        outcomes={0: True, 1: True, 2: True, 3: False},
        changes=[Change("stock", "open", BEGINS + 42.5), Change("stock", "closed", BEGINS + 51.5)],
    )
    requests = [
        Request("stock", 0, 10, "ok"),
        Request("stock", 1, 40.5, "hang"),
        Request("stock", 1, 40.6, "503"),
        Request(SECOND, 2, 45, "ok"),
        Request(SECOND, 2, 45.5, "ok"),
        Request("stock", 3, 46, "503"),
        Request("stock", 1, 51, "ok"),
    ]
    return Round(rival, BEGINS, calls, seen, requests, 1.0, rival in WITH_CIRCUITS)


def test_the_columns_are_what_the_page_says_they_are() -> None:
    row = figures(small_day(), FULL)
    assert (row.success, row.by_own, row.by_second) == (75.0, 50.0, 25.0)
    # The refused call was not failed by its service.
    assert (row.hit, row.recovered) == (2, 50.0)
    assert row.recovery_p95 == pytest.approx(9.0)
    assert (row.dead_asked, row.dead_reached, row.dead) == (3, 3, 100.0)
    # Of the two that were due while it was open, one reached it.
    assert (row.opened_asked, row.opened_reached, row.after_opening) == (2, 1, 50.0)
    assert row.wasted == pytest.approx(2.35)
    # What arrives while it is dead is no load at its return.
    assert row.load_at_return == pytest.approx(1 / (FULL.usual_rate * FULL.peak))
    assert (row.openings, row.machine_load) == (1, 1.0)
    assert row.rate == pytest.approx(3 / 36)
    assert row.late_p95 == pytest.approx(0.5)


def test_the_table_of_the_readme_is_that_of_the_page(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text((ROOT / "README.md").read_text())
    bad_day_page.copy_table(ROOT / "docs" / "bad_day.md", readme)
    assert readme.read_text() == (ROOT / "README.md").read_text()
