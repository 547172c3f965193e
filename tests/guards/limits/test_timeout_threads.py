"""A blocking call is left at its deadline, whatever it is blocked in."""

import contextlib
import contextvars
import gc
import logging
import socket
import threading
import time
import weakref

import pytest

from prefect_resilience.errors.exceptions import AttemptTimeout
from prefect_resilience.guards.timeouts import threads
from prefect_resilience.guards.timeouts.threads import call_with_deadline, overdue_calls
from tests.guards.limits.hanging import wait_until


@pytest.fixture(autouse=True)
def nobody_is_overdue():
    """Tests before these may have left calls that are still running."""
    wait_until(lambda: overdue_calls() == 0, 60)


@pytest.fixture
def closed_socket():
    """A function that blocks in `recv` until the fixture ends."""
    near, far = socket.socketpair()
    yield lambda: near.recv(1)
    far.close()
    wait_until(lambda: overdue_calls() == 0)
    near.close()


@pytest.fixture
def held_lock():
    """A function that blocks in C, in `Lock.acquire`, until the fixture ends."""
    lock = threading.Lock()
    lock.acquire()
    yield lock.acquire
    lock.release()
    wait_until(lambda: overdue_calls() == 0)


@pytest.mark.parametrize("blocked", ["closed_socket", "held_lock"])
@pytest.mark.parametrize("seconds", [0.1, 0.3])
def test_it_leaves_a_blocked_call(blocked, seconds, request, caplog):
    caplog.set_level(logging.WARNING, "prefect_resilience.timeout")
    fn = request.getfixturevalue(blocked)
    start = time.monotonic()
    with pytest.raises(AttemptTimeout, match=f"took longer than {seconds:g} s") as caught:
        call_with_deadline(fn, (), {}, seconds)
    assert seconds <= time.monotonic() - start < 60
    assert isinstance(caught.value, TimeoutError)
    assert overdue_calls() == 1
    (record,) = caplog.records
    assert record.name == "prefect_resilience.timeout"
    assert "still running" in record.getMessage()
    assert 'mode="process"' in record.getMessage()


def test_the_context_is_copied():
    seen = contextvars.ContextVar("seen")
    seen.set("here")

    def look_and_change():
        before = seen.get()
        seen.set("there")
        return before

    assert call_with_deadline(look_and_change, (), {}, 5) == "here"
    assert seen.get() == "here"


@pytest.mark.parametrize(
    "error", [ValueError("mine"), TimeoutError("mine"), StopIteration(3), SystemExit(3), KeyboardInterrupt()]
)
def test_the_same_exception_comes_back_with_its_traceback(error):
    def inner():
        raise error

    def outer():
        inner()

    with pytest.raises(type(error)) as caught:
        call_with_deadline(outer, (), {}, 5)
    assert caught.value is error
    names = [entry.name for entry in caught.traceback]
    assert names[-2:] == ["outer", "inner"]
    assert "run" not in names


def test_calls_survive_threads_that_end_at_the_same_moment(monkeypatch):
    monkeypatch.setattr(threads, "_idle", [])
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.0002)
    wrong = []

    def work(number):
        for n in range(300):
            if call_with_deadline(lambda n=n: (number, n), (), {}, 10) != (number, n):
                wrong.append((number, n))
            if n % 3 == 0:
                time.sleep(0.0002)

    callers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(90)
    assert not wrong
    assert not any(caller.is_alive() for caller in callers)


class Big:
    pass


def give_back(value):
    return value


def raise_it(value):
    raise ValueError(value)


@pytest.mark.parametrize("fn", [give_back, raise_it])
def test_nothing_is_kept_alive(fn):
    """Neither by the idle thread, nor by a reference cycle that waits for the collector."""
    big = Big()
    ref = weakref.ref(big)
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            call_with_deadline(fn, (big,), {}, 5)
        del big
        wait_until(lambda: ref() is None)
    finally:
        gc.enable()
