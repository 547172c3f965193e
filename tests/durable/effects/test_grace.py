"""SIGTERM while effects run: real signals to this process, with handlers of a flow or a user."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from prefect_resilience.base.drive import adrive, drive
from prefect_resilience.durable.effects.grace import ProcessEnds, RunningEffects, running


class Terminated(BaseException):
    """What Prefect's handler raises."""


class Heard:
    """A handler of SIGTERM."""

    def __init__(self, error: type[BaseException] | None = None) -> None:
        self.times, self.error = 0, error

    def __call__(self, *_: object) -> None:
        self.times += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def handle() -> Iterator[Callable[..., Heard]]:
    before = signal.getsignal(signal.SIGTERM)

    def set_handler(error: type[BaseException] | None = None) -> Heard:
        heard = Heard(error)
        signal.signal(signal.SIGTERM, heard)
        return heard

    yield set_handler
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def effects() -> RunningEffects:
    made = RunningEffects()
    made.seconds = 30.0
    return made


def strike() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_the_signal_waits_for_the_last_call(effects, handle):
    heard = handle()
    with effects.including(1):
        with effects.including(2):
            strike()
        assert heard.times == 0
    assert heard.times == 1
    assert signal.getsignal(signal.SIGTERM) is heard
    drive(effects.wait_for_turn())  # the handler returned, so the process goes on
    with effects.including(1):
        pass
    assert (heard.times, signal.getsignal(signal.SIGTERM)) == (1, heard)


@pytest.mark.parametrize("how", ["a second signal", "the end of the grace"])
def test_the_signal_does_not_wait_for_ever(effects, handle, how):
    heard = handle(Terminated)
    if how == "the end of the grace":
        effects.seconds = 0.05

    def call() -> None:
        strike()
        assert heard.times == 0
        if how == "a second signal":
            strike()
        time.sleep(30)

    with pytest.raises(Terminated), effects.including(1):
        call()
    assert heard.times == 1


def test_a_timer_that_is_late_strikes_nothing(effects, handle):
    heard = handle()
    effects.seconds = 0.05
    with effects.including(1):
        strike()
    time.sleep(0.2)
    assert heard.times == 1


def test_where_the_process_would_end_at_once_it_does(effects, handle):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with effects.including(1):
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_that_is_set_during_the_call_stays(effects, handle):
    handle()
    with effects.including(1):
        later = handle()
    assert signal.getsignal(signal.SIGTERM) is later


def test_a_forked_process_has_no_calls(handle):
    heard = handle(SystemExit)
    with running.including(1):
        if (pid := os.fork()) == 0:
            try:
                strike()
            finally:
                os._exit(heard.times)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    running.forget()


def test_no_effect_begins_while_the_process_ends(effects, handle):
    heard, failed = handle(Terminated), list[BaseException]()

    def begin() -> None:
        try:
            drive(effects.wait_for_turn())
        except ProcessEnds as error:
            failed.append(error)

    def run_thread(work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    def call() -> None:
        strike()
        run_thread(begin)

    with pytest.raises(Terminated), effects.including(1):
        call()
    assert (heard.times, len(failed)) == (1, 1)
    drive(effects.wait_for_turn())  # code of the user that cleans up
    with effects.including(1):
        pass
    assert heard.times == 1, "the signal was passed on before"
    effects.begin_run(30.0)
    run_thread(begin)
    assert len(failed) == 1


async def test_in_a_loop_it_waits_for_its_turn(effects, handle):
    handle()
    order = list[str]()

    async def second() -> None:
        await adrive(effects.wait_for_turn())
        order.append("second")

    with effects.including(1):
        strike()
        later = asyncio.ensure_future(second())
        await asyncio.sleep(0.1)
        order.append("first")
    await later
    assert order == ["first", "second"]


@pytest.mark.parametrize(("seconds", "rest"), [(30.0, 0), (0.0, 1)])
def test_the_end_of_a_run_waits_for_other_threads(effects, seconds, rest):
    effects.seconds, begun, may_end = seconds, threading.Event(), threading.Event()

    def call() -> None:
        with effects.including(1):
            begun.set()
            may_end.wait(30 if rest else 0.2)

    thread = threading.Thread(target=call)
    thread.start()
    begun.wait()
    assert effects.wait() == rest
    may_end.set()
    thread.join()


def test_the_setting_is_the_default(effects, monkeypatch):
    monkeypatch.setenv("PREFECT_RESILIENCE_GRACE_SECONDS", "0.1")
    effects.seconds = None
    effects.in_threads.add(1)
    assert effects.wait() == 1
