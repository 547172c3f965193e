"""A slow answer is asked for again and the first success wins: of coroutines, and of calls in threads."""

import asyncio
import threading
import time

import pytest

from prefect_resilience import AttemptTimeout, Bulkhead, Hedge, Timeout, resilient
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.limits import line
from prefect_resilience.guards.timeouts.threads import overdue_calls
from tests.guards.limits.hanging import wait_until

LONG, ONCE_ALL_BEGAN = 60.0, -1.0


class Script:
    """A function, and as `later` a coroutine function, whose calls go as written: seconds until an answer or
    an error; the last line again and again.

    LONG is until `finish`, ONCE_ALL_BEGAN a moment after all that are written have begun.
    """

    def __init__(self, *lines):
        self.lines, self.calls, self.ended = lines, 0, 0
        self.finish, self.all_begun, self._lock = threading.Event(), threading.Event(), threading.Lock()

    def _begins(self):
        with self._lock:
            seconds, outcome = self.lines[min(self.calls, len(self.lines) - 1)]
            self.calls += 1
        if self.calls == len(self.lines):
            self.all_begun.set()
        return seconds, outcome

    def _ends(self, outcome):
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def __call__(self):
        seconds, outcome = self._begins()
        if seconds == ONCE_ALL_BEGAN:
            self.all_begun.wait(LONG)
        self.finish.wait(0.1 if seconds == ONCE_ALL_BEGAN else seconds)
        self.ended += 1
        return self._ends(outcome)

    async def later(self):
        seconds, outcome = self._begins()
        try:
            if seconds == ONCE_ALL_BEGAN:
                await asyncio.to_thread(self.all_begun.wait, LONG)
            await asyncio.sleep(0.1 if seconds == ONCE_ALL_BEGAN else seconds)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)  # cleaning up takes a moment
            raise
        finally:
            self.ended += 1
        return self._ends(outcome)


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    wait_until(lambda: overdue_calls() == 0 and not line._lines.by_key)


@pytest.fixture(params=["sync", "async"])
def ask(request):
    """Calls a script with a hedge. A coroutine that lost is over then; a thread that lost is overdue."""
    asked = []

    def call(hedge, script):
        asked.append(script)
        try:
            if request.param == "sync":
                return hedge.call(script)
            return asyncio.run(hedge.acall(script.later))
        finally:
            assert request.param == "sync" or script.ended == script.calls
            wait_until(lambda: overdue_calls() == script.calls - script.ended)

    yield call
    for script in asked:
        script.finish.set()


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
def test_the_first_success_answers(ask, name):
    hedge, lines, answer, calls = SCRIPTS[name]
    script, began = Script(*lines), time.monotonic()
    assert ask(hedge, script) == answer
    assert script.calls == calls
    assert time.monotonic() - began < LONG / 2


def test_when_all_fail_the_first_error_tells_of_the_others(ask):
    first = ValueError("first")
    script = Script((0, first), (0, KeyError("second")), (0, OSError("https://ann:hunter2-and-more@host/")))
    with pytest.raises(ValueError, match="first") as caught:
        ask(Hedge(LONG, max=2), script)
    assert caught.value is first
    notes = "\n".join(first.__notes__)
    assert "hedged call 2 failed too: KeyError('second')" in notes
    assert "hedged call 3 failed too: OSError" in notes
    assert "hunter2" not in notes
    same = KeyError("same")
    with pytest.raises(KeyError):
        ask(Hedge(LONG), Script((0, same)))
    assert not getattr(same, "__notes__", [])


async def test_a_cancelled_caller_leaves_nothing_running():
    script = Script((LONG, 1), (LONG, 2))
    task = asyncio.create_task(Hedge(after=0.01).acall(script.later))
    await asyncio.to_thread(script.all_begun.wait, LONG)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert script.ended == 2


def fetch():
    raise AssertionError("it must not be called")


async def test_a_sync_function_is_refused_before_it_is_called():
    with pytest.raises(
        ConfigurationError, match=r"fetch is not an async function: write `Hedge\(\.\.\.\).call\(\.\.\.\)`"
    ):
        await Hedge(after=1).acall(fetch)


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


@pytest.mark.parametrize(
    ("first", "second", "answer"),
    [((LONG, "first"), (0, "second"), "second"), ((0.1, "first"), (LONG, "second"), "first")],
    ids=["the first call lost", "the other call lost"],
)
def test_the_loser_keeps_its_place_until_it_ends(first, second, answer):
    room, script = Bulkhead(2, max_wait=0, name="room"), Script(first, second)
    guarded = resilient(retry=None, limits=room, hedge=Hedge(0.02))(lambda: script())
    assert guarded() == answer
    assert line.in_line("bulkhead:room") == 1
    if answer == "second":
        assert line.overdue_places("bulkhead:room") == 1
    assert room.call(int) == 0
    script.finish.set()
    wait_until(lambda: line.in_line("bulkhead:room") == 0)


def test_an_attempt_that_is_over_makes_no_more_calls():
    script = Script((LONG, "late"))
    slow = resilient(retry=None, timeout=Timeout(0.05, mode="thread"), hedge=Hedge(1))(lambda: script())
    with pytest.raises(AttemptTimeout):
        slow()
    time.sleep(1.5)
    assert script.calls == 1
    script.finish.set()
