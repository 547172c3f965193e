"""keep_partial in real runs: for handlers, fallbacks, and the next attempt."""

import asyncio
import time

import pytest
from prefect import flow
from prefect import task as plain_task

from prefect_resilience import (
    Backoff,
    Retry,
    Timeout,
    keep_partial,
    previous_error,
    previous_partial,
    resilient_task,
)
from prefect_resilience.guards.timeouts import process_mode
from prefect_resilience.tasks.edge.task_runs import _records
from tests.contexts import context_of

pytestmark = pytest.mark.api

TWICE = Retry(attempts=2, backoff=Backoff.none())


@pytest.mark.requirement("001.08")
def test_the_last_value_is_in_the_error_and_for_the_fallback(mode):
    def read(pages):
        for page in pages:
            keep_partial({"page": page, "token": "ghp_abcdefghijklmnopqrstuvwxyz0123456789"})
        raise ConnectionResetError("cut")

    made = mode.task(read, retry=None)
    with pytest.raises(ConnectionResetError) as caught:
        mode.value(made, [1, 2])
    partial = context_of(caught.value).partial_output
    assert (partial.content["page"], partial.truncated) == (2, False)
    assert "ghp_abcdef" not in partial.model_dump_json()
    instead = made.with_options(fallback=lambda pages, error: (pages, error.partial_output.content["page"]))
    assert mode.value(instead, [1, 2]) == ([1, 2], 2)


@pytest.mark.smoke
def test_the_next_attempt_goes_on_where_the_last_one_stopped(mode):
    calls = []

    def read(pages):
        for page in pages[len(previous_partial() or []) :]:
            calls.append(page)
            if page in (2, 4) and calls.count(page) == 1:
                raise ConnectionResetError("cut")
            keep_partial(page, append=True)
        return previous_error() and previous_error().partial_output.content

    made = mode.task(read, retry=Retry(attempts=3, backoff=Backoff.none()))
    assert mode.value(made, [1, 2, 3, 4]) == [1, 2, 3]
    assert calls == [1, 2, 2, 3, 4, 4]


@pytest.mark.parametrize(
    ("attempts", "kept"),
    [([[0, 1], [0, 1, 2]], [0, 1, 2]), ([["half"], []], ["half"])],
    ids=["anew", "nothing"],
)
def test_what_the_last_attempt_kept_that_kept_anything(mode, attempts, kept):
    pages = iter(attempts)

    def read():
        for page in next(pages):
            keep_partial(page, append=True)
        raise ConnectionResetError("cut")

    with pytest.raises(ConnectionResetError) as caught:
        mode.value(mode.task(read, retry=TWICE))
    assert context_of(caught.value).partial_output.content == kept


def test_success_leaves_nothing_behind_and_is_no_recovery(mode, caplog):
    def fine():
        return keep_partial("value")

    before = len(_records)
    assert mode.value(mode.task(fine)) == "value"
    assert len(_records) == before
    assert not [line for line in caplog.messages if "Recovered" in line]


def test_outside_of_a_resilient_run_nothing_is_kept():
    assert keep_partial(5) == 5
    assert previous_partial() is None

    @plain_task
    def alone():
        return keep_partial("x"), previous_partial()

    assert flow(lambda: alone())() == ("x", None)


@pytest.mark.timeout(300)
def test_what_a_killed_child_process_had_kept(tmp_path, monkeypatch):
    """By a clock that passes the deadline as soon as the child has kept both."""
    kept = tmp_path / "kept"
    monkeypatch.setattr(process_mode, "monotonic", lambda: time.monotonic() + 1000 * kept.exists())

    @resilient_task(timeout=Timeout(140, mode="process"), retry=TWICE)
    def slow():
        if previous_partial():
            assert previous_error().category == "timeout"
            raise ValueError(f"had {previous_partial()}")
        keep_partial("first", append=True)
        keep_partial("second", append=True)
        kept.touch()
        time.sleep(60)

    with pytest.raises(ValueError, match=r"had \['first', 'second'\]") as caught:
        flow(lambda: slow())()
    context = context_of(caught.value)
    assert context.partial_output.content == ["first", "second"]


def test_parallel_runs_keep_their_own():
    @resilient_task(retry=None)
    async def read(number):
        keep_partial(number)
        await asyncio.sleep(0)
        raise ValueError("no")

    @flow
    async def scenario():
        return await asyncio.gather(*(read(number) for number in range(5)), return_exceptions=True)

    errors = asyncio.run(scenario())
    assert [context_of(error).partial_output.content for error in errors] == [0, 1, 2, 3, 4]
