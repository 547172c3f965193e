"""What a store refuses before it asks its database, and connections in unusual places."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prefect_resilience.stores import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    yield store
    store.close()


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def itself() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("value", [nested(100_000), itself()], ids=["deep", "itself"])
def test_a_value_nested_too_deeply_is_refused(store: Store, value: Any) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        store.swap("key", 0, value)
    assert store.load("key") is None


@pytest.mark.parametrize("key", [7, b"key", None])
def test_a_key_that_is_not_a_string_is_refused(store: Store, key: Any) -> None:
    with pytest.raises(TypeError, match="a key must be a string, not"):
        store.load(key)


def test_a_prefix_that_ends_with_the_greatest_character(store: Store) -> None:
    last = "\U0010ffff"
    for key in ("a", f"a{last}", f"a{last}{last}z", "b"):
        assert store.swap(key, 0, key)
    assert [key for key, _ in store.scan(f"a{last}")] == [f"a{last}", f"a{last}{last}z"]
    assert [key for key, _ in store.scan(f"a{last}{last}")] == [f"a{last}{last}z"]


@pytest.mark.parametrize("scheme", ["sqlite", "postgres", "redis"])
def test_a_forked_child_leaves_the_connections_of_its_parent_open(
    request: pytest.FixtureRequest, tmp_path: Path, scheme: str
) -> None:
    """In one process, as the child does it: the parent's connections are neither used nor closed."""
    sqlite = f"sqlite:///{tmp_path}/fork.db"
    store: Any = open_store(sqlite if scheme == "sqlite" else request.getfixturevalue(f"{scheme}_url"))
    version = store.swap("key", 0, "parent")
    before = store._held
    store.after_fork()
    assert store.swap("key", version, "child")
    assert store._held is not before
    if scheme != "redis":
        with before.connection() as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    store.close()
