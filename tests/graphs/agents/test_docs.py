"""What docs/agents.md says is run as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from prefect_resilience.graphs.agents.edge.registry import AGENTS

pytestmark = pytest.mark.api

DOCS = Path(__file__).parents[3] / "docs" / "agents.md"


def test_every_block_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(AGENTS, "_known", {})
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 9
    names: dict[str, object] = {"__name__": "agents_page"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{DOCS.name}, block {number + 1}", "exec"), names)
