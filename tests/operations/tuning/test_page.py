"""The page of advice: complete, bounded, and safe whatever the names are."""

from typing import Any

import pytest

from prefect_resilience.operations.tuning.report import (
    ComparedFigure,
    OptionNote,
    TuningAdvice,
    TuningReport,
    figure_text,
    interval_text,
    page_of,
    value_text,
)

SECRET = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"


def figure(**changes: Any) -> ComparedFigure:
    values = {
        "name": "runs that failed",
        "unit": "runs",
        "now": 50.0,
        "then": 10.0,
        "low": -45.0,
        "high": -30.0,
    }
    return ComparedFigure.model_validate({**values, **changes})


def advice(**changes: Any) -> TuningAdvice:
    values = {"task": "ask", "option": "timeout", "now": 30.0, "better": 3, "why": "p99.9 is 1.2 s"}
    return TuningAdvice.model_validate({**values, **changes})


def report(*advice: TuningAdvice, **changes: Any) -> TuningReport:
    values = {"since": 0, "until": 86_400, "runs": 1200, "advice": advice}
    return TuningReport.model_validate({**values, **changes})


def test_the_page_has_the_advice() -> None:
    page = page_of(report(advice(), advice(option="retry.attempts", now=3, better=5)))
    assert "2 changes advised for 1 task, by 1,200 recorded runs, from 1970-01-01" in page
    assert "| `ask` | timeout | 30 | 3 | p99.9 is 1.2 s |" in page
    assert "| `ask` | retry.attempts | 3 | 5 |" in page


def test_what_is_not_known_is_listed() -> None:
    page = page_of(
        report(
            not_judged=[
                OptionNote(task="ask", option="timeout", why="too few"),
                *(OptionNote(task=f"t{n}", option="retry", why="unknown") for n in range(9)),
            ],
            unknown={"attempts": "some are missing"},
        )
    )
    assert "- ask: timeout: too few" in page
    assert "- t0, t1, t2 and 6 more tasks: retry: unknown" in page
    assert "- some are missing" in page


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (0.5, "0.5"),
        (None, "none"),
        (True, "True"),
        ([], "none"),
        (["a", "b"], "a, b"),
        ("a\x00b", "a\ufffdb"),
        (
            {"kind": "exponential", "initial": 1.0, "delays": [], "minimum": None},
            "kind=exponential, initial=1",
        ),
    ],
)
def test_values_as_text(value: object, text: str) -> None:
    assert value_text(value) == text


def test_numbers_as_text() -> None:
    assert figure_text(figure(), 12_345.6) == "12,346 runs"
    assert figure_text(figure(), 0.12345) == "0.123 runs"
    assert interval_text(figure(low=-0.123, high=12.0)) == "-0.12 to +12"


def test_no_secret_is_written() -> None:
    assert SECRET not in page_of(report(advice(why=f"key {SECRET}", better=SECRET, task=SECRET)))
