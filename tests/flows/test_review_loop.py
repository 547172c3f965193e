"""The review loop's example on a real API, with the real SDKs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.settings import get_current_settings

from flows import review_loop
from flows.serving import running
from tests.flows.programs import run_program

pytestmark = [pytest.mark.api, pytest.mark.slow]


@pytest.fixture
def address() -> Iterator[str]:
    review_loop.SERVICE.script.clear()
    with running(review_loop.SERVICE) as at:
        yield at


def test_it_writes_until_the_review_is_good(address) -> None:
    assert review_loop.improved(address) == "About aspirin: dose interactions children warnings"


def test_a_loop_that_changes_nothing_ends_as_no_progress_with_its_history(address) -> None:
    context = review_loop.stubborn(address)
    assert context is not None
    assert (context.category, context.reason) == ("no_progress", "execution_halted")
    history = context.details["iteration_history"]
    assert [row["round"] for row in history] == [1, 2, 3, 4]
    assert len({row["progress"] for row in history}) == 1


def test_a_broken_promise_is_given_up_after_the_third_try_with_the_original_kept(address) -> None:
    context = review_loop.without_json(address)
    assert context is not None
    assert (context.category, context.attempt) == ("validation", 3)
    assert "oops" in context.partial_output.content


def test_it_runs_as_it_is_written_down(tmp_path: Path) -> None:
    api = str(get_current_settings().api.url)
    done = run_program("flows.review_loop", PREFECT_API_URL=api, PREFECT_HOME=str(tmp_path))
    assert done.stderr == ""
    rows = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines()]
    assert [row[1] for row in rows if row[0] == "round 2"] == ["malformed, ok", "ok"]
    assert [row[3] for row in rows if row[0] == "the loop"] == ["no_progress"]
