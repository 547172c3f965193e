"""Every plan of the examples as it stands, under every outcome of its conditional nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefect_resilience import ErrorContext
from tests.graphs.plans.ran import ran

pytestmark = pytest.mark.api

FILES = Path(__file__).parent / "files"

OK, FAILED, HANDLED, SKIPPED = "succeeded", "failed", "handled", "skipped"
SHOWN = {OK: "Completed", FAILED: "Failed", HANDLED: "Failed", SKIPPED: "Skipped"}


class Answers:
    """Actions that give what the test wants of each, or raise it; `asked` are the inputs that came."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: dict[str, list[dict[str, Any]]] = {}

    def action(self, name: str) -> Callable[..., Any]:
        def answer(error: ErrorContext | None = None, **given: Any) -> Any:
            self.asked.setdefault(name, []).append({**given, "error": error})
            said = self.answers.get(name, {"text": name})
            said = said(given) if callable(said) else said
            if isinstance(said, Exception):
                raise said
            return said

        return answer

    @property
    def actions(self) -> dict[str, Any]:
        return {
            name: self.action(name)
            for name in ("kg_query", "reasoning", "hybrid", "llm_call", "error_handler")
        }


def broken(what: str) -> ValueError:
    return ValueError(f"{what} is broken")


def only(fails: str) -> Callable[[dict[str, Any]], Any]:
    """An action that several nodes share, and that fails for the prompt with this text."""

    def answer(given: dict[str, Any]) -> Any:
        prompt = str(given.get("prompt", ""))
        return broken(fails) if fails in prompt else {"text": prompt}

    return answer


LETTERS = {"S": OK, "F": FAILED, "H": HANDLED, "-": SKIPPED}
CASES: dict[str, tuple[tuple[str, ...], list[tuple[str, dict[str, Any], str]]]] = {
    "confidence_branch": (
        ("kg_query", "generate_report", "manual_review"),
        [
            ("confident", {"kg_query": {"confidence": 0.95, "text": "none"}}, "SS-"),
            ("nothing said about it", {"kg_query": {"text": "hm"}}, "H-S"),
            ("the query fails", {"kg_query": broken("the graph")}, "H-S"),
        ],
    ),
    "drug_research_fallback": (
        ("kg_query", "text_search", "analysis"),
        [
            ("the graph answers", {"kg_query": "bleeding"}, "S-S"),
            ("the graph fails", {"kg_query": broken("the graph")}, "HSS"),
            ("the analysis fails", {"kg_query": "bleeding", "reasoning": only("Analyze")}, "S-F"),
        ],
    ),
    "failure_transitions": (
        ("llm_call", "publish", "notify"),
        [
            ("the model answers", {"llm_call": "a summary"}, "SS-"),
            ("the model fails", {"llm_call": broken("the model")}, "H-S"),
            (
                "the notification fails as well",
                {"llm_call": broken("the model"), "error_handler": broken("the pager")},
                "H-F",
            ),
        ],
    ),
    "parallel_with_fallback": (
        ("kg_query", "fallback_search", "synthesize"),
        [
            ("the graph answers", {"kg_query": "bleeding"}, "S-S"),
            ("the graph fails", {"kg_query": broken("the graph")}, "HSS"),
        ],
    ),
    "quality_branch": (
        ("analysis", "publish_report", "manual_review", "refinement"),
        [
            ("good enough", {"reasoning": {"quality_score": 0.85, "text": "evidence"}}, "SS--"),
            ("not good enough", {"reasoning": {"quality_score": 0.84, "text": "evidence"}}, "S-SS"),
            ("the analysis fails", {"reasoning": only("Assess")}, "H-SS"),
        ],
    ),
}
"""By plan: its nodes; and by case: the answers of the actions, and what becomes of each node (`LETTERS`)."""


@pytest.mark.requirement("000.07", "000.08", "000.09", "000.10")
@pytest.mark.parametrize(
    ("name", "answers", "expected"),
    [
        pytest.param(
            plan, answers, dict(zip(nodes, map(LETTERS.get, letters), strict=True)), id=f"{plan}: {case}"
        )
        for plan, (nodes, cases) in CASES.items()
        for case, answers, letters in cases
    ],
)
def test_which_nodes_ran_and_which_did_not(
    name: str, answers: dict[str, Any], expected: dict[str, str]
) -> None:
    told = Answers(**answers)
    done = ran(FILES / f"{name}.json", actions=told.actions)
    assert done.statuses() == expected
    assert {key: run.state_name for key, run in done.task_runs().items()} == {
        key: SHOWN[status] for key, status in expected.items()
    }
    failed = [key for key, status in expected.items() if status == FAILED]
    assert done.state.is_failed() == bool(failed)
    assert done.result.succeeded is not bool(failed)
    for key in failed:
        assert repr(key) in (done.state.message or "")
    for key, node in done.result.nodes.items():
        assert (node.reason != "") if expected[key] == SKIPPED else True
        assert (node.error is None) == (expected[key] in (OK, SKIPPED))


def test_the_files_are_those_of_the_examples() -> None:
    assert {*CASES} == {file.stem for file in FILES.iterdir()}


@pytest.mark.requirement("000.07")
def test_what_the_nodes_of_the_fallback_plan_are_told() -> None:
    told = Answers(kg_query=broken("the graph"))
    ran(FILES / "drug_research_fallback.json", actions=told.actions)
    assert told.asked["kg_query"][0]["query"] == "aspirin interactions"
    search, analysis = told.asked["reasoning"]
    assert search["error"].node_id == "kg_query"
    assert search["error"].message == "the graph is broken"
    assert analysis["error"] is None
    assert analysis["prompt"].startswith("Analyze results from:  or {")
