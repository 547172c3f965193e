"""Partial failure: every outcome, a verdict, a table."""

import asyncio
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefect import flow, task
from prefect.states import Cancelled

from prefect_resilience import Backoff, Retry, TooManyFailures, agather, gather, register_secret
from prefect_resilience.graphs.routing.edge.gathering import Gathered, Outcome, allowed_of
from tests.contexts import context_of
from tests.graphs.routing.scenes import in_flow


def halves(mode, **options):
    def half(x):
        if x % 2:
            raise ConnectionResetError(f"odd | {x}")
        return x // 2

    return mode.task(half, retry=Retry(attempts=2, backoff=Backoff.none()), **options)


def gathered_in_flow(mode, make, **options):
    """`gather` in a sync flow, `agather` in an async one."""
    name = f"halving {mode.name}"
    if mode.isasync:

        @flow(name=name)
        async def scenario():
            return await agather(make(), **options)

        return asyncio.run(scenario())
    return in_flow(mode, lambda: gather(make(), **options), name=name)


@pytest.mark.smoke
@pytest.mark.requirement("002.22")
@pytest.mark.api
def test_every_outcome_in_its_order(mode, until):
    found = gathered_in_flow(mode, lambda: halves(mode).map(range(5)), allow_failures=0.5)
    assert [outcome.value for outcome in found.outcomes] == [0, None, 1, None, 2]
    assert [outcome.state for outcome in found.outcomes] == ["Completed", "Failed"] * 2 + ["Completed"]
    assert [outcome.index for outcome in found.failures] == [1, 3]
    assert all(outcome.task_run_id for outcome in found.outcomes)
    assert found.failures[0].error.category == "network"
    assert found.values == [0, 1, 2]
    assert found.succeeded
    assert found.table.splitlines() == [
        "| item | error |",
        "| --- | --- |",
        "| 1 | NETWORK\\_ERROR network: odd ¦ 1 |",
        "| 3 | NETWORK\\_ERROR network: odd ¦ 3 |",
    ]


@pytest.mark.requirement("002.31")
@pytest.mark.api
def test_too_many(mode):
    found = gathered_in_flow(mode, lambda: halves(mode).map(range(5)), allow_failures=1)
    assert not found.succeeded
    with pytest.raises(TooManyFailures) as caught:
        found.raise_for_failures()
    error = caught.value
    assert str(error) == (
        "2 of 5 items failed, but only 1 may fail; first failed item 1: NETWORK_ERROR network: odd | 1"
    )
    context = context_of(error)
    assert (context.category, context.kind, context.cause.category) == ("subtask", "transient", "network")
    assert context.details == {"failed": 2, "total": 5, "allowed": 1, "items": ["1", "3"]}
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.failures, again.total) == (str(error), error.failures, 5)


@pytest.mark.api
def test_states_values_errors_and_what_never_ran(mode):
    def body():
        plain = task(mode.function(lambda x: 1 // x), name="divide")
        bad = plain.submit(0)
        good = plain.submit(1)
        good.wait()
        items = [
            good.state,
            bad,
            plain.submit(bad),
            Cancelled(message="by hand"),
            "value",
            KeyError("k"),
            None,
        ]
        return gather(items, allow_failures=True)

    found = in_flow(mode, body)
    assert [outcome.state for outcome in found.outcomes] == [
        "Completed",
        "Failed",
        "NotReady",
        "Cancelled",
        "Completed",
        "Failed",
        "Completed",
    ]
    assert [outcome.succeeded for outcome in found.outcomes] == [True, False, False, False, True, False, True]
    codes = [outcome.error.code for outcome in found.failures]
    assert codes == ["ZeroDivisionError", "NOT_RUN", "CANCELLED", "KeyError"]
    assert found.values == [1, "value", None]
    assert found.succeeded


def test_outside_of_a_flow():
    found = gather([1, ValueError("x")], allow_failures=1)
    assert (found.values, found.succeeded) == ([1], True)
    assert gather([]).values == []
    assert gather([]).table == ""


def test_the_table_is_bounded_and_holds_no_secrets():
    register_secret("hunter2-hunter2")
    failures = [ValueError("a <b>`x`</b> hunter2-hunter2 " + "y" * 1_000)] * 150
    found = gather(failures, allow_failures=True)
    lines = found.table.splitlines()
    assert len(lines) == 103
    assert lines[-1] == "| … | and 50 more |"
    assert max(map(len, lines)) < 500
    assert "hunter2-hunter2" not in found.table
    assert "\\<b\\>\\`x\\`" in lines[2]
    with pytest.raises(TooManyFailures) as caught:
        gather(failures).raise_for_failures()
    assert (len(caught.value.failures), caught.value.failed) == (100, 150)


def test_a_share_is_taken_at_its_word():
    for total, share, allowed in [
        (100, 0.29, 29),
        (10, 0.7, 7),
        (3, 0.1, 0),
        (30, 0.1, 3),
        (7, 1.0, 7),
        (9, 0.0, 0),
    ]:
        assert allowed_of(share, total) == allowed
    assert (allowed_of(True, 8), allowed_of(False, 8), allowed_of(3, 2)) == (8, 0, 3)


@settings(deadline=None)
@given(st.integers(0, 50), st.integers(0, 50), st.floats(0, 1))
def test_the_verdict_is_a_matter_of_counting(good, bad, share):
    outcomes = [Outcome(n, str(n), "Completed", n) for n in range(good)]
    error = context_of(ValueError("x"))
    outcomes += [Outcome(n, str(n), "Failed", error=error) for n in range(bad)]
    found = Gathered(tuple(outcomes), allowed_of(share, good + bad))
    if bad / (good + bad or 1) < share - 1e-9:
        assert found.succeeded
    if bad / (good + bad or 1) > share + 1e-9:
        assert not found.succeeded
    assert len(found.values) + len(found.failures) == good + bad
