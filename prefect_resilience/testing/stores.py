"""The contract of `Store`, as tests that every store must pass.

    from prefect_resilience.testing.stores import StoreContract

    class TestMyStore(StoreContract):
        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda: MyStore(tmp_path)

`make_store()` is called once per test and returns an open store; it may hold documents of other tests.
Needs pytest and hypothesis. `count_together` is the race of many writers alone, for longer runs.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.stores.base import Document, OpenStore, Store, lists_open

MakeStore = Callable[[], Store]

WRITERS = 8
SWAPS = 100
PATIENCE = 10.0
SHORT = 0.2
"""Seconds that a document lives in the tests of expiry."""

# Every class that inherits the contract runs its examples on its own stores.
FIXTURES = (HealthCheck.function_scoped_fixture, HealthCheck.differing_executors, HealthCheck.too_slow)

_numbers = itertools.count()

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
keys: st.SearchStrategy[str] = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=12
)


class StoreContract:
    """Base class of a store's tests. Add a fixture `make_store`: a function that returns an open store."""

    @pytest.fixture
    def make_store(self) -> MakeStore:
        """To be overridden."""
        raise NotImplementedError("a subclass of StoreContract must define the fixture make_store")

    @pytest.fixture
    def store(self, make_store: MakeStore) -> Iterator[Store]:
        """One open store per test."""
        store = make_store()
        yield store
        store.close()

    @pytest.fixture
    def key(self) -> str:
        """A key that no other test has used."""
        return f"contract/{time.time_ns()}/{next(_numbers)}"

    # -- what a store is

    def test_it_is_a_store_and_has_a_url(self, store: Store) -> None:
        assert isinstance(store, Store)
        assert store.url > ""

    def test_its_clock_tells_seconds_since_the_epoch_and_goes_on(self, store: Store) -> None:
        first = store.now()
        assert abs(first - time.time()) < 3600
        wait_until(lambda: store.now() > first)

    # -- compare and swap

    @pytest.mark.parametrize("wrong", [-1, 0, 1, 2**63, 10**30])
    def test_a_swap_of_another_version_writes_nothing(self, store: Store, key: str, wrong: int) -> None:
        first = store.swap(key, 0, 1)
        second = store.swap(key, first, 2)
        assert second > first
        for version in (first, second + 1, wrong):
            assert store.swap(key, version, 3) == 0
            assert store.delete(key, version) is False
        assert store.load(key) == Document(2, second)

    def test_a_missing_document_has_no_version(self, store: Store, key: str) -> None:
        for _ in range(2):
            assert store.load(key) is None
            assert store.swap(key, 7, "x") == 0
            assert store.delete(key, 7) is False
            version = store.swap(key, 0, 1)
            assert store.delete(key, version) is True

    def test_versions_grow_over_a_deletion(self, store: Store, key: str) -> None:
        versions = [0]
        for life in range(20):
            version = store.swap(key, 0, life)
            version = store.swap(key, version, life)
            assert version > versions[-1]
            versions.append(version)
            assert store.delete(key, version)
            # A swap that was prepared in an earlier life of the key must not succeed in a later one.
            assert store.swap(key, version, "late") == 0

    # -- values

    @settings(max_examples=60, deadline=None, suppress_health_check=FIXTURES)
    @given(value=json_values)
    def test_json_comes_back_as_it_was(self, store: Store, key: str, value: Any) -> None:
        document = store.load(key)
        version = store.swap(key, document.version if document else 0, value)
        # As text, 1, 1.0 and True differ, and so do 0.0 and -0.0.
        stored = load_existing(store, key)
        assert json.dumps(stored.value, sort_keys=True) == json.dumps(value, sort_keys=True)
        assert stored.version == version

    def test_changing_a_value_does_not_change_the_document(self, store: Store, key: str) -> None:
        value: dict[str, Any] = {"list": [1]}
        store.swap(key, 0, value)
        value["list"].append(2)
        load_existing(store, key).value["list"].append(3)
        assert load_existing(store, key).value == {"list": [1]}

    @pytest.mark.parametrize(
        ("value", "error"),
        [
            *(({"deep": [number]}, ValueError) for number in (math.nan, math.inf, -math.inf)),
            *((value, TypeError) for value in ({1, 2}, object(), b"bytes", (1, 2), {"deep": [{1: "key"}]})),
        ],
    )
    def test_what_is_not_json_is_refused(
        self, store: Store, key: str, value: Any, error: type[Exception]
    ) -> None:
        version = store.swap(key, 0, "good")
        for expected in (0, version):
            with pytest.raises(error, match="JSON"):
                store.swap(key, expected, value)
        assert store.load(key) == Document("good", version)

    def test_large_documents_come_back(self, store: Store, key: str) -> None:
        value = {"text": "ä𝄞" * 100_000, "list": list(range(10_000))}
        store.swap(key, 0, value)
        assert load_existing(store, key).value == value

    # -- expiry

    def test_a_document_lives_until_it_expires(self, store: Store, key: str) -> None:
        expires_at = store.now() + 3600
        version = store.swap(key, 0, 1, expires_at=expires_at)
        loaded = load_existing(store, key)
        assert (loaded.value, loaded.version) == (1, version)
        assert loaded.expires_at is not None
        assert abs(loaded.expires_at - expires_at) < 0.01

    def test_an_expired_document_does_not_exist(self, store: Store, key: str) -> None:
        version = store.swap(key, 0, "old", expires_at=store.now() - 1)
        assert version > 0
        assert store.load(key) is None
        assert store.swap(key, version, "new") == 0
        assert store.delete(key, version) is False
        assert store.scan(key) == []
        assert store.swap(key, 0, "new") > version
        assert (load_existing(store, key).value, load_existing(store, key).expires_at) == ("new", None)

    def test_a_document_is_gone_once_its_time_has_passed(self, store: Store, key: str) -> None:
        version = store.swap(key, 0, 1, expires_at=store.now() + SHORT)
        wait_until(lambda: store.load(key) is None)
        assert store.swap(key, version, 2) == 0

    def test_every_swap_sets_the_expiry_anew(self, store: Store, key: str) -> None:
        version = 0
        while version == 0:  # on a busy machine the first document may have expired before the second swap
            version = store.swap(key, store.swap(key, 0, 1, expires_at=store.now() + SHORT), 2)
        gone_by = store.now() + 2 * SHORT
        wait_until(lambda: store.now() > gone_by)
        assert store.load(key) == Document(2, version)

    def test_expired_documents_are_cleared_away_without_harm(self, store: Store, key: str) -> None:
        past = store.now() - 1
        versions = [store.swap(f"{key}/{n}", 0, n, expires_at=past) for n in range(120)]
        for n in range(120):
            assert store.swap(f"{key}/{n}", 0, "again") > versions[n]
        assert len(store.scan(key, limit=500)) == 120

    # -- scan

    def test_scan_goes_by_key_and_in_pages(self, store: Store, key: str) -> None:
        names = [f"{key}/{n:03}" for n in range(25)]
        for name in reversed(names):
            store.swap(name, 0, name)
        pages: list[str] = []
        after = None
        while page := store.scan(f"{key}/", after, limit=10):
            assert len(page) <= 10
            assert all(document.value == name for name, document in page)
            pages += [name for name, _ in page]
            after = page[-1][0]
        assert pages == names

    def test_scan_begins_beyond_a_key_that_is_gone(self, store: Store, key: str) -> None:
        for name in "ace":
            store.swap(f"{key}/{name}", 0, name)
        for after, names in (("/b", "ce"), ("/e", ""), ("~", ""), ("/a\0z", "ce"), ("/\0", "ace")):
            page = store.scan(f"{key}/", after=key + after)
            assert "".join(document.value for _, document in page) == names
        assert len(store.scan(f"{key}/", after="")) == 3
        assert store.scan(f"{key}/a\0") == []

    def test_what_is_open_is_listed_alone(self, store: Store, key: str) -> None:
        if not (isinstance(store, OpenStore) and lists_open(type(store))):
            return
        versions = [store.swap(f"{key}/{name}", 0, name, open=name in "ace") for name in "abcde"]
        assert [d.value for _, d in store.scan_open(f"{key}/", limit=2)] == ["a", "c"]
        assert [d.value for _, d in store.scan_open(f"{key}/", f"{key}/a")] == ["c", "e"]
        assert store.swap(f"{key}/a", versions[0], "a")
        assert store.swap(f"{key}/b", versions[1], "b", open=True)
        assert store.delete(f"{key}/c", versions[2])
        assert [d.value for _, d in store.scan_open(f"{key}/")] == ["b", "e"]

    @pytest.mark.parametrize(
        "special", ["%", "_", "\\", "'", '"', "*", "?", "[a]", "ß", "𝄞", "e\u0301", "\uffff"]
    )
    def test_a_prefix_means_itself(self, store: Store, key: str, special: str) -> None:
        inside = [f"{key}{special}", f"{key}{special}1", f"{key}{special}\U0010ffff"]
        outside = [f"{key}x", f"{key}", f"{key}X{special}", f"{key}{special[:-1]}~"]
        for name in inside + outside:
            store.swap(name, 0, name)
        assert [name for name, _ in store.scan(f"{key}{special}")] == inside

    def test_upper_and_lower_case_differ(self, store: Store, key: str) -> None:
        store.swap(f"{key}/a", 0, 1)
        assert store.load(f"{key}/A") is None
        assert store.scan(f"{key}/A") == []
        assert store.scan(f"{key}/a", limit=0) == []

    @settings(max_examples=25, deadline=None, suppress_health_check=FIXTURES)
    @given(names=st.sets(keys, max_size=8), prefix=keys | st.just(""))
    def test_scan_finds_what_begins_so_by_code_point(
        self, store: Store, names: set[str], prefix: str
    ) -> None:
        root = f"contract/{time.time_ns()}/{next(_numbers)}/"
        for name in names:
            store.swap(root + name, 0, name)
        expected = sorted(name for name in names if name.startswith(prefix))
        assert [document.value for _, document in store.scan(root + prefix)] == expected

    @pytest.mark.parametrize("wrong", ["", "nul\0", "\ud800", "x" * 2001, "ä" * 1001])
    def test_keys_that_no_database_holds_are_refused(self, store: Store, wrong: str) -> None:
        with pytest.raises(ValueError, match="key"):
            store.swap(wrong, 0, 1)
        with pytest.raises(ValueError, match="key"):
            store.load(wrong)

    def test_a_key_may_have_two_thousand_bytes(self, store: Store, key: str) -> None:
        longest = key + "".join(random.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=2000 - len(key)))
        assert store.swap(longest, 0, 1)
        assert [name for name, _ in store.scan(key)] == [longest]

    # -- many at once, and none

    def test_no_update_of_many_threads_is_lost(self, store: Store, key: str) -> None:
        count_together(store, key, WRITERS, SWAPS)

    def test_one_of_many_creates_or_deletes_a_document(self, store: Store, key: str) -> None:
        start = threading.Barrier(WRITERS)

        def create() -> int:
            start.wait()
            return store.swap(key, 0, threading.get_ident())

        (version,) = filter(None, in_threads(create, WRITERS))
        assert sum(in_threads(lambda: store.delete(key, version), WRITERS)) == 1

    def test_a_closed_store_says_so(self, make_store: MakeStore, key: str) -> None:
        store = make_store()
        store.swap(key, 0, 1)
        store.close()
        store.close()
        operations: list[Callable[[], object]] = [
            lambda: store.load(key),
            lambda: store.swap(key, 0, 1),
            lambda: store.delete(key, 1),
            lambda: store.scan("x"),
        ]
        for operation in operations:
            with pytest.raises(StoreUnavailable):
                operation()


def count_together(store: Store, key: str, writers: int, swaps: int) -> None:
    """Threads that each increment one document `swaps` times, by compare and swap; none may be lost."""

    def write() -> None:
        done = lost = 0
        while done < swaps:
            document = store.load(key)
            if store.swap(key, document.version if document else 0, (document.value if document else 0) + 1):
                done, lost = done + 1, 0
            else:
                lost += 1
                time.sleep(random.uniform(0, min(0.2, 0.002 * 2**lost)))

    in_threads(write, writers)
    assert load_existing(store, key).value == writers * swaps


def load_existing(store: Store, key: str) -> Document:
    """The document under a key. It must exist."""
    loaded = store.load(key)
    assert loaded is not None
    return loaded


def wait_until(condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Return as soon as the condition holds; AssertionError after `patience` seconds."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "the expected condition did not become true in time"
        time.sleep(0.005)


def in_threads(work: Callable[[], Any], number: int) -> list[Any]:
    """The results of `work()` in `number` threads at once. Raises the exception of one of them, if any."""
    with ThreadPoolExecutor(number) as pool:
        return [future.result() for future in [pool.submit(work) for _ in range(number)]]
