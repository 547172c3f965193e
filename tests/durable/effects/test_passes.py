"""Passes: which of them are one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.durable.effects.model import same_pass


@pytest.mark.parametrize(
    ("earlier", "now", "same"),
    [
        ([], [], False),
        ([("f", 1)], [], False),
        ([("f", 1)], [("f", 1)], True),
        ([("f", 1)], [("f", 2)], False),
        ([("f", 1)], [("g", 1)], False),
        ([("f", 1), ("t", 1)], [("f", 1), ("u", 1)], True),
        ([("f", 1), ("t", 1)], [("f", 1), ("t", 2)], False),
        ([("f", 1), ("sub", 1)], [("f", 1), ("sub", 2)], False),
        ([("f", 1), ("sub", 1)], [("f", 2), ("sub", 1)], False),
        ([("root", 1), ("sub", 1)], [("sub", 1)], True),
    ],
)
def test_what_one_pass_is(earlier, now, same):
    assert same_pass(earlier, tuple(now)) is same
    assert same_pass(json.loads(json.dumps(earlier)), tuple(now)) is same


PASSES = st.dictionaries(st.sampled_from("abc"), st.integers(1, 2), max_size=3).map(
    lambda it: tuple(it.items())
)


@settings(deadline=None)
@given(PASSES, PASSES)
def test_either_of_two_says_the_same(one, other):
    assert same_pass(one, other) == same_pass(other, one)


@settings(deadline=None)
@given(PASSES)
def test_a_pass_is_itself_and_no_longer_when_a_run_is_begun_anew(one):
    assert same_pass(one, one) is bool(one)
    for number, (run, count) in enumerate(one):
        assert not same_pass(one, (*one[:number], (run, count + 1), *one[number + 1 :]))
