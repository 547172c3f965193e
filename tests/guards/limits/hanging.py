"""A service that hangs, for tests of calls that go on after their attempts."""

import asyncio
import contextlib
import threading
import time

import pytest

from prefect_resilience.guards.limits import line
from prefect_resilience.guards.timeouts.threads import overdue_calls


class Service:
    """Counts the calls that run in it, and the most there ever were."""

    def __init__(self):
        self.inside = self.most = self.calls = 0
        self.go_on = threading.Event()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def counted(self):
        with self._lock:
            self.inside += 1
            self.calls += 1
            self.most = max(self.most, self.inside)
        try:
            yield
        finally:
            with self._lock:
                self.inside -= 1

    def hang(self, seconds=20.0):
        """Until it is let go, or for so long."""
        with self.counted():
            self.go_on.wait(seconds)

    async def ahang(self, seconds=20.0):
        with self.counted():
            await asyncio.sleep(seconds)


def wait_until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.005)


@pytest.fixture
def service():
    made = Service()
    yield made
    made.go_on.set()
    wait_until(lambda: not made.inside, 30)


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    wait_until(lambda: not line._lines.by_key and not overdue_calls())


def end_threads():
    """Wait until limits have settled the calls that ended."""
    for thread in threading.enumerate():
        if thread.name == "prefect-resilience-limits":
            thread.join()
