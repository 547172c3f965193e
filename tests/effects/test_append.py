"""append_once: once, however often it is tried and wherever it was cut off."""

from __future__ import annotations

import time

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from prefect_resilience import ConfigurationError
from prefect_resilience.effects import append_once
from prefect_resilience.effects.append import overlap

TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)
FEW = st.text(alphabet="ab\r\n", max_size=12)
"""Few letters, so that beginnings and ends meet by chance all the time."""


@pytest.mark.parametrize(
    ("text", "addition", "outcome", "after", "skipped"),
    [
        ("", "hello", "appended", "hello", 0),
        ("one\n", "two\n", "appended", "one\ntwo\n", 0),
        ("one\ntwo\n", "two\n", "already_present", "one\ntwo\n", 4),
        ("one\ntw", "two\n", "resumed", "one\ntwo\n", 2),
        ("one\ntwo", "two\n", "resumed", "one\ntwo\n", 3),
        ("one\ntwo\n\n", "two", "already_present", "one\ntwo\n\n", 3),
        ("one\r\ntwo\r\n", "two\n", "already_present", "one\r\ntwo\r\n", 4),
        ("one\ntwo\n", "two\r\n", "already_present", "one\ntwo\n", 5),
        ("x\r\n- a\r\n- b", "- a\n- b\n- c\n", "resumed", "x\r\n- a\r\n- b\n- c\n", 7),
        ("x\r\n- a\r", "- a\n- b\n", "resumed", "x\r\n- a\r\n- b\n", 3),
        ("x\r\n- a\r", "- a\r\n- b", "resumed", "x\r\n- a\r\n- b", 4),
        ("x\n- a\n", "- a\r\n- b", "resumed", "x\n- a\n- b", 5),
        ("x\r\n- a\r", "- a\n", "resumed", "x\r\n- a\r\n", 3),
        ("a\r", "\nb", "appended", "a\r\nb", 0),
        ("héllo 👩‍👩", "👩‍👩‍👧 wave", "resumed", "héllo 👩‍👩‍👧 wave", 3),
        ("anything", "", "already_present", "anything", 0),
        ("a  ", "   ", "resumed", "a   ", 2),
        ("cat", "table", "resumed", "catable", 1),
    ],
)
def test_outcomes(text, addition, outcome, after, skipped):
    result = append_once(text, addition)
    assert (result.outcome, result.text, result.skipped) == (outcome, after, skipped)


def test_how_much_of_a_beginning_is_no_chance():
    assert append_once("cat", "table", shortest=2).text == "cattable"
    assert append_once("a tab", "table", shortest=2).text == "a table"
    with pytest.raises(ConfigurationError, match="shortest=0"):
        append_once("a", "b", shortest=0)


@settings(deadline=None)
@given(text=TEXTS | FEW, addition=TEXTS | FEW)
@example(text="\n", addition="\r\n")
@example(text="\n\r", addition="\n0")
@example(text="a\n\r", addition="\r\n\r\n")
def test_twice_is_once(text, addition):
    once = append_once(text, addition)
    again = append_once(once.text, addition)
    assert again.text == once.text
    assert again.outcome == "already_present"


@settings(deadline=None)
@given(text=TEXTS | FEW, addition=TEXTS | FEW, data=st.data())
def test_cut_off_anywhere_it_comes_to_the_same(text, addition, data):
    """As long as the text does not end by chance as the addition begins."""
    assume(append_once(text, addition).outcome == "appended")
    cut = data.draw(st.integers(0, len(addition)))
    assume(not (text.endswith("\r") and addition.startswith("\n")))
    resumed = append_once(text + addition[:cut], addition)
    assert resumed.text == text + addition
    assert resumed.skipped == cut


@settings(deadline=None)
@given(text=TEXTS, addition=TEXTS, data=st.data())
def test_cut_off_in_a_text_with_other_line_ends(text, addition, data):
    """What was written with CRLF is found by an addition with LF."""
    text, addition = text.replace("\r", ""), addition.replace("\r", "")
    assume(append_once(text, addition).outcome == "appended")
    cut = data.draw(st.integers(0, len(addition)))
    written = (text + addition[:cut]).replace("\n", "\r\n")
    assert append_once(written, addition).text.replace("\r\n", "\n") == text + addition


@settings(deadline=None)
@given(beginning=st.text(alphabet="ab", max_size=8), text=st.text(alphabet="ab", max_size=12))
@example(beginning="aaa", text="aaaa")
def test_overlap_is_the_longest(beginning, text):
    lengths = [n for n in range(len(beginning)) if text.endswith(beginning[:n])]
    assert overlap(beginning, text) == max(lengths, default=0)


def test_the_text_it_was_taken_from_is_kept():
    text = "line\n" * 100_000
    addition = "a" * 50_000 + "b"
    begun = time.monotonic()
    assert append_once(text + "a" * 49_999, addition).skipped == 49_999
    assert time.monotonic() - begun < 20, "in the square of the length it would take minutes"
