"""Futures whose run left no state behind, and other ends that are hard to bring about."""

import inspect
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from uuid import uuid4

import pytest
from prefect.exceptions import UpstreamTaskError
from prefect.futures import PrefectConcurrentFuture
from prefect.states import Cancelled
from prefect.tasks import task

from prefect_resilience import iterate
from prefect_resilience.graphs.routing.edge.route import MOST_CAUSES, with_cause
from prefect_resilience.graphs.routing.edge.upstream import FailedUpstream, NeverRan, ending_of, state_after
from prefect_resilience.graphs.routing.rounds import same
from tests.contexts import context_of


def lost(error=None):
    """A run of which the runner has an error and no state."""
    inner = Future()
    if error is None:
        inner.cancel()
        inner.set_running_or_notify_cancel()
    else:
        inner.set_exception(error)
    return PrefectConcurrentFuture(uuid4(), inner)


def test_a_run_that_its_runner_lost_has_crashed():
    future = lost(BrokenProcessPool("a worker died"))
    ending = ending_of(future)
    assert isinstance(ending, FailedUpstream)
    assert (ending.context.category, ending.context.task_run_id) == ("agent_crash", str(future.task_run_id))
    assert state_after(future).name == "Crashed"


def test_a_run_that_was_blocked_before_it_was_sent_never_ran():
    ending = ending_of(lost(UpstreamTaskError("upstream x did not complete")))
    assert isinstance(ending, NeverRan)
    assert (ending.state.name, ending.why) == ("NotReady", "NotReady: upstream x did not complete")


def test_a_run_that_was_taken_off_the_queue_never_ran():
    ending = ending_of(lost())
    assert isinstance(ending, NeverRan)
    assert ending.context.category == "cancelled"


class Quiet(PrefectConcurrentFuture):
    """As Dask's: waiting for a run that was lost gives nothing."""

    def wait(self, timeout=None):
        return


@pytest.mark.api
def test_a_runner_that_does_not_raise_what_it_lost():
    future = lost(MemoryError("killed"))
    future.__class__ = Quiet
    assert state_after(future).name == "Crashed"


class Interrupted(PrefectConcurrentFuture):
    def wait(self, timeout=None):
        raise KeyboardInterrupt


@pytest.mark.parametrize("inner", [None, RuntimeError("another")])
def test_an_interrupted_wait_is_not_the_runs_end(inner):
    future = PrefectConcurrentFuture(uuid4(), Future()) if inner is None else lost(inner)
    future.__class__ = Interrupted
    with pytest.raises(KeyboardInterrupt):
        state_after(future)


def test_causes_end_somewhere():
    context = context_of(ValueError("x"))
    for _ in range(MOST_CAUSES + 10):
        context = with_cause(context, context_of(KeyError("y")))
    depth = 0
    while context.cause is not None:
        context, depth = context.cause, depth + 1
    assert depth == MOST_CAUSES


def test_what_is_too_large_to_compare_is_not_the_same():
    assert same([1] * 100, [1] * 100)
    assert not same([1] * 100, [1] * 100, steps=50)


@pytest.mark.api
def test_a_step_that_was_cancelled_ends_the_loop():
    with pytest.raises(RuntimeError, match="never ran: Cancelled: by hand"):
        iterate(task(lambda: Cancelled(message="by hand"), name="step"), bool, 3)


def test_signatures_read_well():
    assert "start: 'Any' = unset" in str(inspect.signature(iterate))
