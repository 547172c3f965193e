"""Importing the package does nothing but import it."""

import importlib
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "prefect_resilience"
ROOMS = sorted(stub.parent.relative_to(PACKAGE.parent) for stub in PACKAGE.rglob("__init__.pyi"))

SCRIPT = """
import json, sys, threading
import prefect, prefect.tasks, prefect.flows

seen = []

def hear(event, args):
    if event == "open" and isinstance(args[0], (str, bytes)):
        path = str(args[0])
        if "__pycache__" not in path and not path.endswith((".py", ".pyi", ".pyc", ".so")):
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


DECORATED = """
import sys
from prefect_resilience import resilient_task

@resilient_task
def bare():
    return 1

print(*(name for name in sys.modules if name.startswith("prefect_resilience.")))
"""


def test_a_task_without_options_loads_no_room_that_only_options_need():
    ended = subprocess.run([sys.executable, "-c", DECORATED], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    loaded = {name.removeprefix("prefect_resilience.") for name in ended.stdout.split()}
    rare = {
        "dead_letters",
        "durable.effects.claim",
        "durable.effects.ledger",
        "durable.letters.queue",
        "graphs.conditions.model",
        "graphs.plans",
        "graphs.routing",
        "guards.budgets.policy",
        "guards.circuits.breaker",
        "guards.limits.bulkhead",
        "guards.outputs.promise",
        "stores",
    }
    assert [name for name in rare if find_spec(f"prefect_resilience.{name}") is None] == []
    assert loaded & rare == set()


@pytest.mark.parametrize("room", ROOMS, ids=str)
def test_every_name_of_a_lazy_room_is_there(room: Path):
    found = importlib.import_module(".".join(room.parts))
    assert found.__all__
    for name in found.__all__:
        assert getattr(found, name) is not None
