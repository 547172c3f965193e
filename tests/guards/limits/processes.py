"""What tests of child processes look at: who lives, who is gone."""

import os
import subprocess
import sys
import time
from pathlib import Path

from prefect_resilience.guards.timeouts.process_mode import ChildCall
from tests.guards.limits.hanging import wait_until


def call_in_process(fn, args, kwargs, seconds, **options):
    return ChildCall(fn, args, kwargs, **options).call(seconds)


def acall_in_process(fn, args, kwargs, seconds):
    return ChildCall(fn, args, kwargs).acall(seconds)


def gone(pid):
    """No such process, or one that is dead and only waits for its adopted parent to notice."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def child_pids():
    """The pids of this process's children as text, zombies too."""
    found = subprocess.run(
        ["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())], capture_output=True, text=True
    )
    return {line.split()[0] for line in found.stdout.splitlines() if not line.endswith(" ps")}


def with_our_path():
    """An environment in which a script finds what this process finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(place for place in sys.path if place)}


def read_pids(path):
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"), 60)
    return [int(word) for word in path.read_text().split()]


def family(path):
    """A function that starts a grandchild, writes both pids down, and never ends."""

    def stay():
        import os
        import subprocess
        import sys

        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open(str(path) + ".new", "w") as file:
            file.write(f"{os.getpid()} {other.pid}\n")
        os.rename(str(path) + ".new", path)
        time.sleep(600)

    return stay
