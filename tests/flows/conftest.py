"""Runs an example of flows/ in this process, and compares what it prints with its README."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from prefect.settings import get_current_settings

from tests.docs.pages import blocks, is_output

ROOT = Path(__file__).parents[2]


class Example:
    """An example with a store and a folder of its own, on the tests' Prefect API."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
    ) -> None:
        # as `flows.own_process` sets them; processes that the example starts read them, too
        monkeypatch.setenv("PREFECT_API_URL", str(get_current_settings().api.url))
        monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"sqlite:///{folder}/resilience.db")
        monkeypatch.setenv("EXAMPLE_FOLDER", str(folder))
        self._capsys = capsys

    def check(self, name: str, main: Callable[[], None]) -> None:
        """It prints the first block of text of its README, and begins as the page of examples shows."""
        self._capsys.readouterr()
        main()
        printed = self._capsys.readouterr().out
        shown = [b.text for b in blocks(ROOT / "flows" / name / "README.md") if b.language == "text"]
        assert is_output(shown[0], printed), printed
        page = blocks(ROOT / "docs" / "howto" / "examples.md")
        at = [block.text.strip() for block in page].index(f"python -m flows.{name}")
        assert is_output(f"{page[at + 1].text.rstrip()}...", printed)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Example:
    return Example(monkeypatch, capsys, tmp_path)
