"""The review loop's example on a real API, with the real SDKs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.settings import get_current_settings

from flows import review_loop
from flows.serving import running

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


def test_it_runs_as_it_is_written_down() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "COVERAGE_"))}
    env["PREFECT_API_URL"] = str(get_current_settings().api.url)
    done = subprocess.run(
        [sys.executable, "-m", "flows.review_loop"],
        cwd=Path(__file__).parents[2],
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    rows = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines()]
    assert [row[1] for row in rows if row[0] == "round 2"] == ["malformed, ok", "ok"]
    assert [row[3] for row in rows if row[0] == "the loop"] == ["no_progress"]
