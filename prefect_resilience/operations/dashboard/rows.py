"""Error budgets, advice and the headline: what only the page shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.budgets.model import BudgetStatus
from prefect_resilience.operations.tuning.report import LatestAdvice, value_text

Row = dict[str, Any]
Parts = dict[str, dict[str, Row]]
"""The rows of the page by part and id."""

BUDGETS_SHOWN = 100


def budgets(listed: Iterable[BudgetStatus]) -> Parts:
    """Every error budget; burning ones and those with the least left come first."""
    ordered = sorted(listed, key=lambda budget: (not budget.burned, budget.remaining, budget.name))
    rows = {
        budget.name: {
            **budget.model_dump(include={"objective", "window", "bad", "burned"}),
            **{"place": place, "runs": budget.runs, "remaining": round(budget.remaining, 3)},
            "why": redact(budget.why or ""),
        }
        for place, budget in enumerate(ordered[:BUDGETS_SHOWN])
    }
    burning = sum(budget.burned for budget in ordered)
    return {"budgets": rows, "summary": {"budgets": {"total": len(ordered), "burning": burning}}}


def advice(latest: LatestAdvice | None) -> Parts:
    """What the weekly flow `tune` advised last."""
    if latest is None:
        return {"advice": {}, "summary": {"advice": {}}}
    rows = {
        f"{change.task}, {change.option}": {
            **{"place": place, "why": redact(change.why)},
            **{"now": redact(value_text(change.now)), "better": redact(value_text(change.better))},
        }
        for place, change in enumerate(latest.lines)
    }
    return {"advice": rows, "summary": {"advice": {"at": latest.at, "headline": latest.headline}}}


NEEDS: tuple[tuple[str, str, str, str, Literal["open", "probing"]], ...] = (
    ("batches", "effects", "effect in doubt to settle", "effects in doubt to settle", "open"),
    ("letters", "in_doubt", "interrupted replay to check", "interrupted replays to check", "open"),
    ("batches", "failed", "failed batch to recover", "failed batches to recover", "probing"),
    ("letters", "waiting", "dead letter to replay", "dead letters to replay", "probing"),
    ("budgets", "burning", "error budget burning", "error budgets burning", "open"),
)
"""What needs a person: the part of the summary, its count, one of it, several of it, and the level."""


def headline(summary: Mapping[str, Row]) -> Row:
    """The headline of the page: first what needs a person, then the circuits.

    Example:
        >>> headline({"letters": {"waiting": 6}})["text"]
        '6 dead letters to replay'
    """
    circuits = summary.get("circuits", {})
    needs = [circuits["headline"]] if circuits.get("open") else []
    levels = {circuits.get("level", "good")}
    for part, count, singular, several, level in NEEDS:
        counts = summary.get(part, {})
        if number := counts.get(count, 0):
            least = "+" if counts.get("more") else ""
            needs.append(f"{number:,}{least} {several if least or number > 1 else singular}")
            levels.add(level)
    return {
        "text": ", ".join(needs) or "Nothing needs a person",
        "level": next(level for level in ("open", "probing", "good") if level in levels),
    }
