"""Each piece of advice as a sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect_resilience.operations.tuning.report import ReplayFit, TuningFigures
from prefect_resilience.operations.tuning.service import ServiceModel

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


def lasting(seconds: float) -> str:
    """A duration in the unit that suits it: "41 minutes"."""
    for size, unit in ((172_800.0, 86_400.0), (7200.0, 3600.0), (120.0, 60.0)):
        if seconds >= size:
            name = {86_400.0: "days", 3600.0: "hours", 60.0: "minutes"}[unit]
            return f"{seconds / unit:,.0f} {name}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def fit_text(fit: ReplayFit) -> str:
    """How far off the replay of what really ran is."""
    if fit.recovered_off is None:
        return "no recorded run had a failed attempt, so the error of the replay is not known"
    waits = "" if fit.waited_off is None else f" and {fit.waited_off:.0f} % of the time waited"
    off = f"the replay of what really ran is off by {fit.recovered_off:.1f} points of recovered runs{waits}"
    return f"{off}: take this with care" if fit.doubtful else off


def fit_doubts(fit: ReplayFit) -> tuple[str, ...]:
    """The error of the replay as a doubt, if it is large."""
    return (fit_text(fit),) if fit.doubtful else ()


def likely_text(likely: Mapping[str, tuple[float, float]]) -> str | None:
    """Within which bounds the figures with the other options are."""
    if "share_recovered" not in likely:
        return None
    low, high = (100 * one for one in likely["share_recovered"])
    shortest, longest = (lasting(one) for one in likely["waited"])
    waits = shortest if shortest == longest else f"{shortest} to {longest}"
    return (
        f"with these options {low:.0f} to {high:.0f} % of the runs that had a failed attempt recover, "
        f"after {waits} of waiting, in nine of ten replays"
    )


def sentence_of(
    changes: Mapping[str, Any],
    now: Any,
    before: TuningFigures,
    after: TuningFigures,
    model: ServiceModel,
    task: int,
) -> str:
    """Why the options should change, with what it would have won and cost. now: the value of one option."""
    if len(changes) > 1:
        names = [f"{path.rpartition('.')[2]}={value:g}" for path, value in changes.items()]
        return f"{', '.join(names[:-1])} and {names[-1]}: {_won(before, after)}."
    [(option, better)] = changes.items()
    last = option.rpartition(".")[2]
    saved, more = before.seconds - after.seconds, after.recovered - before.recovered
    if option == "retry.attempts" and better < now:
        recovered = f"{max(0.0, -more):,.0f} of {before.hit:,.0f} runs that had a failed attempt"
        cost = f"{lasting(max(0.0, saved))}{_spared(before, after)}"
        return f"attempts={better}: {_attempts(better, now)} recovered {recovered} and cost {cost}."
    if option == "timeout":
        p999 = model.latency[task].at(0.999)
        known = "" if p999 is None else f"p99.9 is {p999:.2g} s; "
        return f"timeout={better:g}: {known}{_won(before, after)}."
    if option == "retry.backoff":
        return f"backoff from {better['initial']:g} s up to {better['maximum']:g} s: {_won(before, after)}."
    if option == "circuit":
        return f"a circuit: {_won(before, after)}."
    if option.startswith("retry.by_category."):
        return f"{better['attempts']} attempts for {last}: {_won(before, after)}."
    return f"{last}={better}: {_won(before, after)}."


def _attempts(better: int, now: int) -> str:
    first = f"the {ORDINALS[better]}" if better < len(ORDINALS) else f"attempt {better + 1}"
    return first if now == better + 1 else f"those from {first} on"


def _spared(before: TuningFigures, after: TuningFigures) -> str:
    spared = before.dead_calls - after.dead_calls
    return f" and {spared:,.0f} calls to a service in an outage" if spared >= 1 else ""


def _won(before: TuningFigures, after: TuningFigures) -> str:
    """What is won, and at which price."""
    won: list[str] = []
    cost: list[str] = []
    for number, one, several in (
        (before.failed - after.failed, "failed run", "failed runs"),
        (before.fallback - after.fallback, "run answered by a fallback", "runs answered by a fallback"),
        (
            before.dead_calls - after.dead_calls,
            "call to a service in an outage",
            "calls to a service in an outage",
        ),
    ):
        if abs(number) >= 0.5:
            noun = one if round(abs(number)) == 1 else several
            text = f"{abs(number):,.0f} {'fewer' if number > 0 else 'more'} {noun}"
            (won if number > 0 else cost).append(text)
    saved = before.seconds - after.seconds
    if abs(saved) >= 1:
        (won if saved > 0 else cost).append(
            f"{lasting(abs(saved))} {'less' if saved > 0 else 'more'} in runs"
        )
    text = ", ".join(won) or "a lower load when the service returns"
    return f"{text}, for {', '.join(cost)}" if cost else text
