"""The JSON of the documents as it stands there, comments included."""

import json

import pytest

from prefect_resilience import Condition, Plan, Retry
from prefect_resilience.errors.taxonomy import ErrorCategory
from prefect_resilience.graphs.plans.reading.data import load_json
from tests.graphs.plans.plan_builders import error_at

ERROR_CATCH = """
{
  "type": "error_catch",
  "operator": "error_occurred"  // or "success"
}
"""
OUTPUT_CHECK = """
{
  "type": "output_check",
  "operator": "contains",      // or "equals", "not_equals"
  "path": "text",              // JSON path in output
  "value": "expected_pattern"
}
"""
COMPARISON = """
{
  "type": "comparison",
  "operator": "gt",            // "gt", "gte", "lt", "lte"
  "path": "confidence_score",
  "value": 0.8
}
"""
RESEARCH = """
{
  "tasks": [
    {
      "id": "kg_query",
      "type": "kg_query",
      "cell_type": "kg",
      "input": {"query": "aspirin interactions"},
      "on_failure": ["text_search"]  // Fallback task
    },
    {
      "id": "text_search",
      "type": "reasoning",
      "input": {"prompt": "Search pubmed for aspirin interactions"},
      "handles_error": "kg_query"  // Explicitly handles kg_query failure
    },
    {
      "id": "analysis",
      "type": "reasoning",
      "input": {"prompt": "Analyze results from: {{kg_query.output}} or {{text_search.output}}"},
      "depends_on": ["kg_query", "text_search"]
    }
  ]
}
"""
BRANCHING = """
{
  "tasks": [
    {
      "id": "kg_query",
      "type": "kg_query",
      "condition": {
        "type": "comparison",
        "operator": "gte",
        "path": "confidence",
        "value": 0.9
      },
      "on_success": ["generate_report"],     // High confidence
      "on_failure": ["manual_review"]        // Low confidence
    },
    {
      "id": "generate_report",
      "type": "reasoning"
    },
    {
      "id": "manual_review",
      "type": "error_handler"
    }
  ]
}
"""
PARALLEL = """
{
  "intent": "Analyze drug interactions with automatic fallback",
  "tasks": [
    {
      "id": "kg_query",
      "type": "kg_query",
      "cell_type": "kg",
      "on_failure": ["fallback_search"]
    },
    {
      "id": "fallback_search",
      "type": "reasoning",
      "input": {"prompt": "Search for: aspirin side effects"}
    },
    {
      "id": "synthesize",
      "type": "hybrid",
      "depends_on": ["kg_query", "fallback_search"],
      "input": {
        "prompt": "Combine KG and text results"
      }
    }
  ]
}
"""
QUALITY = """
{
  "id": "analysis",
  "condition": {
    "type": "comparison",
    "operator": "gte",
    "path": "quality_score",
    "value": 0.85
  },
  "on_success": ["publish_report"],
  "on_failure": ["manual_review", "refinement"]
}
"""
SMART = """
{
  "id": "kg_query",
  "retry_policy": {
    "max_retries": 5,
    "initial_delay_ms": 500,
    "max_delay_ms": 30000,
    "backoff_multiplier": 2.0,
    "jitter_fraction": 0.2
  }
}
"""
CONFIGURED = """
{
  "retry_policy": {
    "max_retries": 3,
    "initial_delay_ms": 100,
    "max_delay_ms": 10000,
    "backoff_multiplier": 2.0,
    "jitter_fraction": 0.1
  }
}
"""
# Of the workflow engine, whose literals are TypeScript: with quotes they are JSON.
EXECUTION = """
{
  "kind": "llm_call",
  "execution": {
    "timeout_ms": 30000,
    "retry_policy": {
      "max_attempts": 3,
      "backoff": "exponential",
      "initial_delay_ms": 1000,
      "max_delay_ms": 10000,
      "retryable_errors": ["503", "429", "TIMEOUT", "NETWORK_ERROR"]
    }
  }
}
"""
TRANSITION = """
{
  "from_node_id": "llm_call_node",
  "to_node_id": "fallback_node",
  "priority": 1,
  "condition": {
    "type": "exists",
    "field": { "type": "field", "path": "state._last_error" }
  }
}
"""


def condition(text: str) -> Condition:
    return Condition.model_validate(load_json(text, "a condition"))


@pytest.mark.requirement("000.02", "000.27")
def test_error_catch() -> None:
    asked = condition(ERROR_CATCH)
    assert asked.evaluate(None, error=error_at("kg")) is True
    assert asked.evaluate({"text": "fine"}) is False
    assert condition(ERROR_CATCH.replace("error_occurred", "success")).evaluate({"text": "fine"}) is True


@pytest.mark.requirement("000.03", "000.27")
def test_output_check() -> None:
    asked = condition(OUTPUT_CHECK)
    assert asked.evaluate({"text": "with the expected_pattern in it"}) is True
    assert asked.evaluate({"text": "without"}) is False


@pytest.mark.requirement("000.04", "000.27")
def test_comparison() -> None:
    asked = condition(COMPARISON)
    assert [asked.evaluate({"confidence_score": score}) for score in (0.81, 0.8, 0.1)] == [True, False, False]


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        (RESEARCH, ["kg_query", "text_search", "analysis"]),
        (BRANCHING, ["kg_query", "generate_report", "manual_review"]),
        (PARALLEL, ["kg_query", "fallback_search", "synthesize"]),
    ],
    ids=["research", "branching", "parallel"],
)
@pytest.mark.requirement("000.07", "000.08", "000.10", "000.27")
def test_plans(text: str, nodes: list[str]) -> None:
    plan = Plan.from_text(text)
    assert [node.id for node in plan.tasks] == nodes
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


@pytest.mark.requirement("000.09", "000.27")
def test_a_node_that_leads_to_several() -> None:
    others = ", ".join(
        f'{{"id": "{name}", "type": "reasoning"}}'
        for name in ("publish_report", "manual_review", "refinement")
    )
    node = QUALITY.replace('"id": "analysis",', '"id": "analysis", "type": "reasoning",')
    analysis = Plan.from_text(f'{{"tasks": [{node}, {others}]}}').tasks[0]
    assert (analysis.on_success, analysis.on_failure) == (
        ("publish_report",),
        ("manual_review", "refinement"),
    )
    assert analysis.condition is not None
    assert analysis.condition.evaluate({"quality_score": 0.85}) is True


@pytest.mark.parametrize(
    ("text", "initial", "jitter", "attempts"), [(SMART, 0.5, 0.2, 6), (CONFIGURED, 0.1, 0.1, 4)]
)
@pytest.mark.requirement("000.16", "000.17", "000.19")
def test_retry_policies(text: str, initial: float, jitter: float, attempts: int) -> None:
    retry = Retry.model_validate(json.loads(text)["retry_policy"])
    assert retry.attempts == attempts
    delays = [retry.backoff.delay(n, random=0.5) for n in range(1, 4)]
    assert delays == pytest.approx([2 * initial, 4 * initial, 8 * initial])
    # The initial delay is the least: its jitter only lengthens it.
    assert retry.backoff.delay(0, random=0.0) == pytest.approx(initial)
    assert retry.backoff.delay(0, random=0.999) == pytest.approx(initial * (1 + jitter), rel=0.01)
    assert retry.backoff.delay(3, random=0.0) == pytest.approx(8 * initial * (1 - jitter))


@pytest.mark.requirement("002.01", "002.03", "002.04", "002.06", "002.34")
def test_an_action_of_the_workflow_engine() -> None:
    first = EXECUTION.replace('"kind"', '"id": "llm_call_node", "kind"', 1)
    fallback = '{"id": "fallback_node", "kind": "llm_call"}'
    plan = Plan.from_text(f'{{"tasks": [{first}, {fallback}], "transitions": [{TRANSITION}]}}')
    node = plan.tasks[0]
    assert (node.type, node.timeout) == ("llm_call", 30)
    assert node.retry is not None
    assert node.retry.attempts == 3
    # No jitter where the JSON asks for none: 1 s, 2 s.
    assert [node.retry.backoff.delay(n, random=0.0) for n in (0, 1)] == [1.0, 2.0]
    assert {str(ErrorCategory.RATE_LIMIT), "503"} & {*map(str, node.retry.retry_on or ())} == {"503"}
    [way] = node.transitions
    assert (way.to, way.priority) == ("fallback_node", 1)
    assert way.condition.evaluate({"state": {"_last_error": error_at("a").model_dump(mode="json")}}) is True
