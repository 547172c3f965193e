"""The board: a browser is told what changed since it was told something, however long ago that was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.operations.dashboard import reading as module
from prefect_resilience.operations.dashboard.reading import Board


def test_nothing_new_is_nothing_told():
    board = Board()
    assert board.since(0) is None
    assert board.put("circuits", {"a": {"n": 1}})
    assert board.since(0) == {"all": True, "set": {"circuits": {"a": {"n": 1}}}}
    assert not board.put("circuits", {"a": {"n": 1}})
    assert board.since(board.version) is None


def test_only_what_changed_is_told():
    board = Board()
    board.put("circuits", {"a": {"n": 1}, "b": {"n": 1}})
    board.put("letters", {"x": {}})
    seen = board.version
    board.put("circuits", {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 1}})
    assert board.since(seen) == {"set": {"circuits": {"b": {"n": 2}, "c": {"n": 1}}}}
    seen = board.version
    board.put("circuits", {"b": {"n": 2}})
    assert board.since(seen) == {"set": {}, "gone": {"circuits": ["a", "c"]}}
    board.put("circuits", {"a": {"n": 1}, "b": {"n": 2}})
    assert board.since(seen) == {"set": {"circuits": {"a": {"n": 1}}}, "gone": {"circuits": ["c"]}}


def test_who_missed_more_than_is_remembered_is_told_everything(monkeypatch):
    monkeypatch.setattr(module, "GONE_KEPT", 2)
    board = Board()
    board.put("p", {str(n): {} for n in range(5)})
    seen = board.version
    board.put("p", {"4": {}})
    assert board.since(seen) == {"all": True, "set": {"p": {"4": {}}}}
    seen = board.version
    board.put("p", {"5": {}})
    assert board.since(seen) == {"set": {"p": {"5": {}}}, "gone": {"p": ["4"]}}


ROWS = st.dictionaries(st.sampled_from("abcdef"), st.builds(lambda n: {"n": n}, st.integers(0, 2)))


@given(st.lists(st.tuples(st.sampled_from("pq"), ROWS, st.booleans()), max_size=25))
def test_a_browser_that_asks_now_and_then_knows_the_board(steps):
    board, known, seen, truth = Board(), {"p": {}, "q": {}}, 0, {"p": {}, "q": {}}
    for part, rows, asks in [*steps, ("p", {}, True)]:
        board.put(part, rows)
        truth[part] = rows
        if asks and (told := board.since(seen)) is not None:
            if "all" in told:
                known = {"p": {}, "q": {}}
            for name, fresh in told["set"].items():
                known[name] = {**known[name], **fresh}
            for name, gone in told.get("gone", {}).items():
                for one in gone:
                    known[name].pop(one, None)
        seen = board.version if asks else seen
    assert known == truth
