"""The page of advice and its pictures: complete, bounded, and safe whatever the names are."""

from __future__ import annotations

import base64
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.operations.tuning import page
from prefect_resilience.operations.tuning.page import headline_of, page_of
from prefect_resilience.operations.tuning.pictures import (
    Legend,
    as_image,
    figure_text,
    interval_text,
    picture_of,
    value_text,
)
from prefect_resilience.operations.tuning.report import (
    ComparedFigure,
    Comparison,
    NotJudged,
    ReplayFit,
    TuningAdvice,
    TuningFigures,
    TuningReport,
)

SECRET = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"
NAMES = st.text(max_size=80)
NUMBERS = st.none() | st.floats(-1e9, 1e9)


def figure(**changes: Any) -> ComparedFigure:
    told = {
        "name": "runs that failed",
        "unit": "runs",
        "now": 50.0,
        "then": 10.0,
        "low": -45.0,
        "high": -30.0,
    }
    return ComparedFigure.model_validate({**told, **changes})


def comparison(*figures: ComparedFigure) -> Comparison:
    now = TuningFigures(runs=100, hit=10, recovered=5, waited=20)
    return Comparison(task="ask", runs=100, options={}, now=now, then=now, figures=figures)


def advice(**changes: Any) -> TuningAdvice:
    told = {"task": "ask", "option": "timeout", "now": 30.0, "better": 3, "why": "p99.9 is 1.2 s"}
    return TuningAdvice.model_validate({**told, **changes})


def report(*advice: TuningAdvice, **changes: Any) -> TuningReport:
    return TuningReport.model_validate(
        {"since": 0, "until": 86_400, "runs": 1200, "advice": advice, **changes}
    )


def pictures(markdown: str) -> list[ElementTree.Element]:
    found = re.findall(r"data:image/svg\+xml;base64,([^)]+)\)", markdown)
    return [ElementTree.fromstring(base64.b64decode(one)) for one in found]


def test_the_page_has_the_advice_its_figures_and_its_picture() -> None:
    effect = comparison(figure(better=True), figure(name="calls", low=None, high=None), figure(then=None))
    made = page_of(report(advice(effect=effect), advice(option="retry.attempts", now=3, better=5)))
    assert "2 changes advised for 1 task, by 1,200 recorded runs, from 1970-01-01" in made
    assert "| `ask` | `timeout` | `30` | `3` | p99.9 is 1.2 s |" in made
    assert "| `ask` | `retry.attempts` | `3` | `5` |" in made
    assert "| runs that failed | 50 runs | 10 runs | -45 to -30 |" in made
    (drawn,) = pictures(made)
    text = " ".join(drawn.itertext())
    assert "10 runs better" in text
    assert "timeout: 30" in text


def test_no_advice_is_said() -> None:
    assert headline_of(report()) == "No change is clearly better, by 1,200 recorded runs"
    made = page_of(report(goal="load"))
    assert "Goal: load." in made
    assert "|" not in made


def test_what_is_not_known_is_there() -> None:
    figures = TuningFigures(hit=10, recovered=5, waited=20)
    off = TuningFigures(hit=10, recovered=6, waited=30)
    made = page_of(
        report(
            not_judged=[
                NotJudged(task="ask", option="timeout", why="too few"),
                NotJudged(task="b", option="*", why="no options"),
                *(NotJudged(task=f"t{n}", option="hedge", why="unknown") for n in range(9)),
                *(NotJudged(task="t", option="timeout", why=f"{n}") for n in range(page.MOST_NOT_JUDGED)),
            ],
            unknown={"attempts": "some are missing"},
            fits=[
                ReplayFit(task="ask", recorded=figures, replayed=off),
                ReplayFit(task="b", recorded=TuningFigures(hit=10), replayed=figures),
                ReplayFit(task="c", recorded=TuningFigures(), replayed=TuningFigures()),
            ],
        )
    )
    assert "- ask: timeout: too few" in made
    assert "- b: no options" in made
    assert "- t0, t1, t2 and 6 more tasks: hedge: unknown" in made
    assert "- and 3 more" in made
    assert "- some are missing" in made
    really = "the replay of what really ran is off by"
    assert f"- ask: {really} 10.0 points of recovered runs and 50 % of the time waited" in made
    assert f"- b: {really} 50.0 points of recovered runs: take this with care\n" in made
    assert "- c:" not in made


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (0.5, "0.5"),
        (None, "none"),
        (True, "True"),
        ([], "none"),
        (["a", "b"], "a, b"),
        (
            {"kind": "exponential", "initial": 1.0, "delays": [], "minimum": None},
            "kind=exponential, initial=1",
        ),
    ],
)
def test_values_as_text(value: object, text: str) -> None:
    assert value_text(value) == text


def test_numbers_as_text() -> None:
    assert figure_text(figure(), None) == "-"
    assert figure_text(figure(), 12_345.6) == "12,346 runs"
    assert figure_text(figure(), 0.12345) == "0.123 runs"
    assert interval_text(figure(low=-0.123, high=12.0)) == "-0.12 to +12"
    assert interval_text(figure(low=None)) == ""


def test_an_image_names_its_subject() -> None:
    assert as_image("<svg/>", "ask: [timeout]").startswith("![ask timeout](data:image/svg+xml;base64,")


@given(NAMES, NAMES, NUMBERS, NUMBERS, st.none() | st.booleans())
def test_whatever_the_names_and_numbers_the_picture_is_xml(
    task: str, option: str, now: float | None, then: float | None, better: bool | None
) -> None:
    effect = comparison(figure(now=now, then=then, better=better))
    drawn = ElementTree.fromstring(picture_of(effect, task, Legend(option, task)))
    assert drawn.tag.endswith("svg")
    made = page_of(report(advice(task=task, option=option, why=task, now=option, effect=effect)))
    assert len(pictures(made)) == 1


def test_no_secret_is_written() -> None:
    effect = comparison(figure())
    made = page_of(report(advice(why=f"key {SECRET}", better=SECRET, task=SECRET, effect=effect)))
    assert SECRET not in made
    assert all(SECRET not in " ".join(drawn.itertext()) for drawn in pictures(made))


def test_many_pieces_of_advice_have_a_bounded_page() -> None:
    effect = comparison(*(figure() for _ in range(9)))
    made = page_of(report(*(advice(task=f"task-{n}", effect=effect) for n in range(100))))
    assert len(pictures(made)) == page.MOST_PICTURES
    assert len(made) < 300_000
