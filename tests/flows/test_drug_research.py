"""The plans about aspirin on a real graph: which nodes run, are skipped, fail, whatever the day is like."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from prefect.settings import get_current_settings

from flows.drug_graph import ALWAYS, GraphService
from flows.serving import running
from prefect_resilience.graphs.plans.actions import REGISTERED
from prefect_resilience.operations import run_plan
from tests.flows.programs import run_program

pytestmark = [pytest.mark.api, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PLANS = ROOT / "flows" / "plans"
FALLBACK, BRANCH = "drug_research_fallback", "confidence_branch"

WELL: dict[str, Any] = {}
STUMBLES = {"failing": 2}
DOWN = {"failing": ALWAYS}
UNREVIEWED = {"unreviewed": True}


@pytest.fixture(scope="module")
def research() -> Iterator[Any]:
    """The example's module; its actions are registered for these tests alone."""
    known = dict(REGISTERED._known)
    yield importlib.import_module("flows.drug_research")
    REGISTERED._known = known
    del sys.modules["flows.drug_research"]


@pytest.fixture(autouse=True)
def reviews(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("DRUG_REVIEWS", str(tmp_path / "reviews.db"))
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"sqlite:///{tmp_path}/resilience.db")
    return tmp_path / "reviews.db"


# -- the plans


@pytest.mark.parametrize("name", [FALLBACK, BRANCH])
def test_the_plans_are_the_published_ones(name: str) -> None:
    published = ROOT / "tests" / "graphs" / "plans" / "files" / f"{name}.json"
    assert (PLANS / f"{name}.json").read_bytes() == published.read_bytes()


@pytest.mark.parametrize(
    ("name", "mood", "nodes", "answers"),
    [
        (FALLBACK, WELL, {"kg_query": ("succeeded", 1), "text_search": "skipped", "analysis": 1}, [200]),
        (
            FALLBACK,
            STUMBLES,
            {"kg_query": ("succeeded", 3), "text_search": "skipped", "analysis": 1},
            [503, 503, 200],
        ),
        (FALLBACK, DOWN, {"kg_query": ("handled", 4), "text_search": 1, "analysis": 1}, [503] * 4),
        (FALLBACK, UNREVIEWED, {"kg_query": 1, "text_search": "skipped", "analysis": 1}, [200]),
        (BRANCH, WELL, {"kg_query": 1, "generate_report": 1, "manual_review": "skipped"}, [200]),
        (
            BRANCH,
            STUMBLES,
            {"kg_query": ("handled", 1), "generate_report": "skipped", "manual_review": 1},
            [503],
        ),
        (BRANCH, DOWN, {"kg_query": ("handled", 1), "generate_report": "skipped", "manual_review": 1}, [503]),
        (BRANCH, UNREVIEWED, {"kg_query": 1, "generate_report": "skipped", "manual_review": 1}, [200]),
    ],
)
def test_which_nodes_run(
    research: Any,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    mood: dict[str, Any],
    nodes: dict[str, Any],
    answers: list[int],
) -> None:
    service = GraphService(**mood)
    with running(service) as address:
        monkeypatch.setenv("DRUG_GRAPH_URL", address)
        result = run_plan(PLANS / f"{name}.json")
    assert result.succeeded
    expected = {
        node: ("succeeded", what) if isinstance(what, int) else ("skipped", 0) if what == "skipped" else what
        for node, what in nodes.items()
    }
    assert {node: (ran.status, ran.attempts) for node, ran in result.nodes.items()} == expected
    assert service.given == answers


def test_it_runs_as_it_is_written_down(tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    api, home = str(get_current_settings().api.url), str(tmp_path)
    words = ("flows.drug_research", "--pictures", str(pictures))
    done = run_program(*words, PREFECT_API_URL=api, PREFECT_HOME=home)
    assert done.stderr == ""
    rows = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines()]
    searched = [row[1] for row in rows if row[0] == "text_search"]
    assert searched == ["- skipped", "- skipped", "✓ succeeded", "- skipped"]
    assert f"The pictures of the runs are in {pictures}" in done.stdout
    drawn = sorted(pictures.glob("*.svg"))
    assert len(drawn) == 8
    for picture in drawn:
        ElementTree.fromstring(picture.read_text(encoding="utf-8"))
