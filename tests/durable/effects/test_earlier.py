"""What earlier passes of a batch left, and which of it a call may be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.durable.effects.keys import effect_key
from prefect_resilience.durable.effects.opening import EarlierEffects, earlier_effects
from prefect_resilience.durable.effects.policy import Effect
from prefect_resilience.durable.effects.recipes import Continues, compared, source_of


def here() -> None: ...


SOURCE = source_of(here)
TASK = f"{SOURCE.module}.here"
GONE = f"{SOURCE.module}.gone"
PASS = (("f", 2),)
FLOW = ("f", "bills")


def recipe(task: str = TASK, **parameters: Any) -> dict[str, Any]:
    return effect_key(Effect(), task, parameters, "b", hasher=str).recipe


def effect(key: str, of: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "key": key,
        "recipe": recipe(n=1) if of is None else of,
        "kind": "external",
        "state": "done",
        "flow_run_id": "f",
        "flow": "bills",
        "asked": {"run": "r", "pass": [["f", 1]]},
        **more,
    }


def left(*effects: dict[str, Any]) -> EarlierEffects:
    return earlier_effects(effects, PASS, FLOW)


@pytest.mark.parametrize(
    ("more", "counts"),
    [
        ({}, True),
        ({"state": "unknown"}, True),
        ({"state": "intended"}, True),
        ({"state": "failed"}, False),
        ({"state": "compensated"}, False),
        ({"kind": "conditional"}, False),
        ({"recipe": None}, False),
        ({"acknowledged": True}, False),
        ({"flow": "other"}, True),
        ({"flow_run_id": "other"}, True),
        ({"flow": "other", "flow_run_id": "other"}, False),
        ({"asked": {"run": "r", "pass": [["f", 2]]}}, False),
        ({"asked": None}, True),
        ({"asked": {"run": "r", "pass": [["g", 1]]}}, True),
    ],
    ids=repr,
)
def test_which_effects_count(more, counts):
    assert bool(left({**effect("k"), **more})) is counts


CALLS = st.tuples(
    st.sampled_from([TASK, GONE, f"{SOURCE.module}.recipe"]),
    st.dictionaries(st.sampled_from("ab"), st.integers(0, 1) | st.sampled_from("01"), max_size=2),
)


@settings(deadline=None)
@given(
    st.lists(CALLS, max_size=6),
    st.sets(st.integers(0, 5)),
    CALLS,
    st.sampled_from([(), (GONE,), (TASK,), (GONE, f"{SOURCE.module}.recipe")]),
)
def test_the_index_finds_what_a_search_finds(calls, asked, call, was):
    effects = [effect(str(n), recipe(task, **args)) for n, (task, args) in enumerate(calls)]
    earlier = left(*effects)
    for number in asked:
        earlier.asked(str(number))
    remaining = [one for one in effects if int(one["key"]) not in asked]
    mine = recipe(call[0], **call[1])
    searched = compared(remaining, mine, was, lambda of: of["task"] == GONE)
    found = earlier.compare(mine, was, SOURCE)
    if isinstance(searched, Continues):
        assert found == searched
    else:
        assert isinstance(found, list)
        assert sorted(found, key=lambda one: one.key) == searched
