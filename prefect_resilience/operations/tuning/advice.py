"""The advice for a period, and the comparison of a task's options with others. Pure.

    advise(period).advice
    what_if(period, "label", {"retry.attempts": 5, "timeout": 3}).figures

Three questions are asked, one option after the other: is the timeout far from what succeeds takes; do
attempts recover nothing, or would more or later ones; do the circuit's openings come too late or last too
long. Each value of a coarse grid is replayed. A change is advised only if the interval of its gain, by a
bootstrap over days, has no loss in it, and if it does not cost failed runs, or calls to a service in an
outage. The next option is judged with the change in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from prefect_resilience.base.text import lasting
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.operations.tuning.record import RecordedPeriod, policy_of, value_at, with_value
from prefect_resilience.operations.tuning.report import (
    EVERY_TASK,
    ComparedFigure,
    Comparison,
    OptionNote,
    TuningAdvice,
    TuningReport,
)
from prefect_resilience.operations.tuning.service_calls import Floats, ServiceCalls, services_of
from prefect_resilience.operations.tuning.simulation import Figure, PeriodReplay

PRICES = {Figure.SECONDS: 1.0, Figure.FAILED: 300.0, Figure.FALLBACK: 60.0, Figure.DEAD: 1.0}
"""What a period costs, in seconds of a run's time."""

LOSS = np.array([PRICES.get(figure, 0.0) for figure in Figure])
LOST = np.where(np.arange(len(Figure)) == Figure.SECONDS, 0.0, LOSS)
"""The part of the loss that runs and calls are, not time."""

DAY, DAYS, PARTS = 86_400.0, 7, 10
"""From so many days on the parts of a record are its days; a shorter one has so many equal parts."""

REPLAYS, RESAMPLES = 3, 2000
WORTH, NEARLY = 0.01, 0.7
"""A change must save this share of the loss, and this share of what the best value of the option saves."""

HARM, GREAT_HARM = 0.01, 0.1
"""More calls in outages than the first share of the runs that were hit are a harm. So are more failed runs,
if they are hardly chance or more than the second share."""

OFF = 0.1
"""Nothing is advised if a replay of what ran is off by failed runs that are this share of the runs hit."""

LEAST_HIT, LEAST_SUCCESSES, LEAST_OUTAGES = 30, 200, 3
TIMES = (2.0, 3.0, 5.0, 10.0)
"""Timeouts to try, as multiples of the 99.9th percentile of what succeeds takes."""

UNKNOWN_OPTIONS = "the options with which it ran are not known, so there is nothing to compare with"
OTHER_END = "a replay of what ran ends otherwise than the record: options changed, or a limit held it up"
OTHERS = "only timeouts, attempts, their delays, and openings that come too late or last too long are judged"
EVERYTHING_ELSE = OptionNote(task=EVERY_TASK, option="all other options", why=OTHERS)
ROWS = (
    ("runs that failed", "runs", Figure.FAILED, True),
    ("runs answered by a fallback", "runs", Figure.FALLBACK, True),
    ("runs recovered", "runs", Figure.RECOVERED, False),
    ("seconds in runs", "s", Figure.SECONDS, True),
    ("seconds waited", "s", Figure.WAITED, True),
    ("calls", "calls", Figure.CALLS, False),
    ("failed calls in outages", "calls", Figure.DEAD, True),
)
"""Name, unit, figure, and whether less is better."""

Options = Sequence[Mapping[str, Any]]


class _Judge:
    """The replays of one service. options: by task, those of now with the advised changes in them."""

    def __init__(self, service: ServiceCalls, period: RecordedPeriod) -> None:
        self.service: ServiceCalls = service
        self.options: Options = [task.options or {} for task in service.tasks]
        length = period.until - period.since
        parts = int(length / DAY) if length >= DAYS * DAY else PARTS
        self.borders: Floats = np.linspace(period.since, period.until, parts + 1)
        self._resamples = np.random.default_rng(0).integers(parts, size=(RESAMPLES, parts))

    def replay(self, options: Options) -> Floats:
        """The figures by task and part, the mean of replays with other luck and other ends of outages."""
        policies = [policy_of(document) for document in options]
        sums = [
            PeriodReplay(self.service, policies, self.borders, seed, (seed + 0.5) / REPLAYS).run()
            for seed in range(REPLAYS)
        ]
        return np.mean(sums, axis=0)

    def with_option(self, task: int, option: str, value: Any) -> Options:
        """The options with another value of one; a circuit's is that of all tasks behind it."""
        shared = option.startswith("circuit")
        return [
            with_value(setup, option, value) if place == task or (shared and setup.get("circuit")) else setup
            for place, setup in enumerate(self.options)
        ]

    def interval(self, by_part: Floats) -> list[float]:
        """The lower and the upper bound: nine times in ten the sum is within them."""
        return np.quantile(by_part[self._resamples].sum(axis=1), (0.05, 0.95)).tolist()

    def gains(self, task: int, option: str, value: Any, now: Floats, then: Floats) -> Floats:
        """By part, by how much the loss is lower.

        A shorter timeout is judged by the recorded calls alone, as it also moves the openings of a circuit:
        it saves the rest of each failed call; a success that took longer would be a failed run.
        """
        if option != "timeout":
            return ((now - then) @ LOSS).sum(axis=0)
        service = self.service
        saved = np.where(service.failed, np.maximum(service.seconds - value, 0.0), 0.0)
        saved -= PRICES[Figure.FAILED] * (~service.failed & (service.seconds > value))
        saved *= service.weight * (service.task == task)
        return np.histogram(service.start, self.borders, weights=saved)[0]

    def does_harm(self, option: str, now: Floats, then: Floats) -> bool:
        """Whether there are more failed runs, or more failed calls in outages.

        A run that a fallback answers is a failed one, unless the option is of a circuit: it rejects calls.
        """
        hit = now[..., Figure.HIT].sum()
        more = (then - now).sum(axis=0)
        failed = more[:, Figure.FAILED] + more[:, Figure.FALLBACK] * (not option.startswith("circuit"))
        least = HARM if self.interval(failed)[0] > 0 else GREAT_HARM
        return bool(failed.sum() > least * hit or more[:, Figure.DEAD].sum() > HARM * hit)

    def differs(self, now: Floats) -> bool:
        """Whether the replay of what ran is far from the record."""
        runs = [run for _, run in self.service.runs]
        failed = sum(run.weight for run in runs if run.ended != "succeeded")
        hit = sum(run.weight for run in runs if not run.attempts[0].succeeded)
        replayed = now[..., [Figure.FAILED, Figure.FALLBACK]].sum()
        return hit >= LEAST_HIT and abs(failed - replayed) > OFF * hit


def advise(period: RecordedPeriod) -> TuningReport:
    """What to change, with the evidence.

    Example:
        >>> advise(RecordedPeriod(since=0, until=86_400, tasks=())).advice
        ()
    """
    advice: list[TuningAdvice] = []
    refused: list[OptionNote] = []
    for service in services_of(period):
        judge = _Judge(service, period)
        now = judge.replay(judge.options)
        unknown = any(task.options is None for task in service.tasks)
        if unknown or judge.differs(now):
            why = UNKNOWN_OPTIONS if unknown else OTHER_END
            refused += [OptionNote(task=task.name, option="all options", why=why) for task in service.tasks]
            continue
        for number in range(len(service.tasks)):
            for option, values in _to_try(judge, number, refused):
                change = _best(judge, number, option, values, now)
                if change is not None:
                    now, tip = change
                    advice.append(tip)
    if period.tasks:
        refused.append(EVERYTHING_ELSE)
    return TuningReport(
        since=period.since,
        until=period.until,
        runs=period.runs,
        advice=tuple(advice),
        not_judged=tuple(refused),
        unknown=period.unknown,
    )


def _to_try(judge: _Judge, task: int, refused: list[OptionNote]) -> Iterator[tuple[str, list[Any]]]:
    """The options of a task that its record can judge, each with the values to try."""
    service, policy = judge.service, policy_of(judge.options[task])

    def refuse(option: str, why: str) -> None:
        refused.append(OptionNote(task=service.tasks[task].name, option=option, why=why))

    endings = sum(outage.ended for outage in service.outages)
    if policy.circuit is None:
        refuse("circuit", "the task has none")
    elif endings < LEAST_OUTAGES:
        refuse("circuit", f"{endings} outages ended in the record; {LEAST_OUTAGES} are needed")
    else:
        circuit, threshold = policy.circuit, policy.circuit.failure_threshold
        yield "circuit.failure_threshold", [number for number in (5, 10, 20) if number < threshold]
        longest = [period for period in (60.0, 120.0, 240.0) if circuit.open_for <= period < circuit.open_max]
        yield "circuit.open_max", longest
    seconds, now = service.successes(task), policy.timeout or np.inf
    if len(seconds) < LEAST_SUCCESSES:
        refuse("timeout", f"{len(seconds)} successes were seen; {LEAST_SUCCESSES} are needed")
    elif now < TIMES[0] * (slowest := _p999(service, task)):
        refuse("timeout", f"p99.9 of its successes is {lasting(slowest)}: what it cuts is not in the record")
    else:
        values = [float(f"{max(0.1, slowest * times):.2g}") for times in TIMES]
        yield "timeout", [value for value in values if value < now]
    hit = sum(number == task and not run.attempts[0].succeeded for number, run in service.runs)
    if hit < LEAST_HIT:
        refuse("retry", f"{hit} runs had a failed first attempt; {LEAST_HIT} are needed")
    else:
        attempts, backoff = policy.retry.attempts, cast(Backoff, policy.retry.backoff)
        yield "retry.attempts", [number for number in (1, 2, 3, 4, 5, 6, 8, 10) if number != attempts]
        more = {"kind": "exponential", "maximum": 30.0, "jitter": max(0.2, backoff.jitter)}
        delays = (delay for delay in (1.0, 2.0, 4.0, 8.0) if delay > backoff.delay(0))
        yield "retry.backoff", [{"initial": delay, **more} for delay in delays]


def _p999(service: ServiceCalls, task: int) -> float:
    return float(np.quantile(service.successes(task), 0.999))


def _best(
    judge: _Judge, task: int, option: str, values: Sequence[Any], now: Floats
) -> tuple[Floats, TuningAdvice] | None:
    """The value to advise, if one is clearly better, and the period with it.

    Of the values that gain nearly as much as the best one, it is the one that loses the fewest runs.
    """
    good: list[tuple[float, float, Any, Floats]] = []
    for value in values:
        then = judge.replay(judge.with_option(task, option, value))
        gains = judge.gains(task, option, value, now, then)
        sure = judge.interval(gains)[0] > 0 and gains.sum() > WORTH * (now @ LOSS).sum()
        if sure and not judge.does_harm(option, now, then):
            good.append((-float((then @ LOST).sum()), float(gains.sum()), value, then))
    if not good:
        return None
    most = max(gain for _, gain, _, _ in good)
    _, gain, value, then = max((row for row in good if row[1] >= NEARLY * most), key=lambda row: row[:2])
    service, saved = judge.service, (now - then)[task].sum(axis=0)
    low, high = judge.interval(judge.gains(task, option, value, now, then))
    figures = {figure.name.lower(): float(number) for figure, number in zip(Figure, saved, strict=True)}
    hit, present = float(now[task, :, Figure.HIT].sum()), value_at(judge.options[task], option)
    why = _why(service, task, option, present, value, hit, saved)
    evidence, name = {**figures, "hit": hit, "gain": gain, "low": low, "high": high}, service.tasks[task].name
    advice = TuningAdvice(task=name, option=option, now=present, better=value, why=why, evidence=evidence)
    judge.options = judge.with_option(task, option, value)
    return then, advice


def _why(
    service: ServiceCalls, task: int, option: str, now: Any, value: Any, hit: float, saved: Floats
) -> str:
    """Why the option should change, with what it would have won and cost."""
    seconds = float(saved[Figure.SECONDS])
    if option == "retry.attempts" and value < now:
        recovered = f"{max(0.0, saved[Figure.RECOVERED]):,.0f} of {hit:,.0f} runs that had a failed attempt"
        cost = lasting(max(0.0, seconds))
        return f"attempts={value}: further attempts recovered {recovered} and cost {cost}."
    won, lost = list[str](), list[str]()
    for name, _, figure, _ in ROWS:
        number = float(saved[figure])
        if LOST[figure] and abs(number) >= 0.5:
            text = f"{abs(number):,.0f} {'fewer' if number > 0 else 'more'} {name}"
            (won if number > 0 else lost).append(text)
    if abs(seconds) >= 1:
        text = f"{lasting(abs(seconds))} {'less' if seconds > 0 else 'more'} in runs"
        (won if seconds > 0 else lost).append(text)
    name = f"{option.rpartition('.')[2]}={value}"
    if option == "timeout":
        name += f", p99.9 is {lasting(_p999(service, task))}"
    if option == "retry.backoff":
        name = f"a first delay of {value['initial']:g} s"
    return f"{name}: {', '.join(won)}{', for ' if lost else ''}{', '.join(lost)}."


def what_if(period: RecordedPeriod, task: str, options: Mapping[str, object]) -> Comparison:
    """The period again with other options of one task, side by side with its own options.

    options: the values by their places in a `ResiliencePolicy` block, as in {"retry.attempts": 5}. Raises
    ConfigurationError for a task without runs or known options, and for options that are unknown or invalid.
    """
    for service in services_of(period):
        for place, record in enumerate(service.tasks):
            if record.name == task and record.options is not None:
                judge = _Judge(service, period)
                documents = [*judge.options]
                for path, value in options.items():
                    documents[place] = with_value(documents[place], path, value)
                now, then = judge.replay(judge.options), judge.replay(documents)
                return _comparison(judge, place, now, then)
    raise ConfigurationError(f"task {task!r} has no runs with known options in this period")


def _comparison(judge: _Judge, task: int, now: Floats, then: Floats) -> Comparison:
    rows: list[ComparedFigure] = []
    for name, unit, figure, less in ROWS:
        before, after = now[task, :, figure], then[task, :, figure]
        low, high = judge.interval(after - before)
        better = high < 0 if less and (low > 0 or high < 0) else None
        both = {"now": float(before.sum()), "then": float(after.sum()), "low": low, "high": high}
        rows.append(ComparedFigure(name=name, unit=unit, better=better, **both))
    name, runs = judge.service.tasks[task].name, float(now[task, :, Figure.RUNS].sum())
    return Comparison(task=name, runs=runs, figures=tuple(rows))
