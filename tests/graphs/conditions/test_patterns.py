"""How much a pattern may repeat and nest: what is accepted at the edge, what is refused just past it."""

import pytest

from prefect_resilience.graphs.conditions.compare import PatternMistake, compiled_pattern

TOO_MUCH = "has too many repetitions or groups to be compiled"


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> None:
    compiled_pattern.cache_clear()


AT_THE_EDGE = [
    "a" * 1_000,
    "a{1000}",
    "(a)" * 300,
    "a{0}" * 200,
    "(a{600}){,5}",
    r"[({]{999}",
    "a{9993}",
    "(a{9}){10}(b{9}){20}",
    "",
    "(a){1}" * 30,
    "(" + r"\(" * 495 + "){9}",
    "(" * 50 + "a" + ")" * 50,
]
PAST_THE_EDGE = [
    "a{9994}",
    "(a{1000}){10}",
    "((a{10}){40}){20}",
    r"\d{9999}",
    "(" + r"\(" * 495 + "){11}",
    "(" * 51 + "a" + ")" * 51,
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
    ("a{999})", "'a{999})' is not a valid regular expression: unbalanced parenthesis at position 6"),
    (r"\p{nothing}", None),
    ("(?R)", "'(?R)' has a recursion, such as (?R), which is not supported"),
]


@pytest.mark.parametrize(("pattern", "sentence"), SENTENCES)
def test_what_is_said_of_a_pattern(pattern: str, sentence: str | None) -> None:
    said = refusal(pattern)
    if sentence is None:
        assert said.startswith(f"{pattern!r} is not a valid regular expression: ")
    else:
        assert said == sentence
