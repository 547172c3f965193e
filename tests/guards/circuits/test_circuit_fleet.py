"""Real processes that share one SQLite file, and nothing else."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefect_resilience import CircuitBreaker, get_circuits, reset_all_circuits
from prefect_resilience.errors.exceptions import CircuitOpenError
from prefect_resilience.testing.stores import wait_until

pytestmark = pytest.mark.slow

Start = Callable[..., Any]

FAIL_ONCE = """
breaker = CircuitBreaker("service", store=url)
say(attempt(breaker, fail))
"""

CALL = """
made = []
breaker = CircuitBreaker("service", store=url)
say((attempt(breaker, lambda: made.append(1)), made))
"""

THREE_CALLS = """
breaker = CircuitBreaker(
    "window", failure_threshold=1000, minimum_calls=60, failure_rate=50 / 60, window="10m", store=url
)
say("ready")
hear()
say([attempt(breaker, fail if number >= 3 - fails else lambda: None) for number in range(3)])
"""

PROBE = """
breaker = CircuitBreaker("service", store=url, open_for=0.2, success_threshold=1, **more)
def work():
    say("probing")
    hear()
    return "recovered"
say("ready")
hear()
say(attempt(breaker, work))
"""


@pytest.mark.requirement("003.22")
def test_failures_of_many_processes_open_it_and_a_fresh_one_is_refused(start: Start, url: str) -> None:
    for _ in range(5):
        worker = start(FAIL_ONCE, url=url)
        assert worker.hear() == "failed"
        worker.end()
    worker = start(CALL, url=url)
    assert worker.hear() == ("refused", [])
    snapshot = CircuitBreaker("service", store=url).snapshot()
    assert (snapshot.state, snapshot.consecutive_failures) == ("open", 5)


def test_a_window_is_the_fleets_not_a_process_own(start: Start, url: str) -> None:
    """20 processes with 3 calls each, none of which would trip alone: 50 of the 60 failed."""
    workers = [start(THREE_CALLS, url=url, fails=3 if number < 15 else 1) for number in range(20)]
    for worker in workers:
        assert worker.hear() == "ready"
    for worker in workers:
        worker.say("go")
        assert len(worker.hear()) == 3
        worker.end()
    breaker = CircuitBreaker(
        "window", failure_threshold=1000, minimum_calls=60, failure_rate=50 / 60, window="10m", store=url
    )
    snapshot = breaker.snapshot()
    assert snapshot.state == "open"
    assert "50 of 60 calls failed" in (snapshot.reason or "")


def test_a_success_in_another_process_ends_a_row_of_failures(start: Start, url: str) -> None:
    for _ in range(4):
        assert start(FAIL_ONCE, url=url).hear() == "failed"
    assert start(CALL, url=url).hear() == (None, [1])
    wait_until(lambda: CircuitBreaker("service", store=url).snapshot().consecutive_failures == 0)
    assert start(FAIL_ONCE, url=url).hear() == "failed"
    assert CircuitBreaker("service", store=url).state == "closed"


def open_for_a_moment(url: str) -> None:
    breaker = CircuitBreaker("service", store=url, open_for=0.2, success_threshold=1)
    for _ in range(5):
        with pytest.raises(TimeoutError):
            breaker.call(fail)
    wait_until(lambda: breaker.state == "half_open")


def fail() -> None:
    raise TimeoutError("no answer")


def test_one_probe_of_eight_processes_is_let_through(start: Start, url: str) -> None:
    open_for_a_moment(url)
    fleet = [start(PROBE, url=url, more={}) for _ in range(8)]
    for worker in fleet:
        assert worker.hear() == "ready"
    for worker in fleet:
        worker.say("go")
    answers = [worker.hear() for worker in fleet]
    assert sorted(answers) == ["probing", *["refused"] * 7]
    prober = fleet[answers.index("probing")]
    prober.say("answer")
    assert prober.hear() == "recovered"
    assert CircuitBreaker("service", store=url).state == "closed"


def test_a_killed_prober_frees_its_place_when_its_lease_ends(start: Start, url: str) -> None:
    open_for_a_moment(url)
    more = {"probe_lease": 1.0}
    prober = start(PROBE, url=url, more=more)
    assert prober.hear() == "ready"
    prober.say("go")
    assert prober.hear() == "probing"
    prober.process.kill()
    prober.process.join()
    watching = CircuitBreaker("service", store=url, open_for=0.2, success_threshold=1, **more)
    with pytest.raises(CircuitOpenError) as caught:
        watching.call(int)
    assert caught.value.retry_in is not None
    assert caught.value.retry_in <= 1.0
    wait_until(lambda: watching.snapshot().probes_in_flight == 0)
    assert watching.call(lambda: "mine") == "mine"
    assert watching.state == "closed"


def test_a_success_of_before_the_trip_does_not_close_it(start: Start, url: str) -> None:
    code = """
breaker = CircuitBreaker("service", store=url, open_for=0.2, success_threshold=1)
def work():
    say("begun")
    hear()
say(attempt(breaker, work))
breaker.flush()
say(breaker.snapshot().state)
"""
    late = start(code, url=url)
    assert late.hear() == "begun"
    open_for_a_moment(url)
    late.say("answer")
    assert late.hear() is None
    assert late.hear() == "half_open"


def test_what_is_done_by_hand_holds_for_the_fleet(start: Start, url: str) -> None:
    code = """
breaker = CircuitBreaker("service", store=url, sync_interval=0.05)
while True:
    if hear() == "end":
        break
    say(attempt(breaker, lambda: "called"))
"""
    worker = start(code, url=url)
    here = CircuitBreaker("service", store=url, sync_interval=0.05)

    def there() -> str:
        worker.say("try")
        return worker.hear()

    assert there() == "called"
    here.force_open("maintenance")
    wait_until(lambda: there() == "refused")
    assert [snapshot.reason for snapshot in get_circuits(url)] == ["maintenance"]
    assert reset_all_circuits(url) == 1
    wait_until(lambda: there() == "called")


def test_a_process_that_does_not_fail_hears_of_the_opening_too(start: Start, url: str) -> None:
    """Its own calls all succeed and are counted now and then: it must look before it calls, not after."""
    code = """
breaker = CircuitBreaker("service", store=url, sync_interval=1e-9)
for _ in range(3):
    say(attempt(breaker, lambda: "called"))
hear()
say(attempt(breaker, lambda: "called"))
"""
    worker = start(code, url=url)
    assert [worker.hear() for _ in range(3)] == ["called"] * 3
    CircuitBreaker("service", store=url).force_open("now")
    worker.say("go on")
    assert worker.hear() == "refused"


def test_a_transition_is_told_by_one_process(start: Start, url: str) -> None:
    code = """
from prefect_resilience.guards.circuits.listeners import add_transition_listener
heard = []
add_transition_listener(heard.append)
breaker = CircuitBreaker("service", store=url, sync_interval=1e-9)
say(attempt(breaker, fail))
hear()
say(attempt(breaker, fail))
say([t.after for t in heard])
"""
    fleet = [start(code, url=url) for _ in range(5)]
    for worker in fleet:
        assert worker.hear() == "failed"
    for worker in fleet:
        worker.say("go on")
        assert worker.hear() == "refused"
    assert sorted(worker.hear() for worker in fleet) == [[], [], [], [], ["open"]]


def test_a_forked_child_counts_for_itself(start: Start, url: str) -> None:
    code = """
import os
breaker = CircuitBreaker("service", store=url, sync_interval=60, window=100)
for _ in range(10):
    breaker.call(int)
child = os.fork()
if child == 0:
    for _ in range(3):
        breaker.call(int)
    breaker.snapshot()
    os._exit(0)
os.waitpid(child, 0)
say(breaker.snapshot().window_calls)
"""
    assert start(code, url=url).hear() == 13


def test_a_process_that_ends_leaves_what_it_counted(url: str) -> None:
    import os
    import subprocess
    import sys

    code = (
        "import sys; from prefect_resilience import CircuitBreaker\n"
        "breaker = CircuitBreaker('service', store=sys.argv[1], sync_interval=60)\n"
        "for _ in range(7): breaker.call(int)"
    )
    root = str(Path(__file__).parents[3])
    subprocess.run([sys.executable, "-c", code, url], check=True, env={**os.environ, "PYTHONPATH": root})
    assert CircuitBreaker("service", store=url).snapshot().window_calls == 7


@pytest.mark.parametrize("trouble", ["deleted", "damaged", "locked"])
def test_a_file_in_trouble_stops_nobody(
    trouble: str,
    url: str,
    notices: list[Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("prefect_resilience.guards.circuits.link.REST_AFTER_FAILURE", 0.2)
    path = Path(url.removeprefix("sqlite:///"))
    breaker = CircuitBreaker("service", store=f"{url}?timeout=0.1", sync_interval=1e-9, open_for=30)
    for _ in range(3):
        assert breaker.call(lambda: "called") == "called"
    holder = sqlite3.connect(path, isolation_level=None)
    if trouble == "locked":
        holder.execute("BEGIN EXCLUSIVE")
    else:
        for file in path.parent.glob("fleet.db*"):
            file.unlink()
        if trouble == "damaged":
            path.write_bytes(b"this is no database" * 1000)
    for _ in range(20):
        assert breaker.call(lambda: "called") == "called"
    for _ in range(5):
        with pytest.raises(TimeoutError):
            breaker.call(fail)
    with pytest.raises(CircuitOpenError):
        breaker.call(int)
    warnings = [r for r in caplog.records if "is unavailable" in r.message]
    if trouble == "deleted":
        # It is made anew, so that nothing was missed.
        assert (notices, warnings) == ([], [])
    else:
        assert [notice.available for notice in notices] == [False]
        assert len(warnings) == 1
    holder.close()
    if trouble == "damaged":
        path.unlink()
    # What was counted meanwhile is merged: the fleet hears of the failures.
    wait_until(lambda: breaker.snapshot() is not None and path.exists())
    other = f"{url}?timeout=5"
    wait_until(lambda: breaker.snapshot() and CircuitBreaker("service", store=other).state == "open")
