"""Deadlines on the main thread: the call is interrupted where it stands."""

import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from prefect_resilience.errors.exceptions import AttemptTimeout
from prefect_resilience.guards.timeouts.timeout import Timeout, call_within, take_alarm

# The usual method of pytest-timeout takes the interval timer for itself.
pytestmark = pytest.mark.timeout(60, method="thread")


def blocked_socket():
    left, right = socket.socketpair()
    with left, right:
        left.recv(1)


LOCK = threading.Lock()


def acquire():
    """As in `logging.Handler`. The deadline passes when it has just acquired its lock."""
    LOCK.acquire()
    signal.raise_signal(signal.SIGALRM)


def handle():
    acquire()
    try:
        time.sleep(60)
    finally:
        LOCK.release()


def locked():
    with LOCK:
        acquire()


BLOCKED = {
    "lock": locked,
    "after a lock": handle,
    "sleep": lambda: time.sleep(60),
    "socket": blocked_socket,
    "event": lambda: threading.Event().wait(60),
    "process": lambda: subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"], check=False),
    "python": lambda: sum(1 for _ in iter(int, 1)),
}


@pytest.mark.parametrize("name", BLOCKED)
def test_it_interrupts_whatever_python_blocks_in(name):
    started = time.monotonic()
    with pytest.raises(AttemptTimeout) as caught:
        call_within(Timeout(0.2), BLOCKED[name])
    assert time.monotonic() - started < 50
    assert caught.value.seconds == 0.2
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert take_alarm()
    assert not LOCK.locked()


def test_no_handler_of_the_users_takes_it_for_an_error_of_its_own():
    def stubborn():
        try:
            time.sleep(10)
        except Exception:
            return "swallowed"

    with pytest.raises(AttemptTimeout):
        call_within(Timeout(0.1), stubborn)


def test_values_and_errors_come_through():
    assert call_within(Timeout(5), lambda a, b=0: a + b, 1, b=2) == 3
    with pytest.raises(TimeoutError, match="own") as caught:
        call_within(Timeout(5), lambda: (_ for _ in ()).throw(TimeoutError("own")))
    assert not isinstance(caught.value, AttemptTimeout)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_an_inner_deadline_goes_to_a_thread_and_an_outer_one_is_not_taken_for_it():
    def outer():
        try:
            call_within(Timeout(15), time.sleep, 15)
        except Exception as error:
            return error

    started = time.monotonic()
    with pytest.raises(AttemptTimeout) as caught:
        call_within(Timeout(0.2), outer)
    assert caught.value.seconds == 0.2
    assert time.monotonic() - started < 12

    def inner_first():
        with pytest.raises(AttemptTimeout) as found:
            call_within(Timeout(0.1), time.sleep, 10)
        return found.value.seconds

    assert call_within(Timeout(5), inner_first) == 0.1


def test_it_is_for_the_main_thread_and_a_timer_that_nobody_uses():
    assert take_alarm()
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(take_alarm()))
    thread.start()
    thread.join()
    assert elsewhere == [False]
    signal.setitimer(signal.ITIMER_REAL, 60)
    try:
        assert not take_alarm()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        assert not take_alarm()
        assert call_within(Timeout(5), threading.get_ident) != threading.get_ident()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert call_within(Timeout(5), threading.get_ident) == threading.get_ident()
    assert call_within(Timeout(5, mode="thread"), threading.get_ident) != threading.get_ident()
