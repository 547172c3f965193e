"""append_once: once, however often it is tried and wherever it was cut off."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from prefect_resilience.durable.effects.append import OVER
from prefect_resilience.effects import append_once

TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)
FEW = st.text(alphabet="ab\n", max_size=12)
"""Few letters, so that beginnings and ends meet by chance all the time."""


LINE = "2026-11-22 nothing happened\n"
SENTENCE = "On Monday we sent her the contract, and she signed it."


@pytest.mark.requirement("004.12")
@pytest.mark.parametrize(
    ("text", "addition", "outcome", "after"),
    [
        ("one\n", "two\n", "appended", "one\ntwo\n"),
        ("anything", "", "already_present", "anything"),
        ("one\ntwo\n\n", "two", "already_present", "one\ntwo\n\n"),
        ("Total: 1", "10 items", "appended", "Total: 110 items"),
        ("Met Ada. " + SENTENCE[:20], SENTENCE, "appended", "Met Ada. " + SENTENCE[:20] + SENTENCE),
        ("Met Ada. " + SENTENCE[:21], SENTENCE, "resumed", "Met Ada. " + SENTENCE),
        ("Met Ada. " + SENTENCE, SENTENCE, "already_present", "Met Ada. " + SENTENCE),
        ("one\ntwo", "two\n\n", "resumed", "one\ntwo\n\n"),
        ("one\ntwo\n", "two\n\n", "resumed", "one\ntwo\n\n"),
        ("a  ", "   ", "appended", "a     "),
        # The overlap stands earlier in the text, so that it may well stand here by itself.
        (LINE + LINE, LINE + "and then", "appended", LINE + LINE + LINE + "and then"),
        # The overlap stands later in the addition.
        (LINE, LINE + LINE + "and then", "appended", LINE + LINE + LINE + "and then"),
        # A short pattern, often: a shorter beginning of it ends the text just as well.
        ("-" * 40, "-" * 60 + "total", "appended", "-" * 100 + "total"),
    ],
)
def test_only_what_is_no_coincidence_counts(text, addition, outcome, after):
    result = append_once(text, addition)
    assert (result.outcome, result.text) == (outcome, after)


@settings(deadline=None)
@given(
    text=st.text(alphabet="ab\n", max_size=90) | TEXTS,
    addition=st.text(alphabet="ab\n", max_size=60) | st.text(alphabet="abcdefghij", max_size=80) | TEXTS,
    data=st.data(),
)
def test_nothing_is_lost_unless_the_text_had_ended_in_the_addition_before(text, addition, data):
    """The promise of the docstring: everything else is at worst there twice."""
    cut = data.draw(st.integers(0, len(addition)))
    begun = text + addition[:cut]
    assume(not begun.rstrip().endswith(addition.rstrip()) or cut >= len(addition.rstrip()))
    assume(not any(text.endswith(addition[:length]) for length in range(OVER + 1, len(addition))))
    result = append_once(begun, addition)
    assert result.text.rstrip() in ((text + addition).rstrip(), (begun + addition).rstrip())


@pytest.mark.requirement("004.11")
@settings(deadline=None)
@given(text=TEXTS, addition=st.text(alphabet="abcdefgh ", min_size=30, max_size=200), data=st.data())
def test_what_was_cut_off_is_gone_on_with(text, addition, data):
    cut = data.draw(st.integers(OVER + 1, len(addition) - 1))
    begun = addition[:cut]
    assume(not any(begun.startswith(begun[period:]) for period in range(1, OVER + 1)))
    assume(addition.find(begun[: OVER + 1], 1) < 0 and (text + begun).find(begun[: OVER + 1]) == len(text))
    result = append_once(text + begun, addition)
    assert result.text == text + addition


@pytest.mark.requirement("004.11")
@settings(deadline=None)
@given(text=TEXTS | FEW, addition=TEXTS | FEW)
def test_twice_is_once(text, addition):
    once = append_once(text, addition)
    again = append_once(once.text, addition)
    assert again.text == once.text
    assert again.outcome == "already_present"
