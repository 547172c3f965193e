"""What docs/agents.md says is run as it stands, and prints what the page shows."""

from pathlib import Path

import pytest

from prefect_resilience.graphs.agents.edge.registry import AGENTS, PROVIDERS
from tests.docs.pages import DOCS
from tests.docs.reading import Reader

pytestmark = pytest.mark.api

PAGE = DOCS / "agents.md"


def test_every_block_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for registered in (AGENTS, PROVIDERS):
        monkeypatch.setattr(registered, "_known", {})
    reader = Reader(tmp_path)
    reader.follow(PAGE)
    assert reader.compared >= 10
