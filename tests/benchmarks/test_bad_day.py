"""The bad day: its columns counted by hand on a small day, and a day of seconds lived through by all four."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.settings import PREFECT_API_URL
from tenacity import RetryCallState, Retrying

from benchmarks import bad_day_columns, bad_day_page, bad_day_rounds
from benchmarks.bad_day_calls import Attempt, Change, Seen, pauses
from benchmarks.bad_day_figures import Figures, Round, busiest, figures, open_spans, percentile
from benchmarks.bad_day_script import (
    FULL,
    RIVALS,
    SERVICES,
    SHORT,
    WITH_CIRCUITS,
    Call,
    chance_of,
    dead_spans,
    returns,
    schedule,
    trouble_at,
)
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


def test_who_has_no_circuit_has_no_figure_of_one() -> None:
    row = figures(small_day("retries"), FULL)
    assert (row.opened_asked, row.after_opening, row.openings) == (0, None, 0)
    shown = {column.figure: column.shown(row) for column in bad_day_columns.COLUMNS}
    assert (shown["after_opening"], shown["dead"]) == ("no circuit", "100.0 % (3 for 3)")
    assert row.dead == 100.0


def test_a_circuit_is_open_from_the_first_who_says_so_to_the_first_who_denies_it() -> None:
    day = small_day()
    day.seen.changes = [
        Change("stock", "closed", BEGINS + 20),
        Change("stock", "open", BEGINS + 2),
        Change("stock", "open", BEGINS + 1),
        Change("stock", "half_open", BEGINS + 19),
        Change("stock", "closed", BEGINS + 21),
        Change("stock", "open", BEGINS + 30),
    ]
    assert open_spans(day)["stock"] == [(1, 20), (30, float("inf"))]


def test_percentiles_and_the_busiest_span() -> None:
    assert percentile([], 0.95) is None
    assert percentile(range(1, 101), 0.95) == 95
    assert percentile([7.0], 0.95) == 7.0
    assert busiest([], 3) == 0
    assert busiest([0, 1, 2.9, 3, 5], 3) == 3


def test_everybody_lives_through_the_same_day() -> None:
    calls = schedule(FULL, 1)
    assert calls == schedule(FULL, 1) != schedule(FULL, 2)
    assert len(calls) == FULL.calls
    assert Counter(call.service for call in calls) == dict.fromkeys(SERVICES, 400)
    assert Counter(call.process for call in calls) == dict.fromkeys(range(4), 500)
    assert [call.at for call in calls] == sorted(call.at for call in calls)
    assert chance_of(1, "stock", 7, 2) == chance_of(1, "stock", 7, 2) != chance_of(1, "stock", 7, 3)


def test_the_script_at_any_length() -> None:
    assert dead_spans("stock", FULL) == [(30, 50)]
    assert [back for service, (back, _) in returns(FULL) if service == "ratings"] == [69, 75, 81, 87, 93]
    for form in (FULL, SHORT):
        trouble = trouble_at("stock", 40 * form.stretch, form)
        assert trouble is not None
        assert trouble.kind == "outage"
        assert trouble_at("stock", 51 * form.stretch, form) is None


def test_the_peer_pauses_as_long_as_the_server_asks() -> None:
    state = RetryCallState(Retrying(), None, (), {})
    request = httpx.Request("GET", "http://127.0.0.1/1")
    limited = httpx.HTTPStatusError(
        "", request=request, response=httpx.Response(429, headers={"Retry-After": "2"})
    )
    for error, least, most in ((limited, 2, 2), (httpx.ReadTimeout(""), 0.1, 0.12)):
        state.set_exception((type(error), error, None))
        assert least <= pauses(0.1)(state) <= most


def row_of(rival: str, **changes: Any) -> Figures:
    return Figures(**{**figures(small_day(rival), FULL).as_dict(), **changes})


def test_what_is_promised_and_where_ours_is_not_better() -> None:
    good = {"recovered": 99.0, "after_opening": 0.9, "recovery_p95": 9.9, "load_at_return": 1.5}
    ours = row_of(RIVALS[-1], **good)
    assert all(bad_day_columns.kept_promises([ours]).values())
    for name, value in {
        "recovered": 98.9,
        "after_opening": 1.0,
        "recovery_p95": 10.0,
        "load_at_return": 1.6,
    }.items():
        broken = bad_day_columns.kept_promises([row_of(RIVALS[-1], **{**good, name: value})])
        assert [promise for promise, well in broken.items() if not well] == [name]
    none = row_of(
        "no retries",
        load_at_return=1.5,
        success=50.0,
        recovered=0.0,
        dead=200.0,
        wasted=9.0,
        recovery_p95=None,
    )
    (sentence,) = bad_day_columns.not_better([none, ours])
    assert sentence.startswith("*load after recovery*, compared with no retries: ")
    assert bad_day_columns.kept_promises([none]) == {}


@pytest.fixture(scope="module")
def rounds(prefect_api: None) -> list[Round]:
    """A day of seconds by all four, on the tests' own Prefect server."""
    api = PREFECT_API_URL.value()
    assert api is not None
    return bad_day_rounds.live(SHORT, 4, RIVALS, api)


def test_all_four_live_through_a_day_of_seconds(rounds: list[Round], tmp_path: Path) -> None:
    rows = [figures(day, SHORT) for day in rounds]
    assert [row.rival for row in rows] == list(RIVALS)
    for day, row in zip(rounds, rows, strict=True):
        assert set(day.seen.begun) == set(day.seen.outcomes) == {call.number for call in day.calls}
        # What arrived was sent; what was given up before it was read may not have arrived.
        sent = Counter((attempt.number, attempt.asked) for attempt in day.seen.attempts)
        assert sent >= Counter((request.number, request.service) for request in day.requests)
        answered = {attempt.number for attempt in day.seen.attempts if attempt.ok}
        assert answered == {number for number, well in day.seen.outcomes.items() if well}
        assert row.success == pytest.approx(row.by_own + row.by_second)
    no_retries, retries, peer, ours = rows
    assert no_retries.success < 100
    assert no_retries.recovered == 0
    assert retries.success >= no_retries.success
    assert (no_retries.by_second, retries.by_second) == (0, 0)
    assert (peer.success, ours.success) == (100, 100)
    assert (peer.recovered, ours.recovered) == (100, 100)
    page = tmp_path / "bad_day.md"
    bad_day_page.write(page, rows, rounds, SHORT, bad_day_page.machine(SHORT, 4))
    text = page.read_text()
    assert f"| prefect-resilience | {ours.success:.2f} % |" in text
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- bad day -->\nold\n<!-- /bad day -->\nafter\n")
    bad_day_page.copy_table(page, readme)
    assert f"| prefect-resilience | {ours.success:.2f} % |" in readme.read_text()
    lines = readme.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "old" not in lines
    for picture in ("bad_day.png", "bad_day_services.png"):
        assert f"]({picture})" in text
        assert (tmp_path / picture).stat().st_size > 10_000


def test_the_table_of_the_readme_is_that_of_the_page(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text((ROOT / "README.md").read_text())
    bad_day_page.copy_table(ROOT / "docs" / "bad_day.md", readme)
    assert readme.read_text() == (ROOT / "README.md").read_text()


def test_a_readme_without_a_place_for_the_table_is_left_alone(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("nothing\n<!-- bad day -->\n")
    with pytest.raises(SystemExit, match="has no place for the table"):
        bad_day_page.copy_table(ROOT / "docs" / "bad_day.md", readme)
    assert readme.read_text() == "nothing\n<!-- bad day -->\n"
