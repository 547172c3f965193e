"""The tables of docs/reference/tables.md, generated from the code and from its behaviour.

python -m docs.making.tables            check that the page is up to date; exit code 1 if it is not
python -m docs.making.tables --write    update the page
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from prefect_resilience import (
    AdaptiveLimit,
    Backoff,
    Bulkhead,
    CircuitPolicy,
    ConditionError,
    Decompose,
    ErrorBudget,
    ErrorCategory,
    Hedge,
    RateLimit,
    RecoveryPolicy,
    Retry,
    RetryBudget,
    SpendCap,
    TokenLimit,
    path,
)
from prefect_resilience.base.durations import as_seconds
from prefect_resilience.errors.classify.http import status_category
from prefect_resilience.graphs.conditions.reading import FAMILIES, OPERATORS
from prefect_resilience.graphs.plans.model import Plan
from prefect_resilience.graphs.plans.schedule import Ended, Schedule
from prefect_resilience.guards.timeouts.timeout import DEFAULT_OPERATIONS
from prefect_resilience.telemetry.metrics import COUNTERS

PAGE = Path(__file__).parents[1] / "reference" / "tables.md"
STATUSES = (400, 401, 403, 404, 408, 409, 410, 412, 413, 422, 423, 425, 429, 499, 500, 502, 503, 504, 529)
RULES = ("all_settled", "all_success", "any_success", "always")
POLICIES: tuple[type[BaseModel], ...] = (
    Retry,
    Backoff,
    RetryBudget,
    CircuitPolicy,
    AdaptiveLimit,
    Bulkhead,
    RateLimit,
    TokenLimit,
    SpendCap,
    Hedge,
    Decompose,
    RecoveryPolicy,
    ErrorBudget,
)
CAUSES = {
    "rate_limit": "429, throttling codes of cloud SDKs",
    "timeout": "`TimeoutError`, 408, 504",
    "network": "connection refused or reset, DNS, broken TLS handshake",
    "unavailable": "502, 503, 529",
    "server_error": "500 and other 5xx",
    "auth": "401, 403",
    "invalid": "400, 422, a pydantic `ValidationError` of an input",
    "not_found": "404, 410",
    "conflict": "409, 412",
    "overflow": "413, a context that is too long for the model",
    "resource_exhausted": "turns, quota, output or credit used up",
    "validation": "the output does not have the promised shape",
    "tool_error": "a tool reported a failure",
    "agent_crash": "the process died (Prefect's `Crashed`)",
    "no_progress": "several rounds of a loop changed nothing",
    "circuit_open": "a circuit rejected the call",
    "subtask": "a sub-step failed; retried if its cause would be",
    "cancelled": "cancelled on purpose",
    "infrastructure": "the orchestrator, the store or a broker failed",
    "unexpected": "any other error",
}
"""Typical causes of each category, which the code does not contain in short form."""


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A Markdown table."""
    names = list(head)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def yes(answer: bool) -> str:
    return "yes" if answer else "no"


def code(value: Any) -> str:
    return f"`{value}`".replace("|", "\\|")


def categories() -> str:
    counts = CircuitPolicy().counts
    rows = [
        (
            code(one.value),
            one.kind.value,
            yes(one.retryable),
            yes(one.value in counts),
            code(one.reason.value),
            CAUSES[one.value],
        )
        for one in ErrorCategory
    ]
    return table(("category", "kind", "retried", "counted by circuits", "reason", "typical causes"), rows)


def statuses() -> str:
    found = [(status, status_category(status)) for status in STATUSES]
    return table(("status", "category"), [(status, code(one.value)) for status, one in found if one])


def operators() -> str:
    rows: list[tuple[str, str]] = []
    for operator in OPERATORS:
        types = [name for name, members in FAMILIES.items() if operator in members]
        rows.append((code(operator), ", ".join(code(name) for name in [*types, operator])))
    return table(("operator", "`type`"), rows)


def strictness() -> str:
    asked: list[tuple[str, Any, Any]] = [
        ('path("a") == 1', path("a") == 1, {"a": True}),
        ('path("a") == 1', path("a") == 1, {"a": "1"}),
        ('path("a") == 1', path("a") == 1, {"a": 1.0}),
        ('path("a") != 1', path("a") != 1, {"a": "1"}),
        ('path("a") > 1', path("a") > 1, {"a": "2"}),
        ('path("a") > 1', path("a") > 1, {"a": None}),
        (
            'path("a") >= "2026-11-20T12:00Z"',
            path("a") >= "2026-11-20T12:00Z",
            {"a": "2026-11-20T14:00+01:00"},
        ),
        ('path("a").contains("x")', path("a").contains("x"), {"a": ["x", "y"]}),
        ('path("a").contains("x")', path("a").contains("x"), {"a": {"x": 1}}),
        ('path("a").is_in([1, 2])', path("a").is_in([1, 2]), {"a": 2}),
        ('path("a").exists()', path("a").exists(), {"a": None}),
        ('path("a").exists()', path("a").exists(), {}),
        ('path("a") == 1', path("a") == 1, {}),
    ]
    return table(
        ("condition", "value", "result"),
        [(code(text), code(value), _result(c, value)) for text, c, value in asked],
    )


def _result(condition: Any, value: Any) -> str:
    try:
        return "true" if condition.evaluate(value) else "false"
    except ConditionError:
        return "`ConditionError`"


def triggers() -> str:
    pairs = [
        ("succeeded", "succeeded"),
        ("succeeded", "skipped"),
        ("succeeded", "failed"),
        ("skipped", "skipped"),
        ("skipped", "failed"),
        ("failed", "failed"),
    ]
    rows = [(*pair, *("runs" if _runs(rule, pair) else "skipped" for rule in RULES)) for pair in pairs]
    return table(("first dependency", "second dependency", *(code(rule) for rule in RULES)), rows)


def _runs(rule: str, endings: tuple[str, str]) -> bool:
    """Whether a node runs under this rule, according to the schedule that plans use."""
    skipped = [name for name, ending in zip("ab", endings, strict=True) if ending == "skipped"]
    nodes: list[dict[str, Any]] = [
        {"id": "router", "type": "x", "on_failure": skipped},
        *({"id": name, "type": "x"} for name in "ab"),
        {"id": "node", "type": "x", "depends_on": ["a", "b"], "trigger_rule": rule},
    ]
    schedule = Schedule(Plan.model_validate({"tasks": nodes}).tasks)
    ready = list(schedule.start().ready)
    ended = {"router": True, **{name: end == "succeeded" for name, end in zip("ab", endings, strict=True)}}
    while ready:
        name = ready.pop()
        if name == "node":
            return True
        ready += schedule.settle(name, Ended(ended[name])).ready
    return False


def options() -> str:
    rows = [
        (code(policy.__name__), code(name), default(field))
        for policy in POLICIES
        for name, field in policy.model_fields.items()
    ]
    return table(("policy", "option", "default"), rows)


def default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Backoff):
        return f"{value.kind}, {value.initial:g} s to {value.maximum:g} s"
    if isinstance(value, BaseModel):
        return "empty"
    if isinstance(value, float) and any(getattr(one, "func", None) is as_seconds for one in field.metadata):
        return _span(value)
    if isinstance(value, (tuple, list, dict, set, frozenset)):
        return ", ".join(code(one) for one in sorted(value)) if value else "none"
    return "none" if value is None else code(value)


def _span(seconds: float) -> str:
    """A duration with its unit: 30 s, 1 h, 7 d."""
    for unit, length in (("d", 86_400), ("h", 3_600)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"


def operations() -> str:
    return table(
        ("name", "seconds"), [(code(name), f"{seconds:g}") for name, seconds in DEFAULT_OPERATIONS.items()]
    )


def metrics() -> str:
    rows = [(code(name), "counter", about) for name, (_, about) in COUNTERS.items()]
    rows.append(
        (code("recovery.duration"), "histogram, s", "Time from the first attempt of a run to its success")
    )
    return table(("name", "kind", "description"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "categories": categories,
    "statuses": statuses,
    "operators": operators,
    "strictness": strictness,
    "triggers": triggers,
    "options": options,
    "operations": operations,
    "metrics": metrics,
}


def written(page: str) -> str:
    """The page with every table updated from the code."""
    for name, make in TABLES.items():
        between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.S)
        page, found = between.subn(lambda match, make=make: f"{match[1]}\n{make()}\n\n{match[2]}", page)
        if found != 1:
            raise SystemExit(f"{PAGE.name} has no place for the table {name!r}: <!-- {name} -->")
    return page


def main() -> None:
    now = PAGE.read_text(encoding="utf-8")
    new = written(now)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(new, encoding="utf-8")
    elif new != now:
        raise SystemExit(f"{PAGE.name} is out of date: python -m docs.making.tables --write")


if __name__ == "__main__":
    main()
