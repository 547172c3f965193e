"""Programs of `flows/`, run as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_program(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The end of `python -m` with these words, with no settings but these."""
    unwanted = ("PREFECT_", "COV_", "COVERAGE_", "COLUMNS")
    env = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    command = [sys.executable, "-m", *words]
    done = subprocess.run(
        command, cwd=ROOT, env=env | variables, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done
