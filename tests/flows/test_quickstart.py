"""The demo, run for real in a process of its own: what it prints is what it promises."""

from __future__ import annotations

import pytest

from tests.flows.programs import run_program

# number, item, attempts, result of each attempt, answered by, seconds
COLUMNS = 6

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = str(tmp_path_factory.mktemp("prefect-home"))
    return run_program("flows.quickstart", PREFECT_HOME=home, PREFECT_SERVER_ANALYTICS_ENABLED="false").stdout


@pytest.fixture(scope="module")
def table(printed: str) -> dict[int, list[str]]:
    """The rows of the last table, by the item's number."""
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in printed.splitlines()]
    return {int(row[0]): row[1:] for row in rows if len(row) == COLUMNS and row[0].isdigit()}


def told(table: dict[int, list[str]], number: int) -> tuple[int, str, str]:
    _, attempts, history, by, _ = table[number]
    return int(attempts), history, by


OUTCOMES = {
    **dict.fromkeys((*range(1, 5), *range(19, 25)), (1, "success", "primary")),
    5: (3, "503, 503, success", "primary"),
    6: (2, "429, success", "primary"),
    7: (2, "timeout, success", "primary"),
    8: (2, "connection dropped, success", "primary"),
    **dict.fromkeys(range(10, 13), (2, "503, 503, rejected, fallback", "second")),
    **dict.fromkeys(range(13, 19), (0, "rejected, fallback", "second")),
}
"""By the item's number: its attempts, their results, and the answering service; 9 is a mistake of ours."""


def test_every_item_has_its_outcome(table: dict[int, list[str]]) -> None:
    assert sorted(table) == list(range(1, 25))
    assert {number: told(table, number) for number in OUTCOMES} == OUTCOMES


def test_the_server_is_not_asked_again_before_it_said(table: dict[int, list[str]]) -> None:
    assert float(table[6][-1]) >= 1.0


def test_a_slow_answer_is_not_waited_for(table: dict[int, list[str]]) -> None:
    assert 2.0 <= float(table[7][-1]) < 4.0


def test_our_own_mistake_is_not_retried_and_nobody_else_is_asked(table: dict[int, list[str]]) -> None:
    attempts, history, by = told(table, 9)
    assert (attempts, by) == (1, "-")
    assert history.startswith("gave up: 400")


def test_the_service_counted_no_call_about_them(printed: str) -> None:
    assert "The primary received 26 requests. For 6 pairs it received none" in printed


def test_the_circuit_opens_and_closes(printed: str) -> None:
    opened = printed.index("circuit interactions-primary is open")
    assert printed.index("circuit interactions-primary is closed") > opened


def test_it_says_where_to_look(printed: str) -> None:
    assert "prefect server start" in printed
    assert "PREFECT_API_URL=" in printed
