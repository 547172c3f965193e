"""Which store a URL opens."""

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
        "postgresql://u:secret@host",
        "postgresql://u:secret@host/",
        "postgresql://u:sec/ret-secret@host/db",
        "postgresql://u:secret#@host/db",
        "postgresql://u:secret@host:port/db",
        "postgresql://u:secret@host/db?timeout=soon",
        "postgresql://u:secret@host/db?timeout=0",
        "postgresql://u:secret@host/db?no_such_option=1",
        "redis://:secret@host/name",
        "redis://:secret@host/0?no_such_option=1",
        "redis://:secret@host/0?prefix={x}",
        "redis://host/0?password=secret&timeout=-1",
        "unix://:secret@",
        None,
        7,
    ],
)
def test_a_wrong_url_is_refused_with_the_right_forms(url: str) -> None:
    with pytest.raises(ConfigurationError, match="sqlite:///") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("postgres://u:p%40ss@HOST:5432/db", "postgresql+psycopg://u:p@ss@host/db"),
        ("postgresql://h1:5432,h2:6432/db?b=1&a=2", "postgresql://h1,h2:6432/db?a=2&b=1"),
        ("redis://host", "redis://host:6379/0"),
        ("redis://host/2", "redis://host?db=2"),
        ("redis:///1", "redis://localhost/01"),
        ("rediss://u:p%3Aw@host", "rediss://u:p:w@host:6379/0"),
    ],
)
def test_two_spellings_of_one_server_are_one_store(one: str, other: str) -> None:
    assert parse_url(one).canonical == parse_url(other).canonical
    canonical = parse_url(one).canonical
    assert parse_url(canonical).canonical == canonical


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("postgresql://host/a", "postgresql://host/b"),
        ("redis://host/0", "rediss://host/0"),
        ("redis://host/0", "redis://host/0?prefix=other"),
        ("redis://host/0", "redis://[::1]/0"),
    ],
)
def test_two_servers_are_two_stores(one: str, other: str) -> None:
    assert parse_url(one).canonical != parse_url(other).canonical


@pytest.mark.parametrize(
    ("url", "driver", "extra"),
    [("postgresql://host/missing", "psycopg", "postgres"), ("redis://host/99", "redis", "redis")],
)
def test_a_missing_driver_is_named_with_what_to_install(
    url: str, driver: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = "prefect_resilience.stores."
    for name in [name for name in sys.modules if name.startswith((ours + "postgres", ours + "redis"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(ConfigurationError, match=rf"prefect-resilience\[{extra}\]"):
        open_store(url)
