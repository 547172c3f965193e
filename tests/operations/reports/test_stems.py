"""Counts of names that contain a pattern, made into counts of tasks."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.operations.reports.stems import exclusive, pattern_of, stem_of


def like(name: str, pattern: str) -> bool:
    """What a database does with ILIKE '%pattern%', written down apart."""
    letters = (".*" if letter == "%" else "." if letter == "_" else re.escape(letter) for letter in pattern)
    return re.search("".join(letters), name, re.IGNORECASE | re.DOTALL) is not None


@pytest.mark.parametrize(
    ("name", "stem"),
    [("fetch-3f2", "fetch"), ("a b-c-000", "a b-c"), ("fetch-3F2", None), ("-3f2", None), ("fetch", None)],
)
def test_what_a_name_says(name, stem):
    assert stem_of(name) == stem


tasks = st.dictionaries(
    st.text(alphabet="ab_-A ", min_size=1, max_size=6), st.integers(0, 50), min_size=1, max_size=8
)


@settings(deadline=None, max_examples=400)
@given(tasks, st.randoms(use_true_random=False))
def test_what_is_said_is_right(runs, chance):
    names = [f"{task}-{chance.randrange(4096):03x}" for task, number in runs.items() for _ in range(number)]
    counts = {task: sum(like(name, pattern_of(task)) for name in names) for task in runs}
    alone = exclusive(counts)
    if alone is not None:
        assert alone == runs


def test_most_can_be_told():
    assert exclusive({"load": 7, "reload": 3, "fetch_page": 9, "fetch-page": 4, "x": 0}) == {
        "load": 4,
        "reload": 3,
        "fetch_page": 5,
        "fetch-page": 4,
        "x": 0,
    }


@pytest.mark.parametrize("stems", [{"Load", "load"}, {"50%"}, {"a\\b"}])
def test_what_cannot_be_told(stems):
    assert exclusive(dict.fromkeys(stems, 1)) is None
