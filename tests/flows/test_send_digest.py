"""The digest, sent for real by processes that are killed: what it prints is what it promises."""

from __future__ import annotations

import pytest
from prefect.settings import PREFECT_API_URL

from tests.flows.programs import run_program

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory, prefect_api: None) -> str:
    home = str(tmp_path_factory.mktemp("prefect-home"))
    done = run_program("flows.send_digest", PREFECT_HOME=home, PREFECT_API_URL=str(PREFECT_API_URL.value()))
    return " ".join(done.stdout.split())


def test_each_receiver_got_each_message_exactly_once(printed):
    cells = [cell.strip() for cell in printed.split("│")]
    mails = [cells[place + 1 : place + 4] for place, cell in enumerate(cells) if cell == "mail"]
    posts = [cells[place + 1 : place + 4] for place, cell in enumerate(cells) if cell == "board"]
    assert len(mails) == len(posts) == 5
    assert {tuple(row[1:]) for row in mails} == {("1", "-")}
    assert {tuple(row[1:]) for row in posts} == {("1", "1")}


def test_it_was_killed_in_the_middle_and_withdrawn_in_reverse(printed):
    assert "Killed while post 2 was on its way: the board had it" in printed
    assert "Killed while post 4 was on its way: it never got there" in printed
    assert "The flow was killed 2 times" in printed
    assert " and 2 more; not compensated: " in printed
    assert printed.endswith("taken back in this order: post-5, post-4, post-3, post-2, post-1")
