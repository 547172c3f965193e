"""What docs/testing.md says, as its reader does it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.pages import DOCS, blocks
from tests.docs.reading import Reader

pytestmark = pytest.mark.slow

PAGE = DOCS / "testing.md"


class Done(NamedTuple):
    code: int
    out: str
    err: str


class InAShell(Reader):
    """`pytest` runs in a process and a Prefect home of its own."""

    program = "pytest"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, self.pytest)

    def pytest(self, *words: str) -> Done:
        command = [sys.executable, "-m", "pytest", *words, "-p", "no:cacheprovider", "-p", "no:xdist"]
        own = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "COV_"))}
        own |= {"PREFECT_HOME": str(self.folder / "home"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
        done = subprocess.run(
            command, cwd=self.folder, env=own, capture_output=True, text=True, timeout=110, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.usefixtures("own_store")
def test_the_page_does_as_it_says(tmp_path: Path) -> None:
    files = {block.file: block.text for block in blocks(PAGE) if block.file}
    assert list(files) == ["orders.py", "test_orders.py"]
    reader = InAShell(tmp_path)
    reader.follow(PAGE)
    assert reader.compared == 3
    number = files["test_orders.py"].count("def test_")
    assert any(f"{number} passed" in block.text for block in blocks(PAGE) if block.language == "text")
