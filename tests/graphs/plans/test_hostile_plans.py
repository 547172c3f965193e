"""Plans that are made to do harm: refused soon, with every mistake placed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prefect_resilience import ConditionError
from prefect_resilience.graphs.plans.reading.reading import read_plan
from tests.graphs.plans.hostile_plans import HOSTILE

pytestmark = [pytest.mark.no_cover, pytest.mark.slow]

PLACED = re.compile(r"(tasks|the plan|inputs|bounds|name)[\w\[\].,'… ]*: |a plan is an object")


def test_every_hostile_plan_is_refused_soon_and_within_200_mb() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.graphs.plans.hostile_plans"],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    measured = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [one["name"] for one in measured] == list(HOSTILE)
    for one in measured:
        assert one["mistakes"], one
        assert all(PLACED.match(mistake) for mistake in one["mistakes"]), one
        assert one["seconds"] < 3, one  # each takes half a second on a machine that does nothing else
        assert one["megabytes"] < 200, one


def test_a_pattern_that_would_run_for_ever_ends() -> None:
    plan = read_plan(
        {
            "tasks": [
                {"id": "a", "type": "x", "condition": {"type": "matches", "path": "x", "value": "^(a|a?)+$"}}
            ]
        }
    )
    condition = plan.tasks[0].condition
    assert condition is not None
    began = time.process_time()
    with pytest.raises(ConditionError, match=r"too long|longer than"):
        condition.evaluate({"x": "a" * 5000 + "b"})
    assert time.process_time() - began < 30
