"""Which store a URL opens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.stores import MemoryStore, Store, open_store, parse_url


def test_one_store_per_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store(f"sqlite:///{tmp_path}/a.db")
    assert isinstance(store, Store)
    assert open_store(f"sqlite:///{tmp_path}/b/../a.db") is store
    assert open_store("sqlite:///a.db") is store
    assert open_store(store.url) is store
    assert open_store(f"sqlite:///{tmp_path}/b.db") is not store


def test_memory_stores_are_told_apart_by_name() -> None:
    assert isinstance(open_store("memory://"), MemoryStore)
    assert open_store("memory://a") is open_store("memory://a/")
    assert open_store("memory://a") is not open_store("memory://b")


def test_a_closed_store_is_opened_again() -> None:
    store = open_store("memory://closing")
    store.close()
    again = open_store("memory://closing")
    assert again is not store
    assert again.swap("key", 0, 1)


def test_a_path_begins_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_url("sqlite:///~/circuits.db").path == f"{tmp_path}/circuits.db"


def test_nothing_is_made_before_the_first_operation(tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path}/new/a.db")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "circuits.db",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite://relative.db",
        "mysql://u:secret@host/db",
        "sqlite:///a.db?mode=ro",
        "sqlite:///a.db?timeout=soon",
        None,
        7,
    ],
)
def test_a_wrong_url_is_refused_with_the_right_forms(url: str) -> None:
    with pytest.raises(ConfigurationError, match="sqlite:///") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_importing_loads_no_driver_and_opens_nothing() -> None:
    code = (
        "import sys, threading\n"
        "import prefect_resilience.stores, prefect_resilience.circuits\n"
        "print([m for m in ('sqlalchemy', 'sqlite3', 'redis', 'psycopg') if m in sys.modules])\n"
        "print(threading.active_count())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "1"]
