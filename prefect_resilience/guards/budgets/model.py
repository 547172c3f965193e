"""What is known of an error budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, Field

from prefect_resilience.guards.circuits.listeners import Listeners


class BudgetStatus(BaseModel):
    """An error budget as its store knows it.

    objective: the share of runs that must go well; window: seconds that it looks back.
    good, bad: the runs in the window. remaining: the share of the budget that is left: 1 when nothing failed,
        0 when just as many failed as may, below 0 when more did.
    burn_rates: by span, as in {"1h": 14.2}, how many times faster than allowed the budget was used up in
        it: at 1 it lasts for exactly the window.
    burned: whether it burns too fast at this moment, or is used up; since when (seconds since the epoch, by
        the store's clock), and why.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

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
        """How many runs there were in the window."""
        return self.good + self.bad


# The arithmetic of error budgets, over a JSON document; `now` is handed in, nothing is changed in place.
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
# One goes off while the rate is reached in its long window, so that it matters, and in its short one, so
# that it is over soon after its cause is. For another window than 30 days the spans are scaled, the rates
# stay.
#
# A document: {"name", "objective", "window", "minimum", "burning_since", "why", "updated_at", "rings":
# [{"seconds", "buckets": [[index, good, bad], ...]}]}. There is a ring for each span, cut into BUCKETS: a
# span is counted to within a part in BUCKETS of it, and the document stays small however many runs there
# are.

BUCKETS = 24
MONTH = 30 * 86_400.0
WORKBOOK = ((3_600.0, 300.0, 14.4), (21_600.0, 1_800.0, 6.0), (259_200.0, 21_600.0, 1.0))
"""Long window, short window (seconds), burn rate, for an objective over 30 days."""

DIGITS = 6
"""Decimal places of rates and of what is left."""

SHORTEST_LONG = 60.0
SHORTEST_SHORT = 5.0
STAYS = 0.5
"""A burn lasts while a rule holds at this part of its rate: what hovers at a rate is one burn, not many."""

STAYS_SPENT = 0.9
"""A budget that was used up is so until a tenth of it has come back."""

BudgetDocument = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """It burns too fast while `rate` is reached in the last `long` and in the last `short` seconds."""

    long: float
    short: float
    rate: float


def rules_of(window: float) -> tuple[Rule, ...]:
    """The workbook's rules, scaled to an objective over `window` seconds."""
    scale = window / MONTH
    return tuple(
        Rule(max(SHORTEST_LONG, long * scale), max(SHORTEST_SHORT, short * scale), rate)
        for long, short, rate in WORKBOOK
    )


def spans_of(window: float) -> tuple[float, ...]:
    """Every span that is counted, the shortest first."""
    rules = rules_of(window)
    return tuple(sorted({window, *(rule.long for rule in rules), *(rule.short for rule in rules)}))


def new(objective: float, window: float, minimum: int) -> BudgetDocument:
    """The document of a budget that no run was counted in."""
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
    """A value from a store, or None when it is no document of a budget."""
    fields = cast("BudgetDocument", value) if isinstance(value, dict) else {}
    return fields if fields.keys() >= {*new(0.5, 1.0, 1), "name"} else None


def counted(document: BudgetDocument, good: int, bad: int, now: float) -> BudgetDocument:
    """The document with so many more runs, which ended at `now`."""
    rings = [
        {"seconds": ring["seconds"], "buckets": _added(ring, good, bad, now)} for ring in document["rings"]
    ]
    return {**document, "rings": rings, "updated_at": max(now, document["updated_at"])}


def fitting(document: BudgetDocument | None, objective: float, window: float, minimum: int) -> BudgetDocument:
    """The document under a policy: what was counted is kept as far as the spans are the same."""
    begun = new(objective, window, minimum)
    if document is None:
        return begun
    known = {ring["seconds"]: ring for ring in document["rings"]}
    rings = [known.get(ring["seconds"], ring) for ring in begun["rings"]]
    kept = ("burning_since", "why", "updated_at")
    return {**begun, "rings": rings, **{name: document[name] for name in kept}}


def judged(document: BudgetDocument, now: float) -> BudgetDocument:
    """The document after a look at whether the budget burns; `burning_since` and `why` say so."""
    burning = document["burning_since"] is not None
    why = _why(document, now, STAYS if burning else 1.0, STAYS_SPENT if burning else 1.0)
    if why is None:
        return {**document, "burning_since": None, "why": None} if burning else document
    return document if burning else {**document, "burning_since": now, "why": why}


def status_of(name: str, document: BudgetDocument, now: float) -> BudgetStatus:
    """The budget as it is at `now`."""
    document = judged(document, now)
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
    """Good and bad runs of the last `span` seconds, which is one that is counted."""
    buckets = next(ring["buckets"] for ring in document["rings"] if ring["seconds"] == span)
    oldest = _index(span, now) - BUCKETS
    alive = [bucket for bucket in buckets if bucket[0] > oldest]
    return sum(bucket[1] for bucket in alive), sum(bucket[2] for bucket in alive)


def burn_rate(good: int, bad: int, objective: float) -> float:
    """How many times as many runs failed as may fail; 0 when there were none."""
    runs = good + bad
    # 1 - 0.9 is a little less than 0.1, which would show as a rate of 10.000000000000002.
    return 0.0 if runs == 0 else round(bad / runs / (1 - objective), DIGITS)


def span_text(seconds: float) -> str:
    """A span in the largest unit that it is whole in: "3d", "84m", "70s"."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def _why(document: BudgetDocument, now: float, level: float, spent: float) -> str | None:
    """What is wrong with the budget: a rule at `level` of its rate, or `spent` of it used; None: nothing."""
    objective = document["objective"]
    for rule in rules_of(document["window"]):
        good, bad = totals(document, rule.long, now)
        long = burn_rate(good, bad, objective)
        short = burn_rate(*totals(document, rule.short, now), objective)
        if good + bad >= document["minimum"] and min(long, short) >= rule.rate * level:
            spans = f"{span_text(rule.long)} and in the last {span_text(rule.short)}"
            return f"it burns {long:.1f} times too fast in the last {spans}"
    good, bad = totals(document, document["window"], now)
    if good + bad >= document["minimum"] and burn_rate(good, bad, objective) >= spent:
        return f"it is used up: {bad} of {good + bad} runs failed"
    return None


def _added(ring: dict[str, Any], good: int, bad: int, now: float) -> list[list[int]]:
    index = _index(ring["seconds"], now)
    # A bucket of the future was written before the clock was set back: it is taken for the present.
    buckets = [[min(bucket[0], index), *bucket[1:]] for bucket in ring["buckets"]]
    buckets = [bucket for bucket in buckets if bucket[0] > index - BUCKETS]
    present = [bucket for bucket in buckets if bucket[0] == index]
    past = [bucket for bucket in buckets if bucket[0] < index]
    good += sum(bucket[1] for bucket in present)
    bad += sum(bucket[2] for bucket in present)
    return [*past, [index, good, bad]]


def _index(seconds: float, now: float) -> int:
    return math.floor(now * BUCKETS / seconds)


BurnListener = Callable[["BudgetStatus"], object]

burn_listeners: Listeners[BurnListener] = Listeners()


def add_burn_listener(listener: BurnListener) -> BurnListener:
    """Call `listener(status)` when a budget begins to burn, in the process whose runs made it burn."""
    return burn_listeners.add(listener)
