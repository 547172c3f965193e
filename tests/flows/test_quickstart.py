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


def test_every_item_has_its_row(table: dict[int, list[str]]) -> None:
    assert sorted(table) == list(range(1, 25))


@pytest.mark.parametrize("number", [1, 2, 3, 4, 19, 20, 21, 22, 23, 24])
def test_what_works_takes_one_attempt(table: dict[int, list[str]], number: int) -> None:
    assert told(table, number) == (1, "success", "primary")


def test_retries_get_over_small_troubles(table: dict[int, list[str]]) -> None:
    assert told(table, 5) == (3, "503, 503, success", "primary")
    assert told(table, 6) == (2, "429, success", "primary")
    assert told(table, 7) == (2, "timeout, success", "primary")
    assert told(table, 8) == (2, "connection dropped, success", "primary")


def test_the_server_is_not_asked_again_before_it_said(table: dict[int, list[str]]) -> None:
    assert float(table[6][-1]) >= 1.0


def test_a_slow_answer_is_not_waited_for(table: dict[int, list[str]]) -> None:
    assert 2.0 <= float(table[7][-1]) < 4.0


def test_our_own_mistake_is_not_retried_and_nobody_else_is_asked(table: dict[int, list[str]]) -> None:
    attempts, history, by = told(table, 9)
    assert (attempts, by) == (1, "-")
    assert history.startswith("gave up: 400")


@pytest.mark.parametrize("number", [10, 11, 12])
def test_failures_open_the_circuit(table: dict[int, list[str]], number: int) -> None:
    assert told(table, number) == (2, "503, 503, rejected, fallback", "second")


@pytest.mark.parametrize("number", range(13, 19))
def test_an_open_circuit_lets_no_call_through(table: dict[int, list[str]], number: int) -> None:
    assert told(table, number) == (0, "rejected, fallback", "second")


def test_the_service_counted_no_call_about_them(printed: str) -> None:
    assert "The primary received 26 requests. For 6 pairs it received none" in printed


def test_the_circuit_opens_and_closes(printed: str) -> None:
    opened = printed.index("circuit interactions-primary is open")
    assert printed.index("circuit interactions-primary is closed") > opened


def test_it_says_where_to_look(printed: str) -> None:
    assert "prefect server start" in printed
    assert "PREFECT_API_URL=" in printed
