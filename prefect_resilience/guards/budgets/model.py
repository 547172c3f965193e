"""The status of an error budget, its arithmetic, and the listeners for a burn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel, Field

from prefect_resilience.base.text import lasting


class BudgetStatus(BaseModel, frozen=True, defer_build=True):
    """The status of an error budget, from its store.

    objective: the share of runs that must succeed; window: its length in seconds, up to now.
    good, bad: the number of successful and failed runs in the window. remaining: the share of the budget that
        is left: 1 without failures, 0 when it is exactly used up, below 0 after more failures.
    burn_rates: by span, as in {"1h": 14.2}, the failures in the span relative to the allowed failures. At a
        rate of 1 the budget lasts for exactly the window.
    burned: whether the budget burns too fast now, or is used up. burning_since: the start of that, in seconds
        since the epoch by the store's clock. why: the reason.
    """

    name: str
    objective: float
    window: float
    good: int = 0
    bad: int = 0
    remaining: float = 1.0
    burn_rates: dict[str, float] = Field(default_factory=dict[str, float])
    burned: bool = False
    burning_since: float | None = None
    why: str | None = None

    @property
    def runs(self) -> int:
        """The number of runs in the window."""
        return self.good + self.bad


# The arithmetic of error budgets, over a JSON document. `now` is an argument; nothing is changed in place.
#
# The alarms are those of "The Site Reliability Workbook", chapter 5 "Alerting on SLOs", section 6
# "Multiwindow, Multi-Burn-Rate Alerts" (https://sre.google/workbook/alerting-on-slos/). With an objective
# over 30 days:
#
#     budget used   long window   short window   burn rate
#     2 %           1 hour        5 minutes      14.4
#     5 %           6 hours       30 minutes     6
#     10 %          3 days        6 hours        1
#
# An alarm is active while its rate is reached in both windows. The long window makes sure that the failures
# matter; the short window ends the alarm soon after its cause has ended. If the budget's window is not 30
# days, the spans are scaled and the rates stay the same.
#
# A document: {"name", "objective", "window", "minimum", "burning_since", "why", "updated_at", "rings":
# [{"seconds", "buckets": [[index, good, bad], ...]}]}. There is one ring for each span, cut into BUCKETS
# parts. The length of a span is therefore exact to 1 / BUCKETS, and the size of the document does not depend
# on the number of runs.

BUCKETS = 24
MONTH = 30 * 86_400.0
WORKBOOK = ((3_600.0, 300.0, 14.4), (21_600.0, 1_800.0, 6.0), (259_200.0, 21_600.0, 1.0))
"""Long window, short window (seconds), burn rate, for an objective over 30 days."""

DIGITS = 6
"""Decimal places of burn rates and of `remaining`."""

STAYS = 0.5
"""A burn lasts while a rule holds at this share of its rate, so that a rate near the limit is one burn."""

STAYS_SPENT = 0.9
"""A used-up budget stays so until a tenth of it is left again."""

BudgetDocument = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """A budget burns too fast while `rate` is reached in the last `long` and in the last `short` seconds."""

    long: float
    short: float
    rate: float


def rules_of(window: float) -> tuple[Rule, ...]:
    """The workbook's rules, scaled to an objective over `window` seconds."""
    scale = window / MONTH
    return tuple(
        Rule(max(60.0, long * scale), max(5.0, short * scale), rate) for long, short, rate in WORKBOOK
    )


def spans_of(window: float) -> tuple[float, ...]:
    """Every span that is counted, the shortest first."""
    rules = rules_of(window)
    return tuple(sorted({window, *(rule.long for rule in rules), *(rule.short for rule in rules)}))


def new(objective: float, window: float, minimum: int) -> BudgetDocument:
    """The document of a budget without runs."""
    return {
        "objective": objective,
        "window": window,
        "minimum": minimum,
        "rings": [{"seconds": seconds, "buckets": []} for seconds in spans_of(window)],
        "burning_since": None,
        "why": None,
        "updated_at": 0.0,
    }


def read(value: Any) -> BudgetDocument | None:
    """The document in a value from a store, or None if the value is not a budget's document."""
    fields = cast("BudgetDocument", value) if isinstance(value, dict) else {}
    return fields if fields.keys() >= {*new(0.5, 1.0, 1), "name"} else None


def count_runs(document: BudgetDocument, good: int, bad: int, now: float) -> BudgetDocument:
    """The document with `good` and `bad` more runs, which ended at `now`."""
    rings = [
        {"seconds": ring["seconds"], "buckets": _add(ring, good, bad, now)} for ring in document["rings"]
    ]
    return {**document, "rings": rings, "updated_at": max(now, document["updated_at"])}


def fitting(document: BudgetDocument | None, objective: float, window: float, minimum: int) -> BudgetDocument:
    """The document under a policy. Counts are kept for the spans that stay the same."""
    begun = new(objective, window, minimum)
    if document is None:
        return begun
    by_seconds = {ring["seconds"]: ring for ring in document["rings"]}
    rings = [by_seconds.get(ring["seconds"], ring) for ring in begun["rings"]]
    fields = ("burning_since", "why", "updated_at")
    return {**begun, "rings": rings, **{name: document[name] for name in fields}}


def judge(document: BudgetDocument, now: float) -> BudgetDocument:
    """The document with `burning_since` and `why` updated for `now`."""
    burning = document["burning_since"] is not None
    why = _why(document, now, STAYS if burning else 1.0, STAYS_SPENT if burning else 1.0)
    if why is None:
        return {**document, "burning_since": None, "why": None} if burning else document
    return document if burning else {**document, "burning_since": now, "why": why}


def status_of(name: str, document: BudgetDocument, now: float) -> BudgetStatus:
    """The status of the budget at `now`."""
    document = judge(document, now)
    window = document["window"]
    good, bad = totals(document, window, now)
    return BudgetStatus(
        name=name,
        objective=document["objective"],
        window=window,
        good=good,
        bad=bad,
        remaining=round(1 - burn_rate(good, bad, document["objective"]), DIGITS),
        burn_rates={
            span_text(span): burn_rate(*totals(document, span, now), document["objective"])
            for span in spans_of(window)
        },
        burned=document["burning_since"] is not None,
        burning_since=document["burning_since"],
        why=document["why"],
    )


def totals(document: BudgetDocument, span: float, now: float) -> tuple[int, int]:
    """Good and bad runs of the last `span` seconds; `span` must be one of `spans_of(window)`."""
    buckets = next(ring["buckets"] for ring in document["rings"] if ring["seconds"] == span)
    oldest = _index(span, now) - BUCKETS
    alive = [bucket for bucket in buckets if bucket[0] > oldest]
    return sum(bucket[1] for bucket in alive), sum(bucket[2] for bucket in alive)


def burn_rate(good: int, bad: int, objective: float) -> float:
    """The share of failed runs divided by the allowed share; 0 without runs."""
    runs = good + bad
    # Rounded, because 1 - 0.9 is a little less than 0.1: the rate would be 10.000000000000002.
    return 0.0 if runs == 0 else round(bad / runs / (1 - objective), DIGITS)


def span_text(seconds: float) -> str:
    """A span in the largest unit that divides it: "3d", "84m", "70s"."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def _why(document: BudgetDocument, now: float, level: float, spent: float) -> str | None:
    """Why the budget burns: a rule at `level` of its rate, or `spent` of the budget used; None if neither."""
    objective = document["objective"]
    for rule in rules_of(document["window"]):
        good, bad = totals(document, rule.long, now)
        long = burn_rate(good, bad, objective)
        short = burn_rate(*totals(document, rule.short, now), objective)
        if good + bad >= document["minimum"] and min(long, short) >= rule.rate * level:
            spans = f"{lasting(rule.long)} and in the last {lasting(rule.short)}"
            return f"it burns {long:.1f} times too fast in the last {spans}"
    good, bad = totals(document, document["window"], now)
    if good + bad >= document["minimum"] and burn_rate(good, bad, objective) >= spent:
        return f"it is used up: {bad} of {good + bad} runs failed"
    return None


def _add(ring: dict[str, Any], good: int, bad: int, now: float) -> list[list[int]]:
    index = _index(ring["seconds"], now)
    # A bucket in the future was written before the clock was set back. It counts as the current one.
    buckets = [[min(bucket[0], index), *bucket[1:]] for bucket in ring["buckets"]]
    buckets = [bucket for bucket in buckets if bucket[0] > index - BUCKETS]
    present = [bucket for bucket in buckets if bucket[0] == index]
    past = [bucket for bucket in buckets if bucket[0] < index]
    good += sum(bucket[1] for bucket in present)
    bad += sum(bucket[2] for bucket in present)
    return [*past, [index, good, bad]]


def _index(seconds: float, now: float) -> int:
    return math.floor(now * BUCKETS / seconds)
