"""A call in a child process ends when it should, with all it started, and comes back whole."""

import asyncio
import builtins
import errno
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import pytest

from prefect_resilience import Retry, classify
from prefect_resilience.errors.exceptions import AttemptTimeout, ResilienceError
from prefect_resilience.guards.timeouts.process_mode import Carriage, ProcessDied, UnpicklableError
from tests.guards.limits.processes import (
    acall_in_process,
    call_in_process,
    child_pids,
    family,
    gone,
    read_pids,
    wait_until,
    with_our_path,
)

pytestmark = pytest.mark.slow


def test_the_child_and_the_grandchild_are_gone_after_the_timeout(tmp_path):
    pids = tmp_path / "pids"
    with pytest.raises(AttemptTimeout, match=r"'stay' took longer than 3 s"):
        call_in_process(family(pids), (), {}, 3)
    mother, grandchild = read_pids(pids)
    with pytest.raises(ProcessLookupError):  # killed and waited for: no zombie
        os.kill(mother, 0)
    wait_until(lambda: gone(grandchild))
    assert str(mother) not in child_pids()


def test_an_interrupted_caller_kills_the_child(tmp_path):
    pids = tmp_path / "pids"

    def interrupt(signum, frame):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGUSR1, interrupt)
    try:
        threading.Thread(target=lambda: (read_pids(pids), os.kill(os.getpid(), signal.SIGUSR1))).start()
        with pytest.raises(KeyboardInterrupt):
            call_in_process(family(pids), (), {}, 60)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert all(gone(pid) or wait_until(lambda pid=pid: gone(pid)) is None for pid in read_pids(pids))


async def test_a_cancelled_task_kills_the_child(tmp_path):
    pids = tmp_path / "pids"
    task = asyncio.create_task(acall_in_process(family(pids), (), {}, 60))
    mother, grandchild = await asyncio.to_thread(read_pids, pids)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(wait_until, lambda: gone(mother) and gone(grandchild))


async def test_async_functions_run_and_async_callers_wait():
    async def answer(n):
        await asyncio.sleep(0)
        return n, os.getpid()

    assert call_in_process(answer, (7,), {}, 30)[0] == 7
    assert (await acall_in_process(answer, (8,), {}, 30))[0] == 8
    with pytest.raises(AttemptTimeout, match="'sleep'"):
        await acall_in_process(asyncio.sleep, (600,), {}, 0.2)


def test_an_exception_keeps_its_type_its_cause_and_its_trace():
    class Mine(Exception):
        def __init__(self, *, code):
            self.code = code
            super().__init__(f"code {code}")

    def fail():
        try:
            os.stat("/nonexistent/file")
        except OSError as error:
            raise Mine(code=7) from error

    with pytest.raises(Mine, match="code 7") as caught:
        call_in_process(fail, (), {}, 30)
    assert caught.value.code == 7
    assert type(caught.value.__cause__) is FileNotFoundError
    assert caught.value.__cause__.errno == errno.ENOENT
    (note,) = caught.value.__notes__
    assert note.startswith("Raised in the child process of 'fail':\nTraceback")
    assert "in fail" in note
    assert "child.py" not in note


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), StopIteration(5), TimeoutError("mine")]
)
def test_every_kind_of_exception_comes_back(error):
    def fail():
        raise error

    with pytest.raises(type(error)) as caught:
        call_in_process(fail, (), {}, 30)
    assert caught.value.args == error.args
    assert not isinstance(caught.value, AttemptTimeout)


class Answered(Exception):
    """An error of an SDK, with a response that cannot be pickled."""

    def __init__(self, message, status=503, wait=None):
        super().__init__(message)
        lock, headers = threading.Lock(), {} if wait is None else {"retry-after": wait}
        self.response = SimpleNamespace(status_code=status, headers=headers, connection=lock)


class Grouped(builtins.ExceptionGroup):
    def __new__(cls, message, members, lock):
        return super().__new__(cls, message, members)

    def __init__(self, message, members, lock):
        self.lock = lock


def with_cause(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "made",
    [
        lambda: builtins.ExceptionGroup(
            "all", [Answered("busy"), builtins.ExceptionGroup("in", [KeyError()])]
        ),
        lambda: builtins.ExceptionGroup("all", [builtins.ExceptionGroup("in", [Answered("busy", 429, "7")])]),
        lambda: builtins.ExceptionGroup("all", [with_cause(RuntimeError("a"), ConnectionError("b"))]),
        lambda: Grouped("all", [ConnectionError("refused")], threading.Lock()),
        lambda: with_cause(RuntimeError("a"), Answered("busy", 429, "12")),
    ],
)
def test_an_error_is_classified_as_in_the_child(made):
    def fail():
        raise made()

    there = classify(made())
    with pytest.raises(type(made())) as caught:
        call_in_process(fail, (), {}, 30)
    here = classify(caught.value)
    assert here == there.model_copy(update={"message": here.message, "details": here.details})
    assert repr(caught.value) == repr(made())


def test_an_exception_that_stays_in_the_child_keeps_its_category_and_names():
    def fail():
        import threading

        class Odd(ConnectionError):
            lock = threading.Lock()

        raise builtins.ExceptionGroup("all", [Odd("refused")])

    with pytest.raises(UnpicklableError) as caught:
        call_in_process(fail, (), {}, 30)
    info = classify(caught.value)
    assert info.category.value == "network"
    for name in ("ConnectionError", ConnectionError, "Odd", OSError):
        assert Retry(retry_on=[name]).decide(info, 1, exception=caught.value).retry
    assert not Retry(give_up_on=[OSError]).decide(info, 1, exception=caught.value).retry


def test_what_cannot_be_pickled_is_named_in_one_sentence():
    lock = threading.Lock()
    with pytest.raises(UnpicklableError, match=r"the call of 'len' cannot be sent .*plain data") as caught:
        call_in_process(len, (lock,), {}, 30)
    assert "\n" not in str(caught.value)

    def give():
        return threading.Lock()

    with pytest.raises(UnpicklableError, match="the lock that 'give' returned cannot be pickled") as caught:
        call_in_process(give, (), {}, 30)
    assert "\n" not in str(caught.value)

    def fail():
        import threading

        class Odd(Exception):
            lock = threading.Lock()

        raise Odd("text")

    with pytest.raises(UnpicklableError, match="the Odd that 'fail' raised cannot be pickled") as caught:
        call_in_process(fail, (), {}, 30)
    assert "\n" not in str(caught.value)
    assert "Odd: text" in caught.value.__notes__[0]
    assert isinstance(caught.value, ResilienceError)


def test_a_child_that_dies_is_told_with_its_exit_code(tmp_path):
    with pytest.raises(ProcessDied, match="ended with exit code 3") as caught:
        call_in_process(os._exit, (3,), {}, 30)
    assert caught.value.exit_code == 3
    assert pickle.loads(pickle.dumps(caught.value)).exit_code == 3
    with pytest.raises(ProcessDied, match="was killed by SIGSEGV") as caught:
        call_in_process(lambda: os.kill(os.getpid(), signal.SIGSEGV), (), {}, 30)
    assert caught.value.exit_code == -signal.SIGSEGV

    pids = tmp_path / "pids"

    def leave_a_fork():
        """The fork holds copies of all open files, and shall not hide the death of its parent."""
        if os.fork() == 0:
            time.sleep(600)
        pids.write_text(f"{os.getpid()}\n")
        os.kill(os.getpid(), signal.SIGKILL)

    start = time.monotonic()
    with pytest.raises(ProcessDied, match="SIGKILL"):
        call_in_process(leave_a_fork, (), {}, 90)
    assert time.monotonic() - start < 60


def test_functions_of_a_script_travel_by_value_and_its_streams_are_the_childs(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            from dataclasses import dataclass
            from prefect_resilience.guards.timeouts.process_mode import ChildCall
            print("main runs", flush=True)

            @dataclass
            class Point:
                x: int

            class Oops(Exception):
                pass

            def helper(point):
                print("in the child", flush=True)
                print("to err", file=sys.stderr)
                assert sys.stdin.read() == ""
                return Point(point.x + 1)

            def work(point):
                if point.x < 0:
                    raise Oops(point.x)
                return helper(point)

            assert ChildCall(work, (Point(1),), {}).call(60) == Point(2)
            try:
                ChildCall(work, (Point(-1),), {}).call(60)
            except Oops as error:
                print("oops", error.args)
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=with_our_path(),
        check=False,
    )
    assert done.stderr == "to err\n"
    assert done.stdout == "main runs\nin the child\noops (-1,)\n"


def test_wrap_stands_around_the_call_in_the_child_and_is_heard_at_once():
    def wrap(call, tell):
        tell("before")
        return "wrapped", call(), os.getpid()

    async def work():
        return os.getpid()

    heard = []
    word, inner, outer = call_in_process(work, (), {}, 30, carriage=Carriage(wrap, heard.append))
    assert word == "wrapped"
    assert inner == outer != os.getpid()
    assert heard == ["before"]


def test_the_caller_learns_that_the_function_begins():
    begun = []
    call_in_process(int, (), {}, 30, begun=lambda: begun.append(1))
    assert begun == [1]
    with pytest.raises(UnpicklableError):
        call_in_process(len, (threading.Lock(),), {}, 30, begun=lambda: begun.append(2))
    assert begun == [1]
