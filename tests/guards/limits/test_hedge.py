"""A slow answer is asked for again, and the first success wins."""

import asyncio
import gc
import time

import pytest

from prefect_resilience import Bulkhead, Hedge, RateLimit
from prefect_resilience.errors.exceptions import ConfigurationError

LONG, ONCE_ALL_BEGAN = 60.0, -1.0


class Script:
    """A coroutine function whose calls go as written: seconds until an answer or an error; the last line
    again and again.

    ONCE_ALL_BEGAN is a moment after all that are written have begun.
    """

    def __init__(self, *lines):
        self.lines, self.calls, self.ended = lines, 0, 0
        self.all_begun = asyncio.Event()

    async def __call__(self):
        seconds, outcome = self.lines[min(self.calls, len(self.lines) - 1)]
        self.calls += 1
        if self.calls == len(self.lines):
            self.all_begun.set()
        try:
            if seconds == ONCE_ALL_BEGAN:
                await self.all_begun.wait()
            await asyncio.sleep(0.1 if seconds == ONCE_ALL_BEGAN else seconds)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)  # cleaning up takes a moment
            raise
        finally:
            self.ended += 1
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


async def ask(hedge, script):
    """Calls a script with a hedge. A call that lost is over then."""
    try:
        return await hedge.acall(script.__call__)
    finally:
        assert script.ended == script.calls


FAILS = ValueError("of this call")
SCRIPTS = {
    "a quick answer": (Hedge(LONG), [(0, "first")], "first", 1),
    "a slow one is overtaken": (Hedge(0.02), [(LONG, "first"), (0, "second")], "second", 2),
    "the first may still win": (Hedge(0.02), [(ONCE_ALL_BEGAN, "first"), (LONG, "second")], "first", 2),
    "no more than max": (Hedge(0.01, max=2), [(ONCE_ALL_BEGAN, "first"), (LONG, 2), (LONG, 3)], "first", 3),
    "a failure starts the next at once": (Hedge(LONG), [(0, FAILS), (0, "second")], "second", 2),
    "a failure waits for the other one": (Hedge(0.02), [(ONCE_ALL_BEGAN, "first"), (0, FAILS)], "first", 2),
}


@pytest.mark.parametrize("name", SCRIPTS)
async def test_the_first_success_answers(name):
    hedge, lines, answer, calls = SCRIPTS[name]
    script, began = Script(*lines), time.monotonic()
    assert await ask(hedge, script) == answer
    assert script.calls == calls
    assert time.monotonic() - began < LONG / 2


async def test_when_all_fail_the_first_error_tells_of_the_others():
    first = ValueError("first")
    script = Script((0, first), (0, KeyError("second")), (0, OSError("https://ann:hunter2-and-more@host/")))
    with pytest.raises(ValueError, match="first") as caught:
        await ask(Hedge(LONG, max=2), script)
    assert caught.value is first
    notes = "\n".join(first.__notes__)
    assert "another hedged call failed too: KeyError('second')" in notes
    assert "another hedged call failed too: OSError" in notes
    assert "hunter2" not in notes
    same = KeyError("same")
    with pytest.raises(KeyError):
        await ask(Hedge(LONG), Script((0, same)))
    assert not getattr(same, "__notes__", [])


async def test_a_cancelled_caller_leaves_nothing_running():
    script = Script((LONG, 1), (LONG, 2))
    task = asyncio.create_task(Hedge(after=0.01).acall(script.__call__))
    await script.all_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert script.ended == 2


def fetch():
    raise AssertionError("it must not be called")


async def test_a_sync_function_is_refused_before_it_is_called():
    with pytest.raises(ConfigurationError, match="fetch is not async, which a Hedge needs"):
        await Hedge(after=1).acall(fetch)


async def test_a_failure_beside_the_winner_is_not_left_unread(caplog):
    gate, started = asyncio.Event(), []

    async def both_at_once():
        started.append(1)
        number = len(started)
        await gate.wait()
        if number == 2:
            raise ValueError("second")
        return "first"

    task = asyncio.create_task(Hedge(after=0.01).acall(both_at_once))
    while len(started) < 2:  # noqa: ASYNC110 they start by themselves
        await asyncio.sleep(0.005)
    gate.set()
    assert await task == "first"
    gc.collect()
    assert "never retrieved" not in caplog.text


# -- places in limits


class Running:
    """A service in which a call hangs until it is let go; counts the most that run at a time."""

    def __init__(self):
        self.inside = self.most = 0
        self.go_on = asyncio.Event()

    async def read(self):
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.go_on.wait()
        finally:
            self.inside -= 1
        raise ZeroDivisionError


@pytest.mark.parametrize(("places", "most"), [(1, 1), (2, 2), (5, 3)])
async def test_each_call_takes_a_place_of_its_own(places, most):
    service, bulkhead = Running(), Bulkhead(places, name=f"hedged {places}")
    read = Hedge(after=0.01, max=2).within(service.read, [bulkhead], {})
    async with bulkhead:
        calling = asyncio.create_task(read())
        await asyncio.sleep(0.1)
        assert (service.most, service.inside) == (most, most)
        service.go_on.set()
        with pytest.raises(ZeroDivisionError):  # and not the refusal of a call that was not made
            await calling
    assert bulkhead.call(int) == 0


async def test_each_call_counts_in_the_rate():
    rate, service = RateLimit(2, per="1h", burst=2, name="hedged"), Running()
    await rate.acall(asyncio.sleep, 0)  # that of the first call
    calling = asyncio.create_task(Hedge(after=0.01, max=4).within(service.read, [rate], {})())
    await asyncio.sleep(0.1)
    assert service.most == 2
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert service.inside == 0
