"""The table of the Pythons and Prefects that were tried, and what the doctor knows of it."""

from __future__ import annotations

import re

import pytest

from prefect_resilience.operations.diagnosis import environment
from tests.project.matrix import PAGE

pytestmark = pytest.mark.docs


def test_the_doctor_knows_the_versions_of_the_table():
    row = r"^\| (\d+\.\d+)[.\d]* \| (\d+\.\d+)[.\d]* \|.*\| runs \| \d+ passed"
    tried = re.findall(row, PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    for name, versions in zip(("Python", "prefect"), zip(*tried, strict=True), strict=True):
        assert sorted(set(versions)) == sorted(environment.TRIED[name])
