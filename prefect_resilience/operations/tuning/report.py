"""What `tune` and `what-if` report: advice with its evidence, comparisons, and how good the replay is. Pure.

Durations are seconds. Intervals hold nine times in ten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, computed_field

if TYPE_CHECKING:
    from prefect_resilience.operations.tuning.applying import AppliedTuning

TuningGoal = Literal["recover", "latency", "load"]
"""What matters more than usual: runs that end well, short runs, or few calls to a service in trouble."""

GOOD_SHARE, GOOD_WAITS = 2.0, 15.0
"""A replay is good within so many points of recovered runs and so many percent of the time waited."""

BAD_SHARE, BAD_WAITS, BAD_FROM = 10.0, 50.0, 50
"""No advice is given from a replay that is off by more, if so many runs at least had a failed attempt."""

CARE, SURELY = 2.0, 3.0
"""How many standard deviations an error must be over, so that it is not the luck of the recorded runs."""


class _Reported(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)


class TuningFigures(_Reported):
    """What a period looks like under one policy; numbers of runs are estimates, so they may have decimals.

    hit: the runs whose first call was not a success; of them `recovered` succeeded in the end.
    failed, fallback: how the others ended. seconds: the sum of the durations of all runs.
    waited: of this, the sum of the delays before retries. calls: the calls that reached the service.
    dead_calls: the failed calls that reached the service during its outages.
    load_at_return: the load in the first seconds after an outage, divided by the usual load; the worst one.
        None without an outage that ended.
    p95: the 95th percentile of a run's duration.
    """

    runs: float = 0.0
    hit: float = 0.0
    recovered: float = 0.0
    failed: float = 0.0
    fallback: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0
    calls: float = 0.0
    dead_calls: float = 0.0
    load_at_return: float | None = None
    p95: float | None = None

    @property
    def share_recovered(self) -> float | None:
        """Of the runs that were hit, the share that succeeded in the end; None if none was hit."""
        return self.recovered / self.hit if self.hit else None


class ReplayFit(_Reported):
    """The recorded period beside its replay with the policy that really ran: the error of the replay.

    Of a large period both are of a part of the runs, with weights.
    """

    task: str
    recorded: TuningFigures
    replayed: TuningFigures

    @computed_field
    @property
    def recovered_off(self) -> float | None:
        """The difference of the shares of recovered runs, in percentage points."""
        recorded, replayed = self.recorded.share_recovered, self.replayed.share_recovered
        return None if recorded is None or replayed is None else 100 * abs(recorded - replayed)

    @computed_field
    @property
    def waited_off(self) -> float | None:
        """The difference of the seconds waited, in percent of those recorded."""
        if not self.recorded.waited:
            return None
        return 100 * abs(self.replayed.waited - self.recorded.waited) / self.recorded.waited

    @computed_field
    @property
    def doubtful(self) -> bool:
        """Whether the replay is off by more than the luck of the recorded runs explains."""
        return self._off(GOOD_SHARE, GOOD_WAITS, CARE)

    @computed_field
    @property
    def bad(self) -> bool:
        """Whether it is so far off that nothing can be advised from it."""
        return self.recorded.hit >= BAD_FROM and self._off(BAD_SHARE, BAD_WAITS, SURELY)

    def _off(self, share: float, waits: float, deviations: float) -> bool:
        hit, recovered = self.recorded.hit, self.recorded.share_recovered
        if recovered is None:
            return False
        # The luck of so many runs: binomial for the share, that of a sum of exponential waits for the waits.
        of_share = 100 * math.sqrt(max(recovered * (1 - recovered), 1 / (hit + 1)) / hit)
        of_waits = 100 * math.sqrt(2 / hit)
        return (self.recovered_off or 0.0) > max(share, deviations * of_share) or (
            self.waited_off or 0.0
        ) > max(waits, deviations * of_waits)


def fit_together(fits: Sequence[ReplayFit]) -> ReplayFit:
    """The fit of several tasks behind one service: of few runs of one task, luck is most of the error."""

    def total(figures: Sequence[TuningFigures]) -> TuningFigures:
        return TuningFigures(
            hit=sum(one.hit for one in figures),
            recovered=sum(one.recovered for one in figures),
            waited=sum(one.waited for one in figures),
        )

    recorded, replayed = [one.recorded for one in fits], [one.replayed for one in fits]
    names = ", ".join(one.task for one in fits)
    return ReplayFit(task=names, recorded=total(recorded), replayed=total(replayed))


class ComparedFigure(_Reported):
    """One figure under two policies. `low` and `high` bound the difference `then - now`.

    better: whether `then` is clearly better; None if the interval includes 0.
    """

    name: str
    unit: str
    now: float | None
    then: float | None
    low: float | None = None
    high: float | None = None
    better: bool | None = None


class Comparison(_Reported):
    """A period with the options of now and with others, side by side; `fit` is the error of the replay.

    options: the options that differ, in the form of a `ResiliencePolicy` block.
    likely: bounds of two figures of `then`: "share_recovered" (0 to 1) and "waited". They are as far apart as
        replays with other luck, and with other ends of outages that no call saw.
    doubts: what the record does not bear, in sentences.
    """

    task: str
    runs: float
    options: dict[str, JsonValue]
    now: TuningFigures
    then: TuningFigures
    figures: tuple[ComparedFigure, ...]
    likely: dict[str, tuple[float, float]] = Field(default_factory=dict)
    fit: ReplayFit | None = None
    doubts: tuple[str, ...] = ()


class TuningAdvice(_Reported):
    """One option to change.

    option: its place in a `ResiliencePolicy` block, as in "retry.attempts" or "circuit.open_for".
    now, better: its values. why: one sentence. evidence: the numbers behind it: `runs`, `hit`, `won` and
        `lost` runs, `seconds` and `dead_calls` saved, `gain` with `low` and `high` (in seconds that a run
        would wait, see `advising`), and numbers of this option such as `p999`.
    effect: the period with the option of now and with the better one.
    """

    task: str
    option: str
    now: JsonValue
    better: JsonValue
    why: str
    evidence: dict[str, float | None] = Field(default_factory=dict)
    effect: Comparison | None = None


class NotJudged(_Reported):
    """An option that the record cannot judge, and the reason in one sentence."""

    task: str
    option: str
    why: str


class TuningReport(_Reported):
    """The advice of a period; what is not named in `advice` or `not_judged` was judged and is fine.

    runs: the number of runs in the record. unknown: what the record itself lacks.
    """

    since: float
    until: float
    runs: int
    goal: TuningGoal | None = None
    advice: tuple[TuningAdvice, ...] = ()
    not_judged: tuple[NotJudged, ...] = ()
    fits: tuple[ReplayFit, ...] = ()
    unknown: dict[str, str] = Field(default_factory=dict)

    def apply(self) -> AppliedTuning | None:
        """Write the advice to the tasks' `ResiliencePolicy` blocks; None if no block would change.

        The old values are stored first: `prefect-resilience tune --undo` restores them. Advice for a task
        without a block is left out. Raises StoreUnavailable, and ReportError if there is no Prefect API.

            tune("7d").apply()
        """
        from prefect_resilience.operations.tuning.changing import apply_changes, planned

        return apply_changes(self, planned(self))
