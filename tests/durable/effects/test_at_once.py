"""Requests beside each other, and never longer than is said."""

import threading
import time

from prefect_resilience.base import drive
from prefect_resilience.base.drive import answers


def soon() -> float:
    return time.monotonic() + 30


def test_as_many_as_are_said_go_on_beside_each_other():
    meet = threading.Barrier(3)
    # Each waits for two others: fewer threads would break the barrier.
    found = answers(dict.fromkeys(range(6), lambda: meet.wait(30) >= 0), soon(), at_once=3)
    assert len(found) == 6


def test_one_that_hangs_holds_up_nobody():
    leave = threading.Event()
    found = answers({"hangs": lambda: leave.wait(60), "quick": lambda: 1}, time.monotonic() + 0.5)
    leave.set()
    assert found == {"quick": 1}


def test_one_that_fails_is_tried_again_and_then_missing(monkeypatch):
    monkeypatch.setattr(drive, "PAUSE", 0.0)
    tries = []

    def fails(until: int):
        tries.append(until)
        if len(tries) < until:
            raise RuntimeError("busy")
        return "there"

    assert answers({"a": lambda: fails(3)}, soon()) == {"a": "there"}
    tries.clear()
    assert answers({"a": lambda: fails(9)}, soon()) == {}
    assert len(tries) == drive.TRIES
