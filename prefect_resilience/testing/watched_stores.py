"""The contract of `WatchedStore`, as tests for stores that push their changes.

A store inherits it beside `StoreContract`, with the same `make_store`:

    class TestMyWatchedStore(StoreContract, WatchedStoreContract):
        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda: MyStore(tmp_path)

`make_store()` returns an open store; the stores of one test may share a database, each with its own object.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.stores.base import News, Store, Watch, WatchedStore

PATIENCE = 10.0
SHORT = 0.1


class WatchedStoreContract:
    """Inherit it and define `make_store`."""

    @pytest.fixture
    def watched(self, store: Store) -> WatchedStore:
        """A store of the class under test."""
        assert isinstance(store, WatchedStore)
        return store

    @pytest.fixture
    def prefix(self, key: str) -> str:
        """A prefix that no other test uses."""
        return f"{key}/"

    def test_a_watch_gets_what_a_swap_wrote(self, watched: WatchedStore, prefix: str) -> None:
        """The news has the key and the document with its expiry, as `load` returns it."""
        with closing(watched.watch(prefix)) as watch:
            key, value = prefix + "a b\n☃", {"text": "a b\n☃", "number": 1.5, "none": None}
            watched.swap(key, 0, value, watched.now() + 1000.25, publish=True)
            (news,) = _next(watch)
            assert news == News(key, watched.load(key))

    def test_a_change_is_published_as_the_creation(self, watched: WatchedStore, prefix: str) -> None:
        """News of one key arrives in the order of its versions."""
        with closing(watched.watch(prefix)) as watch:
            version = 0
            for number in range(20):
                version = watched.swap(prefix + "a", version, number, publish=True)
            values = [news.document.value for news in _until(watch, prefix + "a", 19) if news.document]
            assert values == sorted(values)

    def test_other_prefixes_are_not_published(self, watched: WatchedStore, prefix: str) -> None:
        """A watch gets the keys of its prefix only."""
        with closing(watched.watch(prefix + "in/")) as watch:
            watched.swap(prefix + "out/a", 0, 1, publish=True)
            watched.swap(prefix + "in", 0, 1, publish=True)
            watched.swap(prefix + "in/a", 0, 2, publish=True)
            assert {news.key for news in _next(watch)} == {prefix + "in/a"}

    def test_what_does_not_fit_is_published_by_its_key(self, watched: WatchedStore, prefix: str) -> None:
        """A message without the document still names the key."""
        with closing(watched.watch(prefix)) as watch:
            for length in (7_000, 7_900, 8_000, 100_000):
                key = f"{prefix}{length}"
                watched.swap(key, 0, "x" * length, publish=True)
                (news,) = _next(watch)
                assert news.key == key
                assert news.document in (None, watched.load(key))

    def test_every_watch_gets_news(self, watched: WatchedStore, prefix: str) -> None:
        """Also watches of shorter prefixes."""
        with closing(watched.watch(prefix)) as first, closing(watched.watch(prefix[:-1])) as other:
            watched.swap(prefix + "a", 0, 1, publish=True)
            assert _next(first) == _next(other)

    def test_only_a_later_swap_that_writes_is_published(self, watched: WatchedStore, prefix: str) -> None:
        """A watch begins when `watch` returns."""
        watched.swap(prefix + "a", 0, 1, publish=True)
        with closing(watched.watch(prefix)) as watch:
            assert watched.swap(prefix + "a", 0, 2, publish=True) == 0
            assert watch.wait(SHORT) == []

    def test_many_writers_lose_nothing(self, watched: WatchedStore, prefix: str) -> None:
        """The last version of each key arrives, while 200 keys are written by 4 threads."""
        with closing(watched.watch(prefix)) as watch:
            with ThreadPoolExecutor(4) as pool:
                keys = [f"{prefix}{number}" for number in range(200)]
                swaps = [pool.submit(watched.swap, key, 0, key, publish=True) for key in keys]
                versions = {key: swap.result() for key, swap in zip(keys, swaps, strict=True)}
            heard: dict[str, int] = {}
            while len(heard) < len(keys):
                heard |= {news.key: news.document.version for news in _next(watch) if news.document}
            assert heard == versions

    def test_waiting_ends_in_time(self, watched: WatchedStore, prefix: str) -> None:
        """Without changes the list is empty, and the watch continues."""
        with closing(watched.watch(prefix)) as watch:
            assert watch.wait(0) == watch.wait(SHORT) == []
            watched.swap(prefix + "a", 0, 1, publish=True)
            assert _next(watch)

    def test_a_waiting_thread_hears_at_once(self, watched: WatchedStore, prefix: str) -> None:
        """A thread that waits is woken by the swap of another one."""
        with closing(watched.watch(prefix)) as watch:
            timer = threading.Timer(SHORT, lambda: watched.swap(prefix + "a", 0, 1, publish=True))
            timer.start()
            assert _next(watch)[0].key == prefix + "a"
            timer.join()

    def test_a_closed_store_is_not_watched(self, watched: WatchedStore, prefix: str) -> None:
        """`watch` raises StoreUnavailable after `close`."""
        watched.close()
        with pytest.raises(StoreUnavailable):
            watched.watch(prefix)


def _next(watch: Watch) -> list[News]:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if news := watch.wait(1):
            return news
    raise AssertionError(f"no news within {PATIENCE:g} s")


def _until(watch: Watch, key: str, value: object) -> list[News]:
    heard = _next(watch)
    while not (heard[-1].key == key and heard[-1].document and heard[-1].document.value == value):
        heard += _next(watch)
    return heard
