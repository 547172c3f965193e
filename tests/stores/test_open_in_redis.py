"""The index of open documents in Redis: beside processes of an older version and other work, after a loss."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from prefect_resilience.durable.effects.ledger import PREFIX
from prefect_resilience.durable.letters.claims import ENTRY
from prefect_resilience.stores import open_store, redis_open
from prefect_resilience.stores.base import encode
from prefect_resilience.stores.opened import OPEN_DOCUMENTS, scan_open

OLD = Path(__file__).parent / "migration"
WAITS: dict[str, Any] = {"id": "x"}
GONE = {"status": "replayed", "id": "x"}


class OldProcess:
    """Changes documents as version 0.1 does."""

    def __init__(self, client: Any, prefix: str) -> None:
        self._client = client
        self._space = f"{{{prefix}}}"
        scripts = ((OLD / f"redis_{name}_0_1.lua").read_text() for name in ("swap", "delete"))
        self._swap, self._delete = map(client.register_script, scripts)

    def _keys(self, key: str) -> list[str]:
        return [f"{self._space}:{name}" for name in (f"document:{key}", "names", "expiring", "version")]

    def swap(self, key: str, expected: int, value: Any) -> int:
        version = int(self._swap(self._keys(key), [key, str(expected), "-", encode(value), "", ""]))
        assert version
        return version

    def delete(self, key: str, expected: int) -> None:
        assert self._delete(self._keys(key), [key, str(expected)]) == b"1"


@pytest.fixture
def prefix(redis_url: str) -> str:
    return redis_url.partition("prefix=")[2]


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url.partition("?")[0]) as client:
        yield client


@pytest.fixture
def old(client: Any, prefix: str) -> OldProcess:
    return OldProcess(client, prefix)


@pytest.fixture
def store(redis_url: str) -> Iterator[Any]:
    store = open_store(redis_url)
    yield store
    store.close()


@pytest.fixture
def reads(store: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of documents that were read for pages of all of them."""
    numbers: list[int] = []
    page = store._page

    def counted(*given: Any, **more: Any) -> Any:
        names, held = page(*given, **more)
        numbers.append(len(names))
        return names, held

    monkeypatch.setattr(store, "_page", counted)
    return numbers


def found(store: Any, prefix: str = ENTRY, which: Any = "open") -> list[str]:
    return [key.removeprefix(prefix) for key, _ in scan_open(store, prefix, which=which)]


def test_another_definition_of_open_needs_another_mark() -> None:
    definition = hashlib.sha256(repr(OPEN_DOCUMENTS).encode()).hexdigest()[:16]
    assert (definition, redis_open.KEPT) == ("798e5e3f81adbc6b", " ")


def test_an_empty_store_has_the_index_from_its_first_document(store: Any, reads: list[int]) -> None:
    assert found(store) == []
    reads.clear()
    for number in range(5):
        store.swap(f"{ENTRY}{number}", 0, GONE if number % 2 else WAITS)
    assert found(store) == ["0", "2", "4"]
    assert reads == []


def test_a_store_of_an_older_version_gets_the_index(
    store: Any, old: OldProcess, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_open, "NAMES_AT_ONCE", 10)
    for number in range(35):
        old.swap(f"{ENTRY}{number:02}", 0, WAITS if number in (0, 19, 34) else GONE)
        old.swap(f"{PREFIX}b/{number:02}", 0, {"state": "done" if number % 9 else "unknown"})
    store.swap("other", 0, {})
    assert found(store) == ["00", "19", "34"]
    assert sum(reads) == 70  # to make the index
    reads.clear()
    assert found(store, PREFIX) == ["b/00", "b/09", "b/18", "b/27"]
    assert found(store, which="in_doubt") == []
    assert reads == []


def test_a_swap_of_an_older_version_is_never_missed(
    store: Any, old: OldProcess, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.swap(f"{ENTRY}1", 0, WAITS)
    assert found(store) == ["1"]
    assert reads == []
    old.swap(f"{ENTRY}2", 0, WAITS)
    version = store.swap(f"{ENTRY}3", 0, GONE)  # does not hide that
    assert found(store) == ["1", "2"]
    old.swap(f"{ENTRY}3", version, WAITS)
    assert found(store) == ["1", "2", "3"]
    # While such swaps go on, everything is read; the index is not made again for each question.
    build, begun = store._open_names.build, list[bool]()

    def interrupted(page: Any) -> bool:
        def late(*given: Any, **more: Any) -> Any:
            names = page(*given, **more)
            old.swap(f"{ENTRY}9{len(begun)}", 0, WAITS)
            begun.append(True)
            return names

        return build(late)

    monkeypatch.setattr(store._open_names, "build", interrupted)
    old.swap(f"{ENTRY}4", 0, WAITS)
    assert found(store)[:4] == ["1", "2", "3", "4"]
    seen = len(begun)
    assert seen
    assert len(found(store)) == 4 + seen
    assert len(begun) == seen


def test_documents_that_an_older_version_deleted_leave_the_index(
    store: Any, old: OldProcess, client: Any, prefix: str
) -> None:
    versions = [store.swap(f"{ENTRY}{number:03}", 0, WAITS) for number in range(250)]
    for number, version in enumerate(versions[:-2]):
        old.delete(f"{ENTRY}{number:03}", version)
    assert found(store) == ["248", "249"]
    assert client.zcard(f"{{{prefix}}}:open") == 3  # with the mark that it is complete


def test_deleted_and_expired_documents_leave_the_index(store: Any, client: Any, prefix: str) -> None:
    index = f"{{{prefix}}}:open"
    version = store.swap(f"{ENTRY}1", 0, {"status": "in_doubt"})
    assert client.zcard(index) == 3
    assert store.delete(f"{ENTRY}1", version)
    assert client.zcard(index) == 1
    version = store.swap(f"{ENTRY}1", 0, WAITS)
    assert client.zcard(index) == 2
    store.swap(f"{ENTRY}1", version, GONE)
    assert client.zcard(index) == 1
    store.swap(f"{ENTRY}2", 0, WAITS, store.now() - 5)
    assert client.zcard(index) == 2
    store.swap("other", 0, {})
    assert client.zcard(index) == 1


def test_a_lost_index_is_made_again(store: Any, client: Any, prefix: str, reads: list[int]) -> None:
    store.swap(f"{ENTRY}1", 0, WAITS)
    store.swap(f"{ENTRY}2", 0, GONE)
    client.delete(f"{{{prefix}}}:open")
    assert found(store) == ["1"]
    assert sum(reads) == 2
    client.delete(f"{{{prefix}}}:open")
    store.swap(f"{ENTRY}3", 0, WAITS)
    assert found(store) == ["1", "3"]
    client.delete(f"{{{prefix}}}:version")
    store.swap(f"{ENTRY}4", 0, WAITS)
    reads.clear()
    assert found(store) == ["1", "3", "4"]
    assert sum(reads) == 4


def test_what_changes_while_the_index_is_made(store: Any, old: OldProcess, redis_url: str) -> None:
    versions = {number: old.swap(f"{ENTRY}{number}", 0, WAITS if number % 2 else GONE) for number in range(8)}
    other = open_store(redis_url)
    page, done = store._page, list[bool]()

    def busy(*given: Any, **more: Any) -> Any:
        names = page(*given, **more)
        if not done:
            done.append(True)
            # Read, and not in the index yet: one ends, one is open again, one is new, and one goes.
            other.swap(f"{ENTRY}1", versions[1], GONE)
            other.swap(f"{ENTRY}2", versions[2], WAITS)
            other.swap(f"{ENTRY}9", 0, {"status": "in_doubt"})
            other.delete(f"{ENTRY}3", versions[3])
            assert other.scan_open(ENTRY, limit=1)  # this one makes it, too
        return names

    store._page = busy
    assert store._open_names.build(store._page)
    assert found(store) == ["2", "5", "7", "9"]
    assert found(store, which="in_doubt") == ["9"]
    assert found(other) == ["2", "5", "7", "9"]


def test_who_began_before_a_swap_of_an_older_version_does_not_complete_the_index(
    store: Any, old: OldProcess, redis_url: str
) -> None:
    old.swap(f"{ENTRY}5", 0, WAITS)
    other: Any = open_store(redis_url)
    page, done = store._page, list[bool]()

    def busy(*given: Any, **more: Any) -> Any:
        names = page(*given, **more)
        if names[0] and not done:
            done.append(True)
            old.swap(f"{ENTRY}1", 0, WAITS)  # behind what was read
            with pytest.raises(KeyboardInterrupt):
                other._open_names.build(interrupted)
        return names

    def interrupted(*given: Any, **more: Any) -> Any:
        raise KeyboardInterrupt

    assert not store._open_names.build(busy)
    assert done
    assert found(store) == ["1", "5"]
    assert found(other) == ["1", "5"]


def test_keys_of_the_index_are_in_one_slot(store: Any, client: Any, prefix: str) -> None:
    store.swap(f"{ENTRY}1", 0, WAITS)
    names = [name.decode() for name in client.scan_iter(f"{{{prefix}}}*")]
    assert f"{{{prefix}}}:open" in names
    assert all(re.match(r"\{[^}]+\}:", name) for name in names)
