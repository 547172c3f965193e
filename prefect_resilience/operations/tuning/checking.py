"""Whether advice that was applied came true: the runs since, beside what the replay predicted. Pure.

Two periods have different numbers of runs and different outages, so rates are compared, not sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from prefect_resilience.operations.tuning.applying import AppliedTuning, TuningChange
from prefect_resilience.operations.tuning.report import TuningFigures

FEWEST_RUNS, FEWEST_HIT = 100, 20
"""With fewer runs, or fewer runs with a failed first call, it is too early to say."""

NOTICEABLE = 0.02
"""A rate that was predicted to change by less than this share was not to change."""

MOSTLY, HARDLY = 0.5, 0.2
"""A change of at least the first share of the predicted one came true, of less than the second did not."""

Outcome = Literal["came true", "partly", "did not", "too early", "nothing to compare"]


class CheckedFigure(BaseModel):
    """One rate: before, as predicted, and since. `noise`: how far the last one may be off by chance."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    name: str
    before: float
    predicted: float
    since: float
    noise: float = 0.0

    @property
    def outcome(self) -> Outcome:
        """Whether the rate changed as predicted."""
        wanted, got = self.predicted - self.before, self.since - self.before
        if abs(wanted) <= NOTICEABLE * max(abs(self.before), abs(self.predicted)):
            return "nothing to compare"
        if self.noise >= MOSTLY * abs(wanted):
            return "too early"
        share = got / wanted
        return "came true" if share >= MOSTLY else "partly" if share >= HARDLY else "did not"


class CheckedChange(BaseModel):
    """One change of an option that was applied, and the rates that were to change."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    task: str
    option: str
    before: object
    after: object
    applied_at: float
    runs: float
    outcome: Outcome
    figures: tuple[CheckedFigure, ...] = ()


def checked(
    applied: Iterable[AppliedTuning], since: Mapping[str, Mapping[str, TuningFigures]]
) -> tuple[CheckedChange, ...]:
    """Each change. `since`: by application and task, the figures of the runs since."""
    return tuple(
        _checked(one, entry.at, since.get(entry.id, {}).get(one.task))
        for entry in applied
        for one in entry.changes
    )


def _checked(change: TuningChange, at: float, figures: TuningFigures | None) -> CheckedChange:
    told = CheckedChange(
        task=change.task,
        option=change.option,
        before=change.now,
        after=change.after,
        applied_at=at,
        runs=0.0 if figures is None else figures.runs,
        outcome="too early",
    )
    if figures is None or figures.runs < FEWEST_RUNS or figures.hit < FEWEST_HIT:
        return told
    if change.effect is None:
        return told.model_copy(update={"outcome": "nothing to compare"})
    rates = tuple(_rates(change.effect.now, change.effect.then, figures))
    return told.model_copy(update={"outcome": _all_in_all(rates), "figures": rates})


def _rates(before: TuningFigures, predicted: TuningFigures, since: TuningFigures) -> Iterable[CheckedFigure]:
    three = (before, predicted, since)
    shares = [one.share_recovered for one in three]
    if None not in shares:
        yield _rate("recovered, of the runs that were hit", shares, since.hit)
    yield _rate("failed, of all runs", [one.failed / max(1.0, one.runs) for one in three], since.runs)
    waits = [one.waited / max(1.0, one.hit) for one in three]
    yield _figure("seconds waited, of a run that was hit", waits, waits[2] / math.sqrt(since.hit))
    yield _figure("calls of a run", [one.calls / max(1.0, one.runs) for one in three], 0.0)
    p95 = [one.p95 for one in three]
    if None not in p95:
        yield _figure("p95 of a run, in seconds", p95, 0.0)


def _rate(name: str, values: list[float | None], number: float) -> CheckedFigure:
    share = values[2] or 0.0
    return _figure(name, values, 1.64 * math.sqrt(share * (1 - share) / number))


def _figure(name: str, values: list[float] | list[float | None], noise: float) -> CheckedFigure:
    before, predicted, since = (value or 0.0 for value in values)
    return CheckedFigure(name=name, before=before, predicted=predicted, since=since, noise=noise)


def _all_in_all(rates: Iterable[CheckedFigure]) -> Outcome:
    """It came true if most of the rates that were to change did."""
    outcomes = [one.outcome for one in rates]
    told = [one for one in outcomes if one not in ("nothing to compare", "too early")]
    if not told:
        return "too early" if "too early" in outcomes else "nothing to compare"
    true = told.count("came true")
    if 2 * true > len(told):
        return "came true"
    return "partly" if true or "partly" in told else "did not"
