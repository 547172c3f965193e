"""Child processes serve many calls, are ready ahead, and leave nothing behind."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from prefect_resilience.errors.exceptions import AttemptTimeout
from prefect_resilience.guards.timeouts import children, process_mode
from prefect_resilience.guards.timeouts.children import MOST_STARTING, Pool
from prefect_resilience.guards.timeouts.process_mode import ProcessDied
from tests.guards.limits.processes import call_in_process, gone, read_pids, wait_until, with_our_path

pytestmark = pytest.mark.slow


@pytest.fixture
def pool(monkeypatch):
    """A pool of the test's own, which has no children yet, and no spare, whose start would take its time."""
    pool = Pool(spare=0)
    monkeypatch.setattr(process_mode, "POOL", pool)
    yield pool
    pool.close()


def pids(pool):
    return {child.process.pid for child in pool.living}


def pid_of_call():
    return call_in_process(os.getpid, (), {}, 60)


def waiting_module(tmp_path, monkeypatch, name):
    """A module whose import in a child waits for a file, that file, and one that the import makes first."""
    module, go, began = tmp_path / f"{name}.py", tmp_path / f"{name}.go", tmp_path / f"{name}.began"
    module.write_text("def work(): return 'done'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    made = __import__(name)
    module.write_text(
        f"import pathlib, time\npathlib.Path({str(began)!r}).touch()\n"
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\ndef work(): return 'done'\n"
    )
    return made, go, began


def run_script(tmp_path, text, *args):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    return subprocess.Popen([sys.executable, str(script), *map(str, args)], env=with_our_path())


# -- kept


def test_a_spare_is_ready_when_a_child_is_killed(pool):
    pool.spare = 1
    first = pid_of_call()
    wait_until(lambda: pool.ready == 2, 60)
    ready = pids(pool)
    assert first in ready
    with pytest.raises(AttemptTimeout, match="'sleep' took"):
        call_in_process(time.sleep, (600,), {}, 0.5)
    assert pid_of_call() in ready
    wait_until(lambda: pool.ready == 2, 60)


def test_calls_find_the_place_of_the_parent_whatever_the_call_before_left(tmp_path, monkeypatch):
    def leave():
        from prefect_resilience.durable.effects.current import in_progress

        os.environ["LEFT"] = "1"
        os.environ.pop("MINE")
        os.chdir("/")
        sys.argv.append("left")
        sys.path.append("left")
        in_progress.set("left")
        return os.getpid()

    def look():
        from prefect_resilience.durable.effects.current import in_progress

        return os.getpid(), os.getcwd(), sys.argv, "left" in sys.path, dict(os.environ), in_progress.get()

    monkeypatch.setenv("MINE", "yes")
    first = call_in_process(leave, (), {}, 60)
    monkeypatch.setenv("MINE", "no")
    monkeypatch.chdir(tmp_path)
    found = call_in_process(look, (), {}, 60)
    assert found == (first, str(tmp_path), sys.argv, False, dict(os.environ), None)


def test_a_child_is_replaced_after_so_many_calls(pool, monkeypatch):
    monkeypatch.setattr(children, "MOST_CALLS", 2)
    first = pid_of_call()
    assert pid_of_call() == first
    assert gone(first)
    assert pid_of_call() != first


def test_a_new_child_imports_what_the_calls_before_needed(pool, tmp_path, monkeypatch):
    (tmp_path / "needed.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))

    def need():
        import needed

        return os.getpid(), needed.__name__

    first, _ = call_in_process(need, (), {}, 60)
    assert pid_of_call() == first
    for child in list(pool.living):
        os.kill(child.process.pid, signal.SIGKILL)
        child.process.wait(20)
    assert call_in_process(lambda: "needed" in sys.modules, (), {}, 60)


# -- the deadline, while a child is not there yet


def test_the_deadline_counts_while_a_child_starts(pool, tmp_path, monkeypatch):
    _, go, _ = waiting_module(tmp_path, monkeypatch, "imported_at_the_start")
    pool.learn(["imported_at_the_start"])
    begun = []
    with pytest.raises(AttemptTimeout, match=r"the start of the child process of 'getpid' took longer"):
        call_in_process(os.getpid, (), {}, 0.3, begun=lambda: begun.append(1))
    (starting,) = pids(pool)
    go.touch()
    assert pid_of_call() == starting  # it was not killed: nothing had been called in it
    assert begun == []


def test_the_deadline_counts_while_a_call_is_unpickled(pool, tmp_path, monkeypatch):
    first = pid_of_call()
    module, go, began = waiting_module(tmp_path, monkeypatch, "imported_by_a_call")
    begun = []
    with pytest.raises(AttemptTimeout, match=r"the start of the child process of 'work' took longer"):
        call_in_process(module.work, (), {}, 0.3, begun=lambda: begun.append(1))
    assert began.exists()
    go.touch()
    wait_until(lambda: pool.ready == 1, 60)
    assert pids(pool) == {first}
    assert begun == []
    assert call_in_process(module.work, (), {}, 60) == "done"


# -- ended


def test_idle_children_end(monkeypatch):
    pool = Pool(idle_seconds=0.1, spare=0)
    monkeypatch.setattr(process_mode, "POOL", pool)
    first = pid_of_call()
    wait_until(lambda: gone(first), 60)
    wait_until(lambda: not pool.living and not pool.starting, 60)
    assert pid_of_call() != first
    pool.close()


def test_a_child_that_cannot_start_fails_the_call(pool, monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(ProcessDied, match="the child process of 'getpid' ended with exit code 1"):
        pid_of_call()
    assert not pool.living


def test_children_end_with_their_parent(tmp_path):
    note = tmp_path / "pids"
    parent = run_script(
        tmp_path,
        """
        import os, sys
        from prefect_resilience.guards.timeouts.children import POOL
        from prefect_resilience.guards.timeouts.process_mode import ChildCall
        ChildCall(os.getpid, (), {}).call(60)
        open(sys.argv[1], "w").write(" ".join(str(child.process.pid) for child in POOL.living) + "\\n")
        """,
        note,
    )
    assert parent.wait(60) == 0
    assert all(gone(pid) for pid in read_pids(note))


def test_children_are_gone_when_the_parent_is_killed(tmp_path):
    """Those that are idle, those that run, and what they started."""
    note, also = tmp_path / "pids", tmp_path / "idle"
    parent = run_script(
        tmp_path,
        """
        import os, subprocess, sys, threading, time
        from prefect_resilience.guards.timeouts.children import POOL
        from prefect_resilience.guards.timeouts.process_mode import ChildCall

        def stay(path):
            other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            with open(path + ".new", "w") as file:
                file.write(f"{os.getpid()} {other.pid}\\n")
            os.rename(path + ".new", path)
            time.sleep(600)

        threading.Thread(target=ChildCall(stay, (sys.argv[1],), {}).call, args=(600,), daemon=True).start()
        while POOL.ready == 0:
            time.sleep(0.01)
        print(ChildCall(os.getpid, (), {}).call(60), file=open(sys.argv[2], "w"), flush=True)
        time.sleep(600)
        """,
        note,
        also,
    )
    everybody = read_pids(note) + read_pids(also)
    parent.send_signal(signal.SIGKILL)
    parent.wait(10)
    for pid in everybody:
        wait_until(lambda pid=pid: gone(pid), 30)


# -- many at once


def test_many_threads_at_once_share_the_children_that_start(pool):
    most = []

    def call(number):
        most.append(pool.starting)
        return call_in_process(lambda: (number, os.getpid()), (), {}, 100)

    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(call, range(12)))
    assert [number for number, _ in answers] == list(range(12))
    assert max(most) <= MOST_STARTING
    assert len({pid for _, pid in answers}) < 12
