"""The columns of `benchmarks.bad_day`: how each is defined, which limits it has, and why another way is as
good or better where it is."""

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
    "recovery_p95": f"the p95 recovery time is under {RECOVERY_BELOW:g} s",
    "load_at_return": f"a service that recovers gets at most {LOAD_AT_MOST:g} times its usual load",
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
        "share of all calls with a completed task run. An answer of the second provider counts.",
    ),
    Column(
        "by_own",
        "by the service itself",
        lambda row: _percent(row.by_own),
        0,
        "share of all calls that the service itself answered. The other successes are answers of the second "
        "provider, the fallback of the two ways with circuits. An open circuit also rejects calls that the "
        "service might have answered: that is the cost of not calling a service that may be dead.",
    ),
    Column(
        "recovered",
        "transient failures recovered",
        lambda row: "–" if row.recovered is None else f"{row.recovered:.1f} % of {row.hit}",
        1,
        "of the calls with at least one failed request to their service, the share that got an answer in the "
        "end. A call that a circuit rejected without any request does not count.",
    ),
    Column(
        "dead",
        "requests to dead services",
        lambda row: f"{_percent(row.dead)} ({row.dead_reached} for {row.dead_asked})",
        -1,
        "requests that arrived at a service during its outage or while it was down, divided by the calls in "
        "the schedule for that time. Retries can make it more than 100 %.",
    ),
    Column(
        "after_opening",
        "after the circuit opened",
        _after_opening,
        -1,
        "the same, counted only while the service's circuit was not closed: from the first process in which "
        "it was open to the first in which it was closed again. Probes of a dead service count.",
    ),
    Column(
        "wasted",
        "time wasted",
        lambda row: f"{row.wasted:.0f} s",
        -1,
        "the sum of the time of all failed requests. Delays before retries do not count.",
    ),
    Column(
        "recovery_p95",
        "p95 recovery time",
        lambda row: _seconds(row.recovery_p95),
        -1,
        "from the end of a call's first failed request to its answer, for the calls that recovered (–: none "
        "did). Lost calls are not in it, which favors a way that loses many.",
    ),
    Column(
        "load_at_return",
        "load after recovery",
        lambda row: f"{row.load_at_return:.2f} ×",
        -1,
        "requests in the busiest {peak:g} seconds of a service between its recovery and its next outage, "
        "divided by its usual number in as many seconds. The worst of all recoveries.",
    ),
)

SECOND_ANSWERS = "neither can be better, because the second provider always answers."
SAME: Mapping[str, str] = {
    "success": SECOND_ANSWERS,
    "recovered": SECOND_ANSWERS,
    "after_opening": "neither circuit sent a probe before its service was back.",
}
"""Why a column is the same as that of the other way with circuits."""

CHANCE_OF_OPENING = (
    "both circuits open after a few failures, counted over the fleet here and in each process there. Which "
    "of the two reached that number sooner was chance."
)
SCHEDULE = "this is the load of the schedule itself; the machine made some calls late."
WHY: Mapping[tuple[str, str], str] = {
    ("dead", "no retries"): "it makes one request per call, and loses the call.",
    ("wasted", "no retries"): "each failed call makes one request, and is lost.",
    ("load_at_return", "no retries"): f"without retries no calls accumulate: {SCHEDULE}",
    ("recovery_p95", "retries"): "the calls that it lost after all its delays are not counted.",
    ("dead", "interlock + tenacity"): CHANCE_OF_OPENING,
    ("wasted", "interlock + tenacity"): CHANCE_OF_OPENING,
    ("recovery_p95", "interlock + tenacity"): (
        "both have the same delays, and the p95 depends on a few calls: chance."
    ),
    ("load_at_return", "interlock + tenacity"): (
        f"the second provider answered the rejected calls, so they do not accumulate: {SCHEDULE}"
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
    """A sentence for each column in which ours is not better than that of another way."""
    own = ours(rows)
    others = [row for row in rows if row is not own]
    return [
        f"*{column.title}*, compared with {row.rival}: {reason(column, own, row)}"
        for column in COLUMNS
        for row in others
        if own is not None and column.is_no_better(own, row)
    ]


def reason(column: Column, own: Figures, other: Figures) -> str:
    """Why this column of ours is not better than the other one."""
    why = WHY.get((column.figure, other.rival), "this run does not show why.")
    same = getattr(own, column.figure) == getattr(other, column.figure) and other.has_circuits
    return SAME.get(column.figure, why) if same else why
