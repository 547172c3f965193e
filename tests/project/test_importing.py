"""Importing the package does nothing but import it."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import json, sys, threading
import prefect, prefect.tasks, prefect.flows

seen = []

def hear(event, args):
    if event == "open" and isinstance(args[0], (str, bytes)):
        path = str(args[0])
        if "__pycache__" not in path and not path.endswith((".py", ".pyc", ".so")):
            seen.append([event, path])
    elif event.startswith("socket.") or event in ("_thread.start_new_thread", "subprocess.Popen", "os.fork"):
        seen.append([event, ""])

sys.addaudithook(hear)
before = threading.active_count()
import prefect_resilience
assert threading.active_count() == before
names = prefect_resilience.__all__
drivers = [name for name in ("sqlalchemy", "redis", "psycopg", "sqlite3") if name in sys.modules]
print(json.dumps({"seen": seen, "names": names, "drivers": drivers}))
for name in names:
    assert getattr(prefect_resilience, name) is not None
"""


def test_it_opens_no_file_socket_or_thread_and_loads_no_driver():
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert said["seen"] == []
    assert said["drivers"] == []
    assert said["names"] == sorted(said["names"])
