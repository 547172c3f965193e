"""A slow answer is asked for again; the first success wins and nobody is left running."""

import asyncio
import functools
import gc
import time

import httpx
import pytest

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.limits.bulkhead import Bulkhead
from prefect_resilience.guards.limits.hedge import Hedge
from prefect_resilience.guards.limits.rate import RateLimit


class Script:
    """An async function whose calls go as written: seconds until an answer or an error.

    With None for the seconds a call ends a moment after all that are written have begun.
    """

    def __init__(self, *lines):
        self.lines = lines
        self.started = 0
        self.all_begun = asyncio.Event()
        self.cancelled = []
        self.ended = []

    async def __call__(self, *args):
        number = self.started
        self.started += 1
        if self.started == len(self.lines):
            self.all_begun.set()
        seconds, outcome = self.lines[number]
        try:
            if seconds is None:
                await self.all_begun.wait()
            await asyncio.sleep(0.1 if seconds is None else seconds)
        except asyncio.CancelledError:
            self.cancelled.append(number)
            await asyncio.sleep(0.01)  # cleaning up takes a moment
            raise
        finally:
            self.ended.append(number)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


async def test_a_quick_answer_needs_no_other_call():
    script = Script((0, "first"))
    assert await Hedge(after=30).acall(script, 1) == "first"
    assert script.started == 1


async def test_a_slow_one_is_overtaken_cancelled_and_awaited():
    script = Script((60, "first"), (0, "second"))
    assert await Hedge(after=0.02).acall(script) == "second"
    assert script.cancelled == [0]
    assert sorted(script.ended) == [0, 1]


async def test_the_first_may_still_win():
    script = Script((None, "first"), (60, "second"))
    assert await Hedge(after=0.02).acall(script) == "first"
    assert script.cancelled == [1]


async def test_no_more_than_max_others():
    script = Script((None, "first"), (60, 2), (60, 3))
    assert await Hedge(after=0.01, max=2).acall(script) == "first"
    assert script.started == 3


async def test_a_failure_starts_the_next_at_once():
    script = Script((0, ValueError("first")), (0, "second"))
    began = time.monotonic()
    assert await Hedge(after=30).acall(script) == "second"
    assert time.monotonic() - began < 15


async def test_a_failure_waits_for_the_other_one():
    script = Script((None, "first"), (0, ValueError("second")))
    assert await Hedge(after=0.02).acall(script) == "first"


async def test_when_all_fail_the_first_error_tells_of_the_others():
    first = ValueError("first")
    script = Script((0, first), (0, KeyError("second")), (0, OSError("https://ann:hunter2-and-more@host/")))
    with pytest.raises(ValueError, match="first") as caught:
        await Hedge(after=30, max=2).acall(script)
    assert caught.value is first
    notes = "\n".join(first.__notes__)
    assert "hedged call 2 failed too: KeyError('second')" in notes
    assert "hedged call 3 failed too: OSError" in notes
    assert "hunter2" not in notes


async def test_a_cancelled_caller_leaves_nothing_running():
    script = Script((60, 1), (60, 2))
    task = asyncio.create_task(Hedge(after=0.01).acall(script))
    await script.all_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(script.ended) == [0, 1]


async def test_at_a_real_service(service, reply):
    service.says(reply(delay=30, body="slow"), reply(body="quick"))
    async with httpx.AsyncClient() as client:
        answer = await Hedge(after=0.1).acall(client.get, service.url)
    assert answer.text == "quick"
    assert len(service.calls) == 2


async def test_async_functions_of_every_kind():
    async def answer(value):
        return value

    class Reader:
        async def read(self):
            return "method"

    hedge = Hedge("1s")
    assert await hedge.acall(answer, 1) == 1
    assert await hedge.acall(functools.partial(answer, 2)) == 2
    assert await hedge.acall(Reader().read) == "method"
    assert await hedge.acall(Script((0, "object"))) == "object"


def fetch():
    raise AssertionError("it must not be called")


async def test_a_sync_function_is_refused_before_it_is_called():
    with pytest.raises(
        ConfigurationError, match=r"fetch is not an async function: write `Hedge\(\.\.\.\).call\(\.\.\.\)`"
    ):
        await Hedge(after=1).acall(fetch)


async def test_a_failure_beside_the_winner_is_not_left_unread(caplog):
    gate = asyncio.Event()

    async def both_at_once():
        number = len(started)
        started.append(number)
        await gate.wait()
        if number == 1:
            raise ValueError("second")
        return "first"

    started = []
    task = asyncio.create_task(Hedge(after=0.01).acall(both_at_once))
    await asyncio.sleep(0)
    while len(started) < 2:  # noqa: ASYNC110 they start by themselves
        await asyncio.sleep(0.005)
    gate.set()
    assert await task == "first"
    gc.collect()
    assert "never retrieved" not in caplog.text


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
