"""What cannot be meant is refused when it is written, in one sentence that says what to write."""

from __future__ import annotations

import pytest
from prefect import flow, task

from prefect_resilience import ConfigurationError, ResilientTask, resilient_task


def work(question, provider="first"):
    return question


async def awork(question):
    return question


@pytest.mark.api
@pytest.mark.parametrize("function", [work, awork])
def test_a_plain_task_over_a_resilient_one_is_refused_when_it_is_called(function):
    made = task(name="outer", retries=0)(resilient_task(function))

    @flow
    def calling():
        return made("what")

    says = f"@task decorates '{function.__name__}', which @resilient_task has already made a task: remove"
    with pytest.raises(ConfigurationError, match=says):
        calling()


def test_a_timeout_that_is_written_later_replaces_the_other_kind():
    ours = resilient_task(timeout=5)(work)
    theirs = task(timeout_seconds=7)(work)
    assert ours.with_options(name="n").guard.timeout.total == 5
    prefects = ours.with_options(timeout_seconds=3)
    assert (prefects.timeout_seconds, prefects.guard.timeout) == (3, None)
    assert (prefects.with_options(timeout=4).timeout_seconds) is None
    assert prefects.with_options(timeout=4).guard.timeout.total == 4
    wrapped = ResilientTask.wrap(theirs, timeout=2)
    assert (wrapped.timeout_seconds, wrapped.guard.timeout.total) == (None, 2)
    assert ResilientTask.wrap(theirs).timeout_seconds == theirs.timeout_seconds == 7
