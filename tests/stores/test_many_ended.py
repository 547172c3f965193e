"""A page behind documents that have ended: in few steps, each of a bounded size, whatever their number."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefect_resilience.stores.base import scan_all

_numbers = itertools.count()


@pytest.fixture
def steps(store: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The statements or commands of the last scan."""
    taken: list[Any] = []
    using = store.using
    monkeypatch.setattr(store, "using", lambda *a: taken.append(1) or using(*a))

    def count() -> int:
        number = len(taken)
        taken.clear()
        return number

    return count


def ended(store: Any, prefix: str, number: int) -> None:
    soon = store.now() + 0.5
    for one in range(number):
        assert store.swap(f"{prefix}{one:05}", 0, {}, soon)
    while store.now() <= soon:
        time.sleep(0.05)


def test_a_page_behind_them_takes_few_steps(store: Any, steps: Callable[[], int]) -> None:
    few = {"a": 300, "b": 600}
    for prefix, number in few.items():
        ended(store, f"many/{prefix}/", number)
        store._purge_at = 1e18  # of those that purge
    assert store.swap("many/c", 0, "lives")
    steps()
    assert [document.value for _, document in store.scan("many/", limit=1)] == ["lives"]
    # 1, 8, 64, ... rows or names: not one at a time
    assert steps() <= 6
    assert store.scan("many/a/", limit=5) == []


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lives=st.lists(st.booleans(), min_size=1, max_size=25),
    limit=st.integers(1, 6),
    most=st.sampled_from([2, 7]),
)
def test_pages_have_every_living_document_once(store: Any, lives: list[bool], limit: int, most: int) -> None:
    prefix = f"each/{next(_numbers)}/"
    past = store.now() - 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "most", most)
        for number, alive in enumerate(lives):
            store.swap(f"{prefix}{number:03}", 0, number, None if alive else past)
        found, after = list[int](), None
        while page := store.scan(prefix, after, limit):
            assert len(page) <= limit
            found += [document.value for _, document in page]
            after = page[-1][0]
    wanted = [number for number, alive in enumerate(lives) if alive]
    assert found == wanted == [document.value for _, document in scan_all(store, prefix)]
