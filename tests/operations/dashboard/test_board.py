"""A browser learns what changed since it last asked, however long ago that was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.operations.dashboard.reading import changes


def test_only_what_changed_is_sent():
    before = {"circuits": {"a": {"n": 1}, "b": {"n": 1}}, "letters": {"x": {}}}
    assert changes({}, before) == {"all": True, "set": before}
    assert changes(before, before) == {"set": {}}
    after = {**before, "circuits": {"b": {"n": 2}, "c": {"n": 1}}}
    changed = {"circuits": {"b": {"n": 2}, "c": {"n": 1}}}
    assert changes(before, after) == {"set": changed, "gone": {"circuits": ["a"]}}


ROWS = st.dictionaries(st.sampled_from("abcdef"), st.builds(lambda n: {"n": n}, st.integers(0, 2)))


@given(st.lists(st.tuples(st.sampled_from("pq"), ROWS, st.booleans()), max_size=25))
def test_a_browser_that_asks_now_and_then_knows_the_rows(steps):
    known, sent, truth = {"p": {}, "q": {}}, {}, {"p": {}, "q": {}}
    for part, rows, asks in [*steps, ("p", {}, True)]:
        truth = {**truth, part: rows}
        if asks:
            message = changes(sent, truth)
            for name, fresh in message["set"].items():
                known[name] = {**known[name], **fresh}
            for name, gone in message.get("gone", {}).items():
                for one in gone:
                    known[name].pop(one, None)
            sent = truth
    assert known == truth
