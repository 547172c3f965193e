"""What docs/testing.md says, as its reader does it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    files = re.findall(r"^`([\w.]+)`:\n\n```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert [name for name, _ in files] == ["orders.py", "test_orders.py"]
    for name, text in files:
        (tmp_path / name).write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "test_orders.py",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "COV_"))
    }
    environment |= {"PREFECT_HOME": str(tmp_path / "home"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{files[1][1].count('def test_')} passed" in done.stdout
