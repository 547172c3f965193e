"""Ctrl-C at each line of a sync call with every guard: nothing stays busy, nothing is sent twice.

It strikes through CPython's API.
"""

import subprocess
import sys

import pytest

PARTS = 8


def struck(kind: str, outcome: str, first: int, step: int) -> int:
    """How many lines were struck."""
    words = [sys.executable, "-m", "tests.durable.effects.ctrl_c_runs", kind, outcome, str(first), str(step)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout.split()[-1])


@pytest.mark.parametrize("kind", ["World", "WithoutVerify"])
def test_ctrl_c_at_some_lines(kind):
    assert struck(kind, "returns", 1, 80) > 10


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "part",
    [pytest.param(n, marks=pytest.mark.long if n % 4 else pytest.mark.slow) for n in range(PARTS)],
)
@pytest.mark.parametrize(("kind", "outcome"), [("World", "returns"), ("WithoutVerify", "fails")])
def test_ctrl_c_at_each_line(kind, outcome, part):
    """`make long` strikes at each line, `make test-all` at each fourth."""
    assert struck(kind, outcome, 1 + part, PARTS) > 100
