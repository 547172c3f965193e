"""How much a pattern may repeat and nest: what is accepted at the edge, what is refused just past it."""

from __future__ import annotations

import pytest

from prefect_resilience.graphs.conditions.compare import PatternMistake, compiled_pattern

TOO_MUCH = "has too many repetitions or groups to be compiled"
NOT_ACCEPTED = "recursion, comments and flags other than a, i, m, s and u are not supported"


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> None:
    compiled_pattern.cache_clear()


AT_THE_EDGE = [
    "a" * 1_000,
    "a{1000}",
    "a{1000,}",
    "a{999}b{,3}",
    "a{999}b{0,3}",
    "(a{998})b",
    "(?:a{996})b",
    "b{499}(a{500})",
    "(a){500}",
    "[ab]{1000}",
    r"\d{1000}",
    "(a{499}){2}",
    "(a{9}){100}",
    "(?:ab){200}",
    "(a)" * 300,
    "a{0}" * 200,
    "(?:" + "a" * 497 + "){2}",
    "(a{600}){,5}",
    "(a{600}){1}",
    "(" * 49 + "a" + ")" * 49,
]
PAST_THE_EDGE = [
    "a{1001}",
    "a{1001,}",
    "a{999}bc{,3}",
    "(a{999})b",
    "(a{500}){3}",
    "b{500}(a{500})",
    "ab{1000}",
    "(a){501}",
    "(a{10}){100}",
    "(?:ab){201}",
    "(?:" + "a" * 498 + "){2}",
    "a{501}b{501}",
    "a{600}(b{600})",
    "[abc]{1001}",
    r"\d{1001}",
    "(" * 50 + "a" + ")" * 50,
]


@pytest.mark.parametrize("pattern", AT_THE_EDGE)
def test_the_most_that_is_compiled(pattern: str) -> None:
    assert compiled_pattern(pattern).pattern == pattern


@pytest.mark.parametrize("pattern", PAST_THE_EDGE)
def test_one_more_is_not_compiled(pattern: str) -> None:
    shown = repr(pattern if len(pattern) <= 60 else pattern[:59] + "…")
    assert refusal(pattern) == f"{shown} {TOO_MUCH}"


def refusal(pattern: str) -> str:
    with pytest.raises(PatternMistake) as raised:
        compiled_pattern(pattern)
    return str(raised.value)


SENTENCES = [
    ("a" * 1_001, "a pattern may have at most 1,000 characters, not 1,001"),
    ("{1001}", "'{1001}' is not a valid regular expression: nothing to repeat at position 0"),
    (")", "')' is not a valid regular expression: unbalanced parenthesis at position 0"),
    ("a{999})", "'a{999})' is not a valid regular expression: unbalanced parenthesis at position 6"),
    (r"\p{nothing}", None),
    ("ab(?#comment)", f"'ab(?#comment)' has '(?#com' at column 3: {NOT_ACCEPTED}"),
    ("(?R)", f"'(?R)' has '(?R)' at column 1: {NOT_ACCEPTED}"),
    ("(a)(?x:b)", f"'(a)(?x:b)' has '(?x:b)' at column 4: {NOT_ACCEPTED}"),
]


@pytest.mark.parametrize(("pattern", "sentence"), SENTENCES)
def test_what_is_said_of_a_pattern(pattern: str, sentence: str | None) -> None:
    said = refusal(pattern)
    if sentence is None:
        assert said.startswith(f"{pattern!r} is not a valid regular expression: ")
    else:
        assert said == sentence
