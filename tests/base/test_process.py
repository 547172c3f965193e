"""What a process has once: made anew in a forked child, ended at exit, run beside the work."""

import getpass
import os
import socket
import threading
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from prefect_resilience.base.process import in_forked_child, per_process, start_thread, user_of_host


class Shelf:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kept: list[int] = []


shelf = per_process(Shelf)


def in_child(answer: object) -> bytes:
    """What `answer` gives in a forked child, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, repr(answer()).encode())  # type: ignore[operator]
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_begins_anew_and_the_parent_goes_on() -> None:
    shelf.kept.append(1)
    with shelf.lock:
        assert in_child(lambda: (shelf.kept, shelf.lock.acquire(timeout=5))) == b"([], True)"
    assert shelf.kept == [1]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_an_action_runs_in_the_child_alone() -> None:
    ran: list[int] = []
    in_forked_child(lambda: ran.append(os.getpid()))
    assert in_child(lambda: len(ran)) == b"1"
    assert ran == []


def test_where_there_is_no_fork_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "register_at_fork")
    assert in_forked_child(print) is print


@pytest.mark.parametrize(("context", "seen"), [(None, "nobody"), (copy_context, "caller")])
def test_a_thread_has_an_empty_context_or_the_one_given(context: Any, seen: str) -> None:
    who: ContextVar[str] = ContextVar("who", default="nobody")
    who.set("caller")
    found: list[str] = []
    thread = start_thread("test", lambda: found.append(who.get()), context=context and context())
    thread.join()
    assert (found, thread.daemon, thread.name) == ([seen], True, "prefect-resilience-test")


def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_of_host() == f"{getpass.getuser()}@{socket.gethostname()}"

    def nameless() -> str:
        raise KeyError("no user has this id")

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert user_of_host() == f"unknown@{socket.gethostname()}"
