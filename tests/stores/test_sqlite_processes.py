"""One SQLite file and many processes."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.stores import open_store

pytestmark = pytest.mark.slow

Start = Callable[..., "subprocess.Popen[str]"]

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/fleet.db"


def test_a_locked_database_is_unavailable_after_a_bounded_wait(
    python: Start, tmp_path: Path, url: str
) -> None:
    store = open_store(f"{url}?timeout=0.3")
    version = store.swap("key", 0, 1)
    holder = python(HOLD, tmp_path / "fleet.db")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="locked"):
        store.swap("key", version, 2)
    assert 0.2 < time.monotonic() - began < 30
    holder.communicate("\n")
    assert store.swap("key", version, 2)
