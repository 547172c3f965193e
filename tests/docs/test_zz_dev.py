from __future__ import annotations
import os
from pathlib import Path
import pytest
from tests.docs.pages import DOCS
from tests.docs.reading import Reader
from tests.operations.cli.conftest import cli  # noqa: F401

@pytest.mark.parametrize("name", os.environ.get("DEVPAGES", "").split())
def test_dev(name: str, as_a_reader: Path, cli, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(Reader, "type", lambda self, line: "")
    Reader(as_a_reader, cli).follow(DOCS / name)
