"""The life of one call: begun or not, ended or still running when its attempt is over."""

import asyncio
import contextvars
import gc
import threading
import weakref

import pytest

from prefect_resilience.durable.effects.current import (
    CallOutcome,
    EffectInProgress,
    RunningCall,
    drop_cancelled_timers,
    in_progress,
    next_turn,
    when_gone,
)
from prefect_resilience.errors.exceptions import NotSent

pytestmark = pytest.mark.usefixtures("little_to_collect")


class Late:
    """Hears what a call came to after its attempt."""

    def __init__(self) -> None:
        self.heard: list[CallOutcome] = []

    def __call__(self, outcome: CallOutcome) -> None:
        self.heard.append(outcome)


@pytest.mark.parametrize("isasync", [False, True])
async def test_a_call_that_had_not_begun_never_does(isasync):
    """One that waited for a thread while its deadline passed."""
    running, late, called = RunningCall(), Late(), []

    async def asynchronous():
        called.append(1)

    assert not running.leave(late)
    if isasync:
        with pytest.raises(NotSent, match="before the call began"):
            await running.watched(asynchronous, isasync=True)()
    else:
        with pytest.raises(NotSent, match="before the call began"):
            running.watched(lambda: called.append(1), isasync=False)()
    assert called == []
    assert late.heard == []
    assert not running.entered


def test_leaving_and_ending_at_one_moment():
    """Whoever is second sees the first: a call is never both over and running, nor neither."""
    for _ in range(300):
        running, late, left = RunningCall(), Late(), []
        begin = threading.Barrier(2)

        def call(begin=begin):
            begin.wait(20)

        thread = threading.Thread(target=running.watched(call, isasync=False))
        thread.start()
        begin.wait(20)
        left.append(running.leave(late))
        thread.join(20)
        assert len(late.heard) == int(left[0])


def test_a_call_holds_nothing_of_its_error():
    running = RunningCall()

    class Big(Exception): ...

    def fail():
        raise Big

    with pytest.raises(Big) as caught:
        running.watched(fail, isasync=False)()
    gone = weakref.ref(caught.value)
    del caught
    gc.collect()
    assert gone() is None


# -- whether anything of a call still runs


def presence() -> tuple[EffectInProgress, weakref.ref]:
    now = EffectInProgress("k", "b")
    return now, weakref.ref(now)


def test_what_holds_itself_is_gone_too():
    """A frame and its exception hold each other until the collector comes by."""

    def left() -> weakref.ref:
        now, reference = presence()
        circle: list = [now]
        circle.append(circle)
        return reference

    gc.disable()
    try:
        reference = left()
        assert reference() is not None
        assert when_gone(reference, lambda: None)
    finally:
        gc.enable()


async def test_a_thread_of_a_coroutine_goes_on():
    """asyncio.to_thread gives its thread the context of the call; cancelling leaves the thread running."""
    began, go, told = threading.Event(), threading.Event(), threading.Event()

    def work():
        began.set()
        assert go.wait(20)

    async def call():
        await asyncio.to_thread(work)

    now, reference = presence()
    reset = in_progress.set(now)
    task = asyncio.create_task(call())
    in_progress.reset(reset)
    del now, reset
    await asyncio.to_thread(began.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    assert not when_gone(reference, told.set)
    assert not told.is_set()
    go.set()
    assert await asyncio.to_thread(told.wait, 20)
    assert reference() is None


async def test_cancelled_timers_are_forgotten():
    """A timeout that was not needed holds the context of the call until its time, which may be an hour."""
    now, reference = presence()
    reset = in_progress.set(now)
    context = contextvars.copy_context()
    in_progress.reset(reset)
    loop = asyncio.get_running_loop()
    others = [loop.call_later(3600.0, lambda: None) for _ in range(50)]
    loop.call_later(3600.0, lambda: None, context=context).cancel()
    del now, reset, context
    gc.collect()
    assert reference() is not None
    drop_cancelled_timers()
    await next_turn()
    assert when_gone(reference, lambda: None)
    assert not any(one.cancelled() for one in others)
    for one in others:
        one.cancel()
