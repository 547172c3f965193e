"""The table of the Pythons and Prefects that were tried, and what the doctor knows of it."""

from __future__ import annotations

import re

import pytest

from prefect_resilience.operations.diagnosis import environment
from tests.project.matrix import PAGE, Cell, last_line, table

pytestmark = pytest.mark.docs


def test_the_doctor_knows_the_versions_of_the_table():
    row = r"^\| (\d+\.\d+)[.\d]* \| (\d+\.\d+)[.\d]* \|.*\| runs \| \d+ passed"
    tried = re.findall(row, PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    for name, versions in zip(("Python", "prefect"), zip(*tried, strict=True), strict=True):
        assert sorted(set(versions)) == sorted(environment.TRIED[name])


def test_what_a_run_came_to():
    printed = "...\n= short summary =\n1 failed, 7310 passed, 2 warnings in 345.48s (0:05:45)\nmake: Error 1"
    assert last_line(printed) == "1 failed, 7310 passed, 2 warnings"
    assert last_line("one\ntwo") == "two"
    assert last_line("") == "nothing was printed"


def test_a_line_is_good_only_if_both_commands_were():
    good = Cell("3.12.1", "3.9.1", "pip", "runs", "7311 passed")
    assert good.good
    assert not Cell("3.12.1", "3.9.1", "pip", "runs", "1 failed, 7310 passed").good
    assert not Cell("3.12.1", "3.9.1", "pip", "fails: no", "").good
    assert table([good]).splitlines()[-1] == "| 3.12.1 | 3.9.1 | pip | runs | 7311 passed |"
