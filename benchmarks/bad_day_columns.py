"""The columns of `benchmarks.bad_day`: how each is defined, what is promised of it, and why ours is no better
than another where it is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.bad_day_figures import Figures
from benchmarks.bad_day_script import RIVALS

OURS = RIVALS[-1]
RECOVERED_AT_LEAST = 99.0
AFTER_OPENING_BELOW = 1.0
RECOVERY_BELOW = 10.0
LOAD_AT_MOST = 1.5

PROMISES = {
    "recovered": f"at least {RECOVERED_AT_LEAST:g} % of the transient failures are recovered",
    "after_opening": f"under {AFTER_OPENING_BELOW:g} % of calls reach a dead service once its circuit opened",
    "recovery_p95": f"p95 of the time to recovery is under {RECOVERY_BELOW:g} s",
    "load_at_return": f"a service that returns sees at most {LOAD_AT_MOST:g} times its usual load",
}


@dataclass(frozen=True)
class Column:
    """One column: the figure it shows, which way is better, and how it is defined."""

    figure: str
    title: str
    shown: Callable[[Figures], str]
    better: int
    meaning: str

    def is_no_better(self, own: Figures, other: Figures) -> bool:
        mine, theirs = getattr(own, self.figure), getattr(other, self.figure)
        return None not in (mine, theirs) and self.better != 0 and (mine - theirs) * self.better <= 0


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} %"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"


def _after_opening(row: Figures) -> str:
    if not row.opened_asked:
        return "never open" if row.has_circuits else "no circuit"
    return f"{_percent(row.after_opening)} ({row.opened_reached} for {row.opened_asked})"


COLUMNS = (
    Column(
        "success",
        "success",
        lambda row: f"{row.success:.2f} %",
        1,
        "calls whose task run ended completed, of all calls. An answer of the second provider counts.",
    ),
    Column(
        "by_own",
        "by its own service",
        lambda row: _percent(row.by_own),
        0,
        "calls that the service itself answered, of all calls; the other successes are answers of the second "
        "provider, which the two with circuits fall back on. An open circuit hands over calls that the "
        "service might have answered: the price of keeping callers away from one that may be dead.",
    ),
    Column(
        "recovered",
        "transient failures recovered",
        lambda row: "–" if row.recovered is None else f"{row.recovered:.1f} % of {row.hit}",
        1,
        "of the calls with at least one request that their own service failed (a call that was only refused "
        "by a circuit is none of them), those that ended with an answer.",
    ),
    Column(
        "dead",
        "requests to dead services",
        lambda row: f"{_percent(row.dead)} ({row.dead_reached} for {row.dead_asked})",
        -1,
        "requests that arrived at a service during its outage or while it was down, over the calls that the "
        "schedule has for it then. Retries make it more than 100 %.",
    ),
    Column(
        "after_opening",
        "of these after its circuit opened",
        _after_opening,
        -1,
        "the same, counted only while the service's circuit was not closed: from the first process that knew "
        "it open to the first that knew it closed. Probes of a dead service count.",
    ),
    Column(
        "wasted",
        "wasted",
        lambda row: f"{row.wasted:.0f} s",
        -1,
        "the time in requests that failed, summed over all of them: what workers waited for nothing. Pauses "
        "are no part of it.",
    ),
    Column(
        "recovery_p95",
        "p95 to recovery",
        lambda row: _seconds(row.recovery_p95),
        -1,
        "from the end of a call's first failed request to its answer, for those that recovered (–: none "
        "did). Calls that were lost are not in it: the more a way loses, the more it is flattered.",
    ),
    Column(
        "load_at_return",
        "load at return",
        lambda row: f"{row.load_at_return:.2f} ×",
        -1,
        "the busiest {peak:g} seconds of a service between its return and its next death, over what it "
        "usually gets in as many; the worst of all returns.",
    ),
)

SECOND_ANSWERS = "neither can do better: the second provider always answers."
SAME: Mapping[str, str] = {
    "success": SECOND_ANSWERS,
    "recovered": SECOND_ANSWERS,
    "after_opening": "neither circuit looked again before its service was back.",
}
"""Why a column is the same as that of the other who has circuits."""

CHANCE_OF_OPENING = (
    "both open after a handful of failures, ours counted over the fleet and the peer's in each process: "
    "which of them met these sooner was chance."
)
SCHEDULE = "this is the schedule's own load, bunched only where the machine made calls late."
WHY: Mapping[tuple[str, str], str] = {
    ("dead", "no retries"): "it makes one request a call, and loses the call.",
    ("wasted", "no retries"): "each call fails once, and is lost.",
    ("load_at_return", "no retries"): f"nothing is tried a second time, so nothing can pile up: {SCHEDULE}",
    ("recovery_p95", "retries"): "the calls that it lost, after all its delays, are not in its figure.",
    ("dead", "interlock + tenacity"): CHANCE_OF_OPENING,
    ("wasted", "interlock + tenacity"): CHANCE_OF_OPENING,
    ("recovery_p95", "interlock + tenacity"): (
        "the delays of both are the same, and the tail is a handful of calls: chance."
    ),
    ("load_at_return", "interlock + tenacity"): (
        f"what either refused was answered elsewhere, and does not come back: {SCHEDULE}"
    ),
}


def kept_promises(rows: Sequence[Figures]) -> dict[str, bool]:
    """Which of PROMISES the row of ours keeps; none without that row."""
    own = ours(rows)
    if own is None:
        return {}
    return {
        "recovered": own.recovered is not None and own.recovered >= RECOVERED_AT_LEAST,
        "after_opening": own.after_opening is not None and own.after_opening < AFTER_OPENING_BELOW,
        "recovery_p95": own.recovery_p95 is not None and own.recovery_p95 < RECOVERY_BELOW,
        "load_at_return": own.load_at_return <= LOAD_AT_MOST,
    }


def ours(rows: Sequence[Figures]) -> Figures | None:
    return next((row for row in rows if row.rival == OURS), None)


def not_better(rows: Sequence[Figures]) -> list[str]:
    """A sentence for each column in which ours is not better than another."""
    own = ours(rows)
    others = [row for row in rows if row is not own]
    return [
        f"*{column.title}* is no better than that of {row.rival}: {reason(column, own, row)}"
        for column in COLUMNS
        for row in others
        if own is not None and column.is_no_better(own, row)
    ]


def reason(column: Column, own: Figures, other: Figures) -> str:
    """Why this column of ours is no better than the other's."""
    why = WHY.get((column.figure, other.rival), "this run shows no reason.")
    same = getattr(own, column.figure) == getattr(other, column.figure) and other.has_circuits
    return SAME.get(column.figure, why) if same else why
