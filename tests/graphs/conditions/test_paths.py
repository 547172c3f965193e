"""Paths: what they find, what they do not, and what is said about one that cannot be read."""

import pickle
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.graphs.conditions.paths import Missing, PathError, check_path, look_up, shown_path
from tests.graphs.conditions.strategies import quoted, results

VALUE = {
    "a": {"b": [{"c": 1}, {"c": 2}], "x.y": 3, 'say "so"': 4, "it's": 5, "back\\slash": 6, "": 7},
    "results": [{"id": 7}, {"id": 8}],
    "0": {"z": 9},
    "-1": "minus",
    "007": "bond",
    "größe": {"名": 10},
    "drug name": "aspirin",
    "kg-query": 11,
    "nothing": None,
    "matrix": [[1, 2], [3, 4]],
    "text": "abc",
    "list": [],
    "when": datetime(2024, 1, 1),
    "yes": True,
}

FOUND = [
    ("a.b[-1].c", 2),
    ('a["x.y"]', 3),
    ('a["say \\"so\\""]', 4),
    ('a["it\'s"]', 5),
    ("a['it\\'s']", 5),
    ('a["back\\\\slash"]', 6),
    ('a["\\u0062"][0].c', 1),
    ('a[""]', 7),
    ("results[1].id", 8),
    ("[0].z", 9),
    ('["0"].z', 9),
    ("007", "bond"),
    ("größe.名", 10),
    ("nothing", None),
    ("$", VALUE),
    ("$.a.b[0].c", 1),
    ("$['a']['x.y']", 3),
    ("$.results[-1].id", 8),
]


@pytest.mark.requirement("000.05")
@pytest.mark.parametrize(("path", "expected"), FOUND)
def test_found(path: str, expected: Any) -> None:
    assert look_up(path, VALUE) == expected


MISSING = [
    ("confidnce", "there is no 'confidnce' in the value"),
    ("resluts", "there is no 'resluts' in the value; did you mean 'results'?"),
    ("a.bb", "there is no 'bb' in 'a'; did you mean 'b'?"),
    ("a.b[2]", "'a.b' is a list of 2, which has no '2'"),
    ("results.id", "'results' is a list of 2, which has no 'id'"),
    ('results["0"]', "'results' is a list of 2, which has no '0'"),
    ("text.upper", "'text' is a string, which has no 'upper'"),
    ("kg-query.real", "'kg-query' is a number, which has no 'real'"),
    ("a.__class__", "there is no '__class__' in 'a'"),
    ("when.year", "'when' is a time, which has no 'year'"),
    ("$.a.zz", "there is no 'zz' in 'a'"),
    ("$.a[0]", "'a' is a mapping of 6, which has no [0]"),
    ("$.results['0']", "'results' is a list of 2, which has no '0'"),
    ("$..zz", "'$..zz' finds nothing"),
]


@pytest.mark.requirement("000.05")
@pytest.mark.parametrize(("path", "why"), MISSING)
def test_missing_says_what_there_was_instead(path: str, why: str) -> None:
    found = look_up(path, VALUE)
    assert isinstance(found, Missing)
    assert found.why() == why


def test_the_nearest_key_is_not_told_when_it_is_a_secret() -> None:
    secret = look_up("sk-ant-api03-" + "a" * 80, {"sk-ant-api03-" + "a" * 81: 1})
    assert isinstance(secret, Missing)
    assert "did you mean '***'?" in secret.why()


INSTEAD = "write a path like a.b[0].c, another key in quotes as in a['x.y'], or a $ path such as"
UNREADABLE = [
    ("", 1, INSTEAD),
    (".a", 1, INSTEAD),
    ("a.[0]", 2, INSTEAD),
    ("a[0]b", 5, INSTEAD),
    ('ab["x', 3, INSTEAD),
    ("a[]", 2, INSTEAD),
    (" a", 1, INSTEAD),
    ("a.b\n", 4, INSTEAD),
    ("a\u200bb", 1, INSTEAD),
    ("a.*.b", 2, INSTEAD),
    ("ab['\\q']", 3, INSTEAD),
    ("it's", 3, INSTEAD),
    ("$.", 3, ""),
    ("$.a[", 5, ""),
    ("$ ", 2, "whitespace"),
    ("$[?foo(@)]", 4, "function 'foo' is not defined; see RFC 9535"),
    ("$[?@ == 1e999]", 1, "cannot convert float infinity to integer"),
    ("$[?length(@.*) == 1]", 4, "; see RFC 9535"),
    ("$[?match(@, '(')]", 1, "'(' is not a valid regular expression: missing ) at position 1"),
    ("$[?search(@, '(?:a{1000}){1000}')]", 1, "has too many repetitions or groups"),
    ("$[?" + "!" * 900 + "@]", 1, "it is nested too deeply; see RFC 9535"),
    ("$[" + "9" * 200 + "]", 3, ""),
]


@pytest.mark.parametrize(("path", "column", "why"), UNREADABLE)
def test_an_unreadable_path_is_refused_with_its_column(path: str, column: int, why: str) -> None:
    with pytest.raises(PathError) as raised:
        check_path(path)
    assert raised.value.column == column
    assert str(raised.value).startswith(f"{shown_path(path)} cannot be read")
    assert why in str(raised.value)
    assert "None" not in str(raised.value)
    assert f"column {column}: " in str(raised.value) or not str(raised.value).endswith("RFC 9535")
    assert len(str(raised.value)) < 400
    if path.startswith("$"):
        assert raised.value.__context__ is None, "Dask pickles it, call by call"
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.column) == (str(raised.value), column)


BOOKS = {
    "books": [
        {"t": "a", "p": 8.95, "note": "x"},
        {"t": "b", "p": 12.99, "note": None},
        {"t": "c", "p": True},
        {"t": "d", "p": "9"},
    ],
    "big": [2**53, 2**53 + 1, 100, -0.0],
    "flags": [0, False, None, "", [], {}, 1],
}

QUERIES = [
    ("$.books[*].t", ["a", "b", "c", "d"]),
    ("$.books[1:3].t", ["b", "c"]),
    ("$.books[::-1].t", ["d", "c", "b", "a"]),
    ("$.books[0]['t', 'p']", ["a", 8.95]),
    ("$.books[?@.p < 10].t", ["a"]),
    ("$.books[?@.p == 1].t", None),
    ("$.books[?@.p != true].t", ["a", "b", "d"]),
    ("$.books[?@.p == '9'].t", ["d"]),
    ("$.books[?@.p < 'a'].t", ["d"]),
    ("$.books[?!@.note].t", ["c", "d"]),
    ("$.books[?@.note == null].t", ["b"]),
    ("$.books[?@.note == @.zz].t", ["c", "d"]),
    ("$.books[?@.p == $.books[0].p].t", ["a"]),
    ("$.books[?@.t == 'a' || @.t == 'b'].t", ["a", "b"]),
    ("$.books[?@.t == 'a' && @.p > 10].t", None),
    ("$.books[?match(@.t, '[ab]')].t", ["a", "b"]),
    ("$.books[?match(@.t, @.note)].t", None),
    ("$.books[?search(@.note, 'x')].t", ["a"]),
    ("$.books[?length(@.t) == 1 && count(@.*) == 3].t", ["a", "b"]),
    ("$.books[?value(@.t) == 'c'].p", [True]),
    ("$.flags[?@]", [0, False, None, "", [], {}, 1]),
    ("$.flags[?@ == 1]", [1]),
    ("$.big[?@ == 9007199254740993]", [2**53 + 1]),
    ("$.big[?@ == 1e2]", [100]),
    ("$.big[?@ > -1 && @ < 1e1]", [-0.0]),
]


@pytest.mark.parametrize(("query", "expected"), QUERIES)
def test_queries_of_rfc_9535_compare_strictly(query: str, expected: Any) -> None:
    found = look_up(query, BOOKS)
    if expected is None:
        assert isinstance(found, Missing)
    else:
        assert [(type(each), each) for each in found] == [(type(each), each) for each in expected]


def test_a_text_is_not_read_as_json_and_patterns_from_the_value_may_be_wrong() -> None:
    assert isinstance(look_up("$[*]", "[1, 2]"), Missing)
    assert isinstance(look_up("$[?match(@.text, @.pattern)]", [{"text": "a", "pattern": "("}]), Missing)
    assert look_up(r"$[?match(@, 'a\\.[.]b')]", ["a..b", "axxb"]) == ["a..b"]
    assert look_up("$[?search(@, 'a.b')]", ["a\nb", "a b"]) == ["a b"]


@given(results, st.data())
@settings(max_examples=120, deadline=None)
def test_every_place_of_a_value_is_found_by_its_path(value: Any, data: st.DataObject) -> None:
    path, here = "", {"root": value}
    while isinstance(here, dict | list) and here:
        if isinstance(here, dict):
            key = data.draw(st.sampled_from(sorted(here)))
            path, here = path + quoted(key), here[key]
        else:
            index = data.draw(st.integers(-len(here), len(here) - 1))
            path, here = f"{path}[{index}]", here[index]
    if isinstance(here, bytes):
        return
    found = look_up(path, {"root": value})
    assert found is here or found == here or repr(found) == repr(here)


@given(st.text(max_size=20))
@settings(max_examples=120, deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        check_path(text)
    except PathError as error:
        column = error.column
    else:
        look_up(text, {"a": [1]})
        column = 1
    assert 1 <= column <= len(text) + 1
