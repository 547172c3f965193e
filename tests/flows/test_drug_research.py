"""The plans about aspirin on a real graph: which nodes run, are skipped, fail, whatever the day is like."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from prefect.settings import get_current_settings

from tests.flows.programs import run_program

pytestmark = [pytest.mark.api, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PLANS = ROOT / "flows" / "plans"
FALLBACK, BRANCH = "drug_research_fallback", "confidence_branch"

ENDS = {"s": "✓ succeeded", "h": "! handled", "-": "- skipped"}
NODES = {
    "kg_query": "sssh" + "hhss",
    "text_search": "--s-",
    "analysis": "ssss",
    "generate_report": "s---",
    "manual_review": "-sss",
}
"""How each node ended in the four situations; the query is in both plans."""

# -- the plans


@pytest.mark.parametrize("name", [FALLBACK, BRANCH])
def test_the_plans_are_the_published_ones(name: str) -> None:
    published = ROOT / "tests" / "graphs" / "plans" / "files" / f"{name}.json"
    assert (PLANS / f"{name}.json").read_bytes() == published.read_bytes()


def test_it_runs_as_it_is_written_down(tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    api, home = str(get_current_settings().api.url), str(tmp_path)
    words = ("flows.drug_research", "--pictures", str(pictures))
    done = run_program(*words, PREFECT_API_URL=api, PREFECT_HOME=home)
    assert done.stderr == ""
    rows = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines()]
    ended = {node: [row[1] for row in rows if row[0] == node and len(row) > 1] for node in NODES}
    assert ended == {node: [ENDS[letter] for letter in letters] for node, letters in NODES.items()}
    assert f"The pictures of the runs are in {pictures}" in done.stdout
    drawn = sorted(pictures.glob("*.svg"))
    assert len(drawn) == 8
    for picture in drawn:
        ElementTree.fromstring(picture.read_text(encoding="utf-8"))
