"""Partial results: plain, without secrets, of bounded size, and said so when they were cut."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefect_resilience import PartialOutput
from prefect_resilience.guards.partials import LIMIT, partial_output, partial_results
from tests.contexts import context_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def output_of(*given: Any) -> Any:
    return partial_output(*given)


@pytest.mark.requirement("001.10")
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(JSON, st.integers(10, 300))
def test_it_is_never_longer_than_it_may_be_and_says_when_it_was_cut(value, limit):
    output = output_of(value, limit)
    if value is None:
        assert output is None
        return
    size = len(json.dumps(output.content, ensure_ascii=False))
    whole = len(json.dumps(value, ensure_ascii=False, default=str))
    assert output.truncated or whole <= limit
    if not output.truncated:
        assert (output.original_size, size) == (None, whole)
    elif isinstance(output.content, list):
        assert size <= limit
        assert output.content == value[: len(output.content)]
    else:
        assert len(output.content) <= limit
    assert PartialOutput.model_validate_json(output.model_dump_json()) == output


def test_of_a_list_the_first_items_are_kept_of_a_text_its_beginning():
    long = output_of(["x" * 100] * 10_000)
    assert (long.truncated, long.content[0]) == (True, "x" * 100)
    assert LIMIT - 200 < len(json.dumps(long.content)) <= LIMIT
    text = output_of("y" * 100_000)
    assert (text.content, text.truncated, text.original_size) == ("y" * LIMIT, True, 100_002)
    many = output_of(list(range(20_000)))
    assert (many.truncated, len(many.content)) == (True, 10_000)
    deep = value = []
    for _ in range(30):
        value.append([])
        value = value[0]
    assert output_of(deep).truncated


def test_it_is_plain_and_without_secrets():
    @dataclass
    class Found:
        password: str
        page: int

    output = output_of([Found("hunter2-hunter2", 1), {2}])
    assert output.content == [{"password": "***", "page": 1}, [2]]


def test_results_of_several_steps_share_the_room():
    results = partial_results([("a", "x" * 40), ("b", [1, 2]), ("c", "z" * 90), ("d", 5)], 60)
    assert results == [
        {"name": "a", "value": "x" * 40},
        {"name": "b", "value": [1, 2]},
        {"name": "c", "value": "z" * 12, "truncated": True},
        {"name": "d", "value": "", "truncated": True},
    ]
    assert partial_results([("1", {"k": 1})], named="part") == [{"part": "1", "value": {"k": 1}}]
    assert partial_results([("1", {"k": [1] * 30})], 20)[0]["truncated"] is True


def test_what_an_exception_says_itself():
    for own, content in ((None, None), (["done"], ["done"]), (PartialOutput(content=1), 1)):
        error = ValueError("no")
        error.partial_output = own
        output = context_of(error).partial_output
        assert (output and output.content) == content
