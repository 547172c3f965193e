# ruff: noqa: E501 - what is said stands whole in its line
"""Templates: what each one gives, what is said of those that give nothing, and that none gives more."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Undefined
from pydantic import BaseModel

from prefect_resilience import ErrorContext, error_context
from prefect_resilience.graphs.plans.lookups import Rendering as View
from prefect_resilience.graphs.plans.lookups import TemplateError
from prefect_resilience.graphs.plans.reading.mistakes import Names
from prefect_resilience.graphs.plans.templates import (
    SANDBOX,
    path_mistake,
    read_template,
    references,
    render,
    texts,
)
from tests.graphs.plans.hostile_plans import ESCAPES


def check_template(value: Any, nodes: set[str], names: set[str] = frozenset()) -> list[str]:  # type: ignore[assignment]
    mistakes: list[str] = []
    for _, text in texts(value):
        template = read_template(text)
        wrong = [path_mistake(path, nodes, names, Names(nodes)) for path in template.paths]
        mistakes += [says for says in (*template.mistakes, *wrong) if says]
    return mistakes


@dataclass
class Ended:
    status: str = "succeeded"
    output: Any = None
    error: Any = None


class Colour(Enum):
    RED = "red"


class Report(BaseModel):
    text: str
    colour: Colour = Colour.RED


OUTPUT: dict[str, Any] = {
    "text": "hi",
    "n": 3,
    "half": 0.5,
    "yes": True,
    "null": None,
    "items": [1, {"b": "x"}, [2, 3]],
    "keys": {"0": "zero", "a key": 1, "values": "v", "é": "e"},
    "report": Report(text="r"),
    "when": datetime(2026, 1, 2, tzinfo=UTC),
    "price": Decimal("1.50"),
    "braces": "{{ a.output.n }}{% for %}",
    "empty": {},
    "none": [],
}


def _error() -> ErrorContext:
    try:
        raise TimeoutError("too slow")
    except TimeoutError as error:
        made = error_context(error)
    assert made
    return made


VIEW = View(
    nodes={"a": Ended(output=OUTPUT), "f": Ended("failed", output=1, error=_error()), "s": Ended("skipped")},
    state={"_last_error": {"code": "503"}, "x": 1},
    inputs={"drug": "aspirin"},
    names={"item": {"id": 7}, "index": 0},
)


@pytest.mark.requirement("000.11")
@pytest.mark.parametrize(
    ("template", "gives"),
    [
        ("no template", "no template"),
        (5, 5),
        ("{{a.output.text}}", "hi"),
        ("{{a.output.n}}", 3),
        ("{{a.output}}", OUTPUT),
        ("{{a.output.items[1].b}}", "x"),
        ("{{a.output.items[-1]}}", [2, 3]),
        ("{{a.output.keys[0]}}", "zero"),
        ("{{a.output.report.text}}/{{a.output.report.colour}}", "r/red"),
        ("{{a.output.report}}!", '{"text": "r", "colour": "red"}!'),
        ("{{a.output.when}}.", "2026-01-02T00:00:00+00:00."),
        ("{{[a.output.when]}}.", '["2026-01-02T00:00:00+00:00"].'),
        ("{{a.output.yes}} {{a.output.null}} {{a.output.half}}", "true  0.5"),
        ("-> {{a.output.items}}", '-> [1, {"b": "x"}, [2, 3]]'),
        ("{{a.status}} {{f.status}}", "succeeded failed"),
        ("{{f.error.code}}: {{f.error.message}} {{f.error.category}}", "TIMEOUT: too slow timeout"),
        ("{{f.output}}|{{f.output.x}}|{{s.output.y}}|{{a.error.code}}|{{never.output}}", "||||"),
        ("{{s.output}}", None),
        ("{{inputs.drug}}", "aspirin"),
        ("{{item.id}} of {{index}}", "7 of 0"),
        ('{{nodes["a"].output.n}} {{nodes.a.output.n}}', "3 3"),
        ("{{ a.output.n + 1 }}", 4),
        ("{{ 'big' if a.output.n > 2 else 'small' }}", "big"),
        ("{{ s.output or 'other' }}", "other"),
        ("{{ s.output.x | default('d') }} {{ '' | default('e', true) }} {{ 0 | default('x') }}", "d e 0"),
        ("{{ a.output.items | length }} {{ a.output.text | length }} {{ a.output.empty | length }}", "3 2 0"),
        ("{{ a.output.text | upper }}{{ a.output.text | upper | lower }}{{ ' x ' | trim }}", "HIhix"),
        ("{{ a.output.items | join(', ') }}", '1, {"b": "x"}, [2, 3]'),
        ("{{ '42' | int + 1 }} {{ '4.7' | int }} {{ 'x' | int(7) }} {{ 2.9 | int }} {{ [] | int }}", "43 4 7 2 0"),
        ("{{ a.output.keys | tojson }}", '{"0": "zero", "a key": 1, "values": "v", "é": "e"}'),
        ("{{ 'x' | tojson }} {{ s.output | tojson }} {{ a.output.when | tojson }}", '"x" null "2026-01-02T00:00:00+00:00"'),
        ("{{ s.output is defined }} {{ s.output is undefined }} {{ a.output.null is none }}", "false true true"),
        ("{{ a.output.items[a.output.n - 2].b }}", "x"),
        ("{{ '{{' }} {{ '}}' }} {{ '{%' }}", "{{ }} {%"),
        ("{{a.output.braces}}", "{{ a.output.n }}{% for %}"),
        ({"{{a}}": ["{{a.output.n}}", {"x": "{{a.output.n}}."}, ("{{a.output.n}}",)]}, {"{{a}}": [3, {"x": "3."}, [3]]}),
    ],
)  # fmt: skip
def test_what_a_template_gives(template: Any, gives: Any) -> None:
    rendered = render(template, VIEW)
    assert rendered == gives
    assert type(rendered) is type(gives)


def test_a_lone_template_gives_the_very_value() -> None:
    assert render("{{a.output.report}}", VIEW) is OUTPUT["report"]


LACKS_TXT = "a.output has no 'txt'; did you mean 'text'?"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{a.output.txt}}", LACKS_TXT),
        ("x{{a.output.items[9].b}}", "a.output.items is a list of 3, and has no 9"),
        ("{{a.output.keys['no key'].x}}", "a.output.keys has no 'no key'; did you mean 'a key'?"),
        ("{{a.output.text.x}}", "a.output.text is a string, and has no 'x'"),
        ("{{nodes['a'].output.txt}}", "nodes['a'].output has no 'txt'; did you mean 'text'?"),
        ("{{ a.output.txt == 1 }}", f"'{{{{ a.output.txt == 1 }}}}' cannot be evaluated: {LACKS_TXT}"),
        ("{{ [a.output.txt] }}", LACKS_TXT),
    ],
)
def test_what_is_missing_is_an_error(template: str, says: str) -> None:
    with pytest.raises(TemplateError) as refused:
        render({"p": [template]}, VIEW)
    assert str(refused.value).startswith(f"input.p[0]: {says}")


@pytest.mark.parametrize(
    ("template", "gives"),
    [
        ("{{ a.output.txt | default('') }}", ""),
        ("{{ a.output.txt is defined }}", False),
        ("{{s.output.x}} {{f.output}} {{a.error.x}}", "  "),
        ("{{state._plan_error.code}}", None),
    ],
)
def test_what_may_be_missing(template: str, gives: Any) -> None:
    assert render(template, VIEW) == gives
    assert render("{{state._last_error.code}}", View(state={"_last_error": None})) is None


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ 1 < 'a' }}", "input: \"{{ 1 < 'a' }}\" cannot be evaluated: '<' not supported between instances of 'int' and 'str'"),
        ("{{ s.output > 1 }}", "input: '{{ s.output > 1 }}' cannot be evaluated: its node has no output"),
        ("{{ 'a' + 1 }}", "input: \"{{ 'a' + 1 }}\" cannot be evaluated: can only concatenate str (not \"int\") to str"),
        ("{{ 5 | length }}", "input: '{{ 5 | length }}' cannot be evaluated: object of type 'int' has no len()"),
        ("{{ 5 | join }}", "input: join needs a list, not a int"),
        ("{{ a.output[a.output.items] }}", "input: the brackets must contain a name or a whole number"),
        ("{{ a.output['__class' ~ '__'] }}", "input: '__class__': names with '__' are not allowed in a template"),
        ("{% if %}", "input: '{%' begins a statement or a comment; to write it literally: {{ \"{%\" }}"),
    ],
)  # fmt: skip
def test_what_cannot_be_rendered(template: str, says: str) -> None:
    with pytest.raises(TemplateError) as refused:
        render(template, VIEW)
    assert str(refused.value) == says


def test_whatever_is_refused_when_read_is_refused_when_rendered() -> None:
    for name, written in ESCAPES.items():
        if name not in ("unknown node", "not before", "item outside"):
            assert check_template(written, {"a", "b"}), name
            try:
                made = render(written, VIEW)
            except TemplateError:
                continue
            assert made in (None, ""), name  # names of the language that stand for nothing here


def test_sizes_are_bounded() -> None:
    big = View(nodes={"a": Ended(output={"t": "x" * 600_000, "list": ["y" * 1000] * 5000, "huge": 10**5000})})
    assert len(render("{{a.output.t}}", big)) == 600_000
    for template in (
        "{{a.output.t}}{{a.output.t}}",
        "{{ a.output.t + a.output.t }}",
        "{{ a.output.list | join('-') }}",
        "{{ a.output.list | join(a.output.t) }}",
        "x{{a.output.list}}",
        "x{{a.output.list | tojson}}",
    ):
        with pytest.raises(TemplateError, match="the result has more than 1,000,000 characters"):
            render(template, big)
    with pytest.raises(TemplateError, match="cannot be written as text"):
        render("x{{a.output.huge}}", big)
    with pytest.raises(TemplateError, match="at most 100,000 characters"):
        render("{{a.output}}" + "x" * 100_000, big)
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(TemplateError, match="too large or too deep"):
        render("x{{a.output}}", View(nodes={"a": Ended(output=deep)}))


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ a.output[1.5] }}", "write a name or a whole number between the brackets"),
        ("{{ a.output is odd }}", "unknown test 'odd'; write one of defined, none, undefined"),
        ("{{ a.output, 1 }}", "'tuple' is not allowed in a template: write a path or a filter, or use an action"),
        ("{{ a.output.x__y }}", "'x__y': names with '__' are not allowed in a template"),
        ("{{ nodes[1] }}", 'write nodes["the node\'s id"].output, with the id in quotes'),
        ("{{ a[0] }}", "a node has no field 0; write one of error, output, status"),
        ("{{ a }}", "write a.output, or another of error, output, status"),
        ("{{ 1 + " + "9" * 6000 + " }}", "'{{ 1 + " + "9" * 52 + "…' cannot be read: it is nested too deep or too long"),
        ("{{ 'x }}", "these braces are not a valid template: unexpected char \"'\" at 3; to write literal braces: {{ \"{{\""),
    ],
)  # fmt: skip
def test_what_is_said_of_a_template(template: str, says: str) -> None:
    (mistake,) = check_template({"p": template}, {"a"})
    assert mistake.split(" }}: ")[-1].removesuffix(" }}") == says


def test_references_and_whether_there_is_a_template() -> None:
    value = {
        "p": ["{{a.output}} {{ b.output.x | default(c.output) }}", "{{ x.__y__() }}", "{{"],
        "q": '{{nodes["d-1"].status}} {{state.x}} {{inputs.y}} {{item}} {{doc.x}} {{ [index] }}',
    }
    assert references(value, names={"doc"}) == {"a", "b", "c", "d-1"}
    assert references("{{doc.x}}") == {"doc"}
    assert references(5) == set()
    assert list(texts("{% x %}")) == [((), "{% x %}")]
    assert not any(texts({"{{a}}": ["a", 5, None, {"x": "{ a }"}]}))
    for text in ("{{ a.output }}", "{{ a.output | length }}", "{{ a"):
        assert read_template(text).is_one_value
    for text in ("{{a}}{{b}}", "a", "{{ a | length }}."):
        assert not read_template(text).is_one_value


def test_the_sandbox_reads_no_attributes_even_if_it_were_asked_to() -> None:
    for ask in (SANDBOX.getattr, SANDBOX.getitem):
        assert isinstance(ask({}, "items"), Undefined)
        with pytest.raises(TemplateError):
            ask({}, "__class__")
    assert not SANDBOX.globals


names = st.text("abcxyz_", min_size=1, max_size=6).filter(lambda name: "__" not in name and name != "nodes")


@settings(max_examples=60, deadline=None)
@given(st.text("ab{}%#'\"\\ \n", max_size=20))
def test_what_a_template_gives_is_never_read_again(text: str) -> None:
    view = View(nodes={"a": Ended(output={"t": text})})
    assert render("{{a.output.t}}", view) == text
    assert render("<{{a.output.t}}>", view) == f"<{text}>"
    assert render("{{ a.output.t | default('') }}", view) == text
