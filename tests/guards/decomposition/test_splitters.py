"""Splitters: nothing is lost, every part is smaller, cuts are at natural boundaries."""

import asyncio
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefect_resilience import ConfigurationError, concat, join, split_list, split_text
from prefect_resilience.calls.decomposing import NOT_RUN, Raised, atogether, together
from prefect_resilience.guards.decomposition import Split, units_of

TEXTS = st.text(alphabet="ab .!?\n\r\t。é", max_size=200)
UNITS = st.sampled_from(["paragraph", "sentence", "word", "character"])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS, UNITS, st.integers(2, 7))
def test_parts_of_a_text_are_the_text(text, by, parts):
    pieces = split_text("text", parts, by=by).of(text)
    assert "".join(pieces) == text
    if len(text) >= 2:
        assert 2 <= len(pieces) <= parts
        assert all(0 < len(piece) < len(text) for piece in pieces)
    else:
        assert pieces == [text]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS, UNITS, st.integers(1, 40))
def test_parts_of_a_size_have_it_at_most(text, by, size):
    pieces = split_text("text", by=by, size=size).of(text)
    assert "".join(pieces) == text
    assert len(text) <= size or all(len(piece) <= size for piece in pieces)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS, UNITS, st.integers(2, 5), st.integers(0, 4))
def test_an_overlap_repeats_the_end_of_the_part_before(text, by, parts, overlap):
    alone = split_text("text", parts, by=by).of(text)
    pieces = split_text("text", parts, by=by, overlap=overlap).of(text)
    assert len(pieces) == len(alone)
    end = 0
    for piece, own in zip(pieces, alone, strict=True):
        assert piece.endswith(own)
        assert text[:end].endswith(piece.removesuffix(own))
        end += len(own)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers()), st.integers(2, 9))
def test_parts_of_a_list_are_the_list(items, parts):
    pieces = split_list("items", parts).of(items)
    assert [item for piece in pieces for item in piece] == items
    if len(items) >= 2:
        sizes = [len(piece) for piece in pieces]
        assert len(pieces) == min(parts, len(items))
        assert max(sizes) - min(sizes) <= 1


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers()), st.integers(1, 9))
def test_parts_of_a_list_of_a_size(items, size):
    pieces = split_list("items", size=size).of(items)
    assert [item for piece in pieces for item in piece] == items
    assert all(len(piece) == size for piece in pieces[:-1])
    assert len(pieces[-1]) <= size


def test_boundaries():
    text = "One. Two!  Three?\n\nFour (4.5).\r\n\r\nFive 你好。六"
    assert units_of(text, "paragraph") == ["One. Two!  Three?\n\n", "Four (4.5).\r\n\r\n", "Five 你好。六"]
    assert units_of(text, "sentence") == [
        *("One. ", "Two!  ", "Three?\n\n", "Four (4.5).\r\n\r\n", "Five 你好。", "六"),
    ]
    assert units_of("a b  c", "word") == ["a ", "b  ", "c"]
    assert split_text("t").of("p1\n\np2\n\np3\n\np4") == ["p1\n\np2\n\n", "p3\n\np4"]
    assert split_text("t", by="sentence", overlap=1).of("A. B. C. D.") == ["A. B. ", "B. C. D."]


def test_other_things_that_can_be_split():
    assert split_list("x").of((1, 2, 3)) == [(1,), (2, 3)]
    assert split_list("x").of({"a": 1, "b": 2}) == [{"a": 1}, {"b": 2}]
    assert split_list("x").of(range(4)) == [range(2), range(2, 4)]
    with pytest.raises(TypeError, match="can be sliced, not a generator"):
        split_list("x").of(n for n in range(3))
    with pytest.raises(TypeError, match="not a list: use split_list"):
        split_text("x").of([1])


def test_a_data_frame_is_split_by_its_rows():
    import pandas

    frame = pandas.DataFrame({"a": [1, 2, 3]}, index=[7, 8, 9])
    assert [list(part["a"]) for part in split_list("x").of(frame)] == [[1], [2, 3]]


def test_mistakes():
    with pytest.raises(ConfigurationError, match="both parts and size"):
        split_text("t", 2, size=9)
    with pytest.raises(ConfigurationError, match="parts=1"):
        split_list("t", 1)


def test_a_splitter_of_ones_own():
    class Halves(Split):
        pass

    with pytest.raises(TypeError, match=r"abstract class Halves .* abstract method '?of'?"):
        Halves(parameter="x")  # pyright: ignore[reportAbstractUsage]


def test_mergers():
    assert concat([[1], (2,)]) == [1, 2]
    assert concat(["a", "b"]) == "ab"
    assert concat([{"a": 1, "b": 1}, {"b": 2}]) == {"a": 1, "b": 2}
    assert concat([{1}, frozenset({2})]) == {1, 2}
    assert join("; ")(["a", "b"]) == "a; b"
    for wrong in ([1, 2], ["a", ["b"]]):
        with pytest.raises(TypeError, match="concat cannot merge"):
            concat(wrong)


def fails():
    raise ValueError("no")


@pytest.mark.parametrize("parallel", [1, 2])
def test_in_threads(parallel):
    assert together([lambda: 1, lambda: 2, lambda: 3], parallel) == [1, 2, 3]


def test_none_is_begun_after_a_failure():
    first, second, third = together([lambda: 1, fails, lambda: 3], 1)
    assert (first, isinstance(second, Raised), third) == (1, True, NOT_RUN)


def test_the_end_of_the_program_is_raised():
    def ends():
        raise KeyboardInterrupt

    for parallel in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            together([ends, lambda: 1, lambda: 1], parallel)


def test_on_the_loop():
    async def one():
        return 1

    async def bad():
        raise ValueError("no")

    async def scenario():
        first, second, third = await atogether([one, bad, one], 1)
        return first, isinstance(second, Raised), third

    assert asyncio.run(scenario()) == (1, True, NOT_RUN)


def test_cancelled_it_cancels_what_runs():
    ended = threading.Event()

    async def waits():
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def scenario():
        running = asyncio.ensure_future(atogether([waits], 2))
        await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(scenario())
    assert ended.is_set()
