"""A place is held until its call has really ended: threads that were left at their deadline."""

import asyncio
import contextlib
import ctypes
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context

import pytest

from prefect_resilience.base.drive import adrive, drive
from prefect_resilience.errors.exceptions import AttemptTimeout
from prefect_resilience.guards.limits import line
from prefect_resilience.guards.limits.bulkhead import Bulkhead
from prefect_resilience.guards.limits.guarding import BulkheadFullError
from prefect_resilience.guards.timeouts import overdue
from prefect_resilience.guards.timeouts.stream import iterate_with_deadline
from prefect_resilience.guards.timeouts.threads import call_with_deadline, overdue_calls
from tests.guards.limits.hanging import nothing_is_left as nothing_is_left
from tests.guards.limits.hanging import service as service
from tests.guards.limits.hanging import wait_until


def within(service, seconds=20.0, deadline=0.05):
    """A call that is left at its deadline."""
    call_with_deadline(service.hang, (seconds,), {}, deadline)


@pytest.mark.parametrize("places", [1, 2, 5])
def test_overdue_threads_never_exceed_the_places(service, places):
    bulkhead = Bulkhead(places)

    def attempts():
        for _ in range(2):
            with pytest.raises(AttemptTimeout):
                bulkhead.call(within, service, 1.0)

    with ThreadPoolExecutor(2 * places) as pool:
        for call in [pool.submit(attempts) for _ in range(2 * places)]:
            call.result()
    wait_until(lambda: not service.inside)
    assert (service.most, service.calls) == (places, 4 * places)


def test_a_refusal_says_that_overdue_calls_hold_the_places(service):
    bulkhead = Bulkhead(2, max_wait=0.05, name="narrow")
    with pytest.raises(AttemptTimeout):
        bulkhead.call(within, service)
    bulkhead.call(int)
    with bulkhead, pytest.raises(BulkheadFullError, match="; abandoned calls hold 1 of them until") as one:
        bulkhead.call(int)
    with pytest.raises(AttemptTimeout):
        bulkhead.call(within, service)
    with pytest.raises(BulkheadFullError, match="; abandoned calls hold 2 of them until they end") as two:
        bulkhead.call(int)
    assert (one.value.overdue, two.value.overdue) == (1, 2)
    assert pickle.loads(pickle.dumps(two.value)).overdue == 2
    assert "abandoned" not in str(BulkheadFullError("narrow", 2, 0.05))
    service.go_on.set()
    wait_until(lambda: not line._lines.by_key)
    assert bulkhead.call(int) == 0


def test_a_retry_waits_for_its_own_overdue_call_and_gets_its_place(service):
    bulkhead = Bulkhead(1, max_wait=20)
    with pytest.raises(AttemptTimeout):
        bulkhead.call(within, service)
    threading.Timer(0.2, service.go_on.set).start()
    assert bulkhead.call(lambda: service.inside) == 0


def test_without_a_max_wait_the_wait_behind_overdue_calls_is_bounded(service, monkeypatch):
    monkeypatch.setattr(line, "OVERDUE_SECONDS", 0.3)
    monkeypatch.setattr(line, "LOOK_SECONDS", 0.05)
    bulkhead = Bulkhead(1)
    with pytest.raises(AttemptTimeout):
        bulkhead.call(within, service)
    with pytest.raises(BulkheadFullError, match="abandoned calls hold 1"):
        bulkhead.call(int)
    with pytest.raises(BulkheadFullError, match="abandoned calls hold 1"):
        asyncio.run(bulkhead.acall(int))


def test_without_a_max_wait_the_wait_behind_calls_in_time_is_not(monkeypatch):
    monkeypatch.setattr(line, "OVERDUE_SECONDS", 0.0)
    monkeypatch.setattr(line, "LOOK_SECONDS", 0.01)
    bulkhead = Bulkhead(1)
    ticket = drive(bulkhead.acquire())
    threading.Timer(0.2, lambda: drive(bulkhead.finish(ticket))).start()
    assert bulkhead.call(int) == 0


def test_a_caller_that_is_interrupted_leaves_its_place_to_its_call(service):
    class Stop(BaseException):
        pass

    bulkhead = Bulkhead(1, max_wait=0)
    with ThreadPoolExecutor(1) as pool:
        ident = pool.submit(threading.get_ident).result()
        call = pool.submit(bulkhead.call, within, service, 60, 60)
        wait_until(lambda: service.inside)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Stop))
        with pytest.raises(Stop):
            call.result(20)
    assert overdue_calls() == 1
    with pytest.raises(BulkheadFullError):
        bulkhead.call(int)


def test_every_limit_around_an_overdue_call_is_held(service):
    outer, inner = Bulkhead(1, max_wait=0), Bulkhead(1, max_wait=0)

    @outer
    def answers():
        with contextlib.suppress(AttemptTimeout):
            inner.call(within, service)
        return "went on without it"

    assert answers() == "went on without it"
    for limit in (outer, inner):
        with pytest.raises(BulkheadFullError, match="abandoned call"):
            limit.call(int)


# -- generators


def test_a_generator_that_hangs_holds_its_place(service):
    bulkhead, closed = Bulkhead(1, max_wait=0), threading.Event()

    def chunks():
        try:
            yield 1
            service.hang()
            yield 2
        finally:
            closed.set()

    @bulkhead
    def read():
        yield from iterate_with_deadline(chunks(), None, 0.1)

    reading = read()
    assert next(reading) == 1
    with pytest.raises(AttemptTimeout):
        next(reading)
    assert overdue_calls() == 1
    with pytest.raises(BulkheadFullError, match="abandoned call"):
        bulkhead.call(int)
    service.go_on.set()
    assert closed.wait(20)
    wait_until(lambda: not line._lines.by_key)
    assert list(iterate_with_deadline(iter_of(2), 5, 5)) == [0, 1]
    assert overdue_calls() == 0


def iter_of(number):
    yield from range(number)


# -- the way it is known


def test_a_place_that_cannot_be_given_back_is_told_and_the_others_are(service, caplog):
    given_back = threading.Event()

    def fails():
        raise RuntimeError("no")

    def leave(then):
        ticket = object()
        overdue.begins(ticket)
        with pytest.raises(AttemptTimeout) as caught:
            within(service)
        assert overdue.still_runs(ticket, caught.value, then)

    leave(fails)
    leave(given_back.set)
    service.go_on.set()
    assert given_back.wait(20)
    wait_until(lambda: "could not be released" in caplog.text)


def test_the_sequence_may_be_driven_in_another_context_than_it_began_in():
    bulkhead = Bulkhead(1, max_wait=0)
    ticket = Context().run(drive, bulkhead.acquire())
    asyncio.run(adrive(bulkhead.finish(ticket)))
    assert bulkhead.call(int) == 0
