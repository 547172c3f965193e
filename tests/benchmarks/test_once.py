"""The scoreboard: each fault has a right outcome, and one is measured for real."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from benchmarks.once import FAULTS, PAGE, expected, judge, run_cell

RECEIPT = {"result": "a receipt"}
REFUSED = {"error": "an error"}
PAID = "turn-1/bob/50"


def test_each_fault_has_a_right_outcome_and_a_row() -> None:
    right, page = expected(), PAGE.read_text(encoding="utf-8")
    assert {*right} == {*FAULTS}
    assert {about["right"] for about in right.values()} == {"once", "told", "stopped"}
    for about in right.values():
        cells = [line.split("|") for line in page.splitlines() if about["what"] in line]
        assert [cell[3].strip() for cell in cells] == [about["right"]], "`@once` differs from what is right"


@pytest.mark.parametrize(
    ("fault", "paid", "outcomes", "outcome"),
    [
        ("resume", [PAID], [RECEIPT], "once"),
        ("resume", [PAID, PAID], [REFUSED], "twice"),
        ("resume", [], [REFUSED], "stopped"),
        ("resume", [], [RECEIPT], "never"),
        ("parallel", [PAID], [RECEIPT, REFUSED], "once"),
        ("parallel", [PAID], [REFUSED, REFUSED], "stopped"),
        ("model-repeats", [PAID], [RECEIPT, RECEIPT], "once"),
        ("model-repeats", [PAID], [RECEIPT, {"result": "not repeated"}], "told"),
        ("another-amount", [PAID], [RECEIPT, RECEIPT], "never"),
    ],
)
def test_what_came_of_a_fault(fault, paid, outcomes, outcome) -> None:
    assert judge(FAULTS[fault], fault, Counter(paid), outcomes) == outcome


@pytest.mark.slow
@pytest.mark.parametrize(("library", "outcome"), [("nothing", "twice"), ("@once", "once")])
def test_a_payment_that_is_cut_off(library: str, outcome: str) -> None:
    assert run_cell(library, "killed-inside", sys.executable, "") == outcome
