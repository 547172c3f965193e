"""The JSON Schema of a condition, for editors and for Prefect's forms."""

from __future__ import annotations

from typing import Any

from prefect_resilience.errors.taxonomy import ErrorCategory
from prefect_resilience.graphs.conditions.reading import LONGEST_MS, OPERATORS, TYPES

_FORMS = """A question about a task's result or error, written in one of these forms:
{"type": "comparison", "operator": "gt | gte | lt | lte", "path": "confidence", "value": 0.9},
{"type": "output_check", "operator": "contains | equals | not_equals", "path": "text", "value": "x"},
{"type": "in", "path": "status", "value": ["done", "partial"]},
{"type": "matches", "path": "id", "value": "^DB[0-9]+$"},
{"type": "exists", "path": "state._last_error"}, {"type": "not_exists", "path": "a.b[0]"},
{"type": "error_catch", "operator": "error_occurred | success"},
{"type": "error_catch", "operator": "failed", "category": "timeout"},
{"type": "all", "conditions": [...]}, {"type": "any", "conditions": [...]},
{"type": "not", "condition": {...}}."""


def json_schema(reference: dict[str, Any]) -> dict[str, Any]:
    """The schema; `reference` leads to it from inside."""
    return {
        "title": "Condition",
        "type": "object",
        "description": _FORMS.replace("\n", " "),
        "additionalProperties": False,
        "properties": {
            "type": _word(TYPES, "The kind of question; an operator's name, or a kind that has several."),
            "operator": _word(OPERATORS, "What is asked; may be left out where the type says it."),
            "path": {
                "type": "string",
                "maxLength": 1_000,
                "description": "Where to look: a.b[0].c, or $... as in RFC 9535; $ alone is the whole. "
                "In a plan, state... and inputs... look there.",
            },
            "field": {
                "type": "object",
                "description": "Another way to write the path.",
                "properties": {"type": {"const": "field"}, "path": {"type": "string"}},
                "required": ["type", "path"],
                "additionalProperties": False,
            },
            "value": {"description": "What to compare with: any JSON; a list for in, a pattern for matches."},
            "source_task": {"type": "string", "description": "The task whose result is looked at."},
            "conditions": {
                "type": "array",
                "minItems": 1,
                "items": reference,
                "description": "For all and any.",
            },
            "condition": {**reference, "description": "For not."},
            "category": _word(tuple(word.value for word in ErrorCategory), "The error that failed asks for."),
            "code": {"type": "string", "description": "The error's code, such as 429 or TIMEOUT."},
            "timeout_ms": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": LONGEST_MS,
                "description": "Milliseconds that its evaluation may compute; 500 if not given.",
            },
        },
    }


def _word(words: tuple[str, ...], description: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(words), "description": description}
