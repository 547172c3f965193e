"""append_once: once, however often it is tried and wherever it was cut off."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from prefect_resilience import ConfigurationError
from prefect_resilience.durable.effects.append import OVER, overlap
from prefect_resilience.effects import append_once

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
def test_with_one_character_every_overlap_counts(text, addition, outcome, after, skipped):
    result = append_once(text, addition, shortest=1)
    assert (result.outcome, result.text, result.skipped) == (outcome, after, skipped)


@pytest.mark.requirement("004.12")
def test_how_much_of_a_beginning_is_no_chance():
    assert append_once("cat", "table", shortest=2).text == "cattable"
    assert append_once("a tab", "table", shortest=2).text == "a table"
    with pytest.raises(ConfigurationError, match="shortest=0"):
        append_once("a", "b", shortest=0)


LINE = "2026-11-22 nothing happened\n"
SENTENCE = "On Monday we sent her the contract, and she signed it."


@pytest.mark.parametrize(
    ("text", "addition", "outcome", "after"),
    [
        ("Total: 1", "10 items", "appended", "Total: 110 items"),
        ("Met Ada. " + SENTENCE[:20], SENTENCE, "appended", "Met Ada. " + SENTENCE[:20] + SENTENCE),
        ("Met Ada. " + SENTENCE[:21], SENTENCE, "resumed", "Met Ada. " + SENTENCE),
        ("Met Ada. " + SENTENCE, SENTENCE, "already_present", "Met Ada. " + SENTENCE),
        ("one\ntwo", "two\n\n", "resumed", "one\ntwo\n\n"),
        ("one\ntwo\n", "two\n\n", "resumed", "one\ntwo\n\n"),
        ("one\ntwo \n", "two\n\n", "already_present", "one\ntwo \n"),
        ("one\r\ntwo", "two\r\n", "resumed", "one\r\ntwo\r\n"),
        ("a  ", "   ", "appended", "a     "),
        # The overlap stands earlier in the text, so that it may well stand here by itself.
        (LINE + LINE, LINE + "and then", "appended", LINE + LINE + LINE + "and then"),
        # The overlap stands later in the addition.
        (LINE, LINE + LINE + "and then", "appended", LINE + LINE + LINE + "and then"),
        # A short pattern, often: a shorter beginning of it ends the text just as well.
        ("-" * 40, "-" * 60 + "total", "appended", "-" * 100 + "total"),
        (
            "x\r\n" + SENTENCE[:21] + "\r",
            SENTENCE[:21] + "\nmore",
            "resumed",
            "x\r\n" + SENTENCE[:21] + "\r\nmore",
        ),
    ],
)
def test_without_a_length_only_what_is_no_coincidence_counts(text, addition, outcome, after):
    result = append_once(text, addition)
    assert (result.outcome, result.text) == (outcome, after)


PROSE = """\
The ferry had stopped running in the second week of October, so whatever the island needed came over on
Tuesdays in the post boat, and whatever it did not need came too. That is how the piano arrived. Nobody had
ordered it. It stood on the quay under a tarpaulin for eleven days while the harbour master wrote letters,
first to the company whose label was on the crate, then to the company's insurers, and in the end, when
neither had answered, to his sister, who knew about music.

His sister wrote back at once. She said that a piano left in salt air for a fortnight was a piece of
furniture, and left for a month was firewood, and that he should bring it indoors and worry about the owner
later. "Later," she wrote, "is when owners turn up." So six men and a borrowed trailer took it up the hill
to the schoolhouse. It went through the door on the third attempt, after they had taken off the door, and
then the frame.

There were fourteen pupils that winter. None of them had played anything but the harmonium, which had lost
its two lowest notes in the flood of 1987 and its temper some time before. The teacher, Mr Aldous, could
pick out hymns. He picked them out on Friday afternoons, slowly, with the air of a man who counts change in
a foreign coin, and the children sang a little ahead of him. By Christmas they were singing in two parts. By
the end of January there was a rota for practising, pinned beside the register: 20 minutes each, odd numbers
on Mondays and Wednesdays, even numbers on Tuesdays and Thursdays, and whoever had brought in coal on
Fridays.

The letter from the owner came in March. It was addressed to "The Finder" and it had been to two other
islands first; both had forwarded it without a word. The piano, it said, had been meant for a hotel at 47
Marine Parade that had since closed. Carriage had been paid: 312 pounds and 40 pence. Would the finder be so
good as to say in which state the instrument was, and what it would cost to send it back?

The harbour master read it aloud at the meeting. There was a silence of the kind that a meeting keeps for
the tide tables and for money. Then Mrs Hall, who kept the shop, asked what a piano weighed. Two hundred and
thirty kilos, somebody said. And what had the frame of the schoolhouse door cost, the second time? They
worked it out on the back of the agenda: the trailer, the door, the frame, the tuning, and eleven days of
tarpaulin at the harbour's usual rate. It came to 311 pounds. They wrote to the owner that he might have his
piano for that, and that the next boat but one had room.

He sent them a stool.
"""


def _digits(rng, number):
    return "".join(rng.choice("0123456789") for _ in range(number))


LOG = "".join(f"10:{minute:02} worker-3 heartbeat ok\n" * 3 for minute in range(60))
KINDS = {
    "prose": lambda rng: PROSE,
    "numbers": lambda rng: _digits(rng, 2000),
    "few digits": lambda rng: "".join(rng.choice("01") for _ in range(2000)),
    "lines that come back": lambda rng: LOG,
    "one line": lambda rng: "10:00 worker-3 heartbeat ok\n" * 60,
    "a pattern": lambda rng: "spam and eggs, " * 100,
}


@pytest.mark.slow
@pytest.mark.requirement("004.12")
@pytest.mark.parametrize("kind", KINDS)
def test_no_cut_damages_anything(kind):
    """2,000 texts cut in two, the second part appended after an attempt that was cut off anywhere."""
    rng = random.Random(f"append {kind}")
    resumed = alike = 0
    for _ in range(2_000):
        whole = KINDS[kind](rng)
        start = rng.randrange(len(whole) - 200)
        middle, end = sorted(rng.sample(range(start, len(whole)), 2))
        text, addition = whole[start:middle], whole[middle:end]
        cut = rng.choice([0, rng.randrange(len(addition) + 1)])
        begun = text + addition[:cut]
        result = append_once(begun, addition)
        resumed += result.outcome == "resumed"
        if begun.rstrip().endswith(addition.rstrip()):
            # It is there as a whole, or the text repeats itself: then nothing can tell.
            assert result.text.startswith(begun)
            assert result.text.rstrip() == begun.rstrip()
            continue
        if result.text in (text + addition, begun + addition):
            continue
        # The one case that the docstring names: short pieces of lines that come back.
        assert "line" in kind, (text[-60:], addition[:60], cut)
        assert any(text.endswith(addition[:length]) for length in range(OVER + 1, len(addition)))
        alike += 1
    assert alike < 20
    if kind in ("prose", "numbers"):
        assert resumed > 700, "an attempt that was cut off after 20 characters is gone on with"


@settings(deadline=None, max_examples=400)
@given(
    text=st.text(alphabet="ab\n", max_size=90) | TEXTS,
    addition=st.text(alphabet="ab\n", max_size=60) | st.text(alphabet="abcdefghij", max_size=80) | TEXTS,
    data=st.data(),
)
def test_nothing_is_lost_unless_the_text_had_ended_in_the_addition_before(text, addition, data):
    """The promise of the docstring: everything else is at worst there twice."""
    cut = data.draw(st.integers(0, len(addition)))
    begun = text + addition[:cut]
    assume("\r" not in text + addition)
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
@pytest.mark.parametrize("shortest", [None, 1])
@settings(deadline=None)
@given(text=TEXTS | FEW, addition=TEXTS | FEW)
@example(text="\n", addition="\r\n")
@example(text="\n\r", addition="\n0")
@example(text="a\n\r", addition="\r\n\r\n")
def test_twice_is_once(shortest, text, addition):
    once = append_once(text, addition, shortest=shortest)
    again = append_once(once.text, addition, shortest=shortest)
    assert again.text == once.text
    assert again.outcome == "already_present"


@settings(deadline=None)
@given(text=TEXTS | FEW, addition=TEXTS | FEW, data=st.data())
def test_cut_off_anywhere_it_comes_to_the_same(text, addition, data):
    """As long as the text does not end by chance as the addition begins."""
    assume(append_once(text, addition, shortest=1).outcome == "appended")
    cut = data.draw(st.integers(0, len(addition)))
    assume(not (text.endswith("\r") and addition.startswith("\n")))
    resumed = append_once(text + addition[:cut], addition, shortest=1)
    assert resumed.text == text + addition
    assert resumed.skipped == cut


@settings(deadline=None)
@given(text=TEXTS, addition=TEXTS, data=st.data())
def test_cut_off_in_a_text_with_other_line_ends(text, addition, data):
    """What was written with CRLF is found by an addition with LF."""
    text, addition = text.replace("\r", ""), addition.replace("\r", "")
    assume(append_once(text, addition, shortest=1).outcome == "appended")
    cut = data.draw(st.integers(0, len(addition)))
    written = (text + addition[:cut]).replace("\n", "\r\n")
    assert append_once(written, addition, shortest=1).text.replace("\r\n", "\n") == text + addition


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
    assert append_once(text + "a" * 49_999, addition, shortest=1).skipped == 49_999
    assert append_once(text + "a" * 49_999, addition).outcome == "appended"
    assert time.monotonic() - begun < 20, "in the square of the length it would take minutes"
