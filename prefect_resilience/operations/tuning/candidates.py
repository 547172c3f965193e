"""The other values of each option that are worth a try, and the options that a record cannot judge. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.operations.tuning.calls import ServiceRecord
from prefect_resilience.operations.tuning.options import Options, TaskPolicy, value_at
from prefect_resilience.operations.tuning.report import NotJudged
from prefect_resilience.operations.tuning.service import ServiceModel

LEAST_HIT = 30
LEAST_OUTAGES = 3
LEAST_SUCCESSES = 300
LEAST_BY_CATEGORY = 30
STEP = 1.25
ATTEMPTS = (1, 2, 3, 4, 5, 6, 8, 10)
DELAYS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
ELAPSED = (15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
IN_CIRCUIT: Mapping[str, tuple[Any, ...]] = {
    "failure_threshold": (2, 3, 4, 5, 7, 10, 15, 20, 30),
    "failure_rate": (0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 0.95),
    "window": ("10s", "30s", "60s", "120s", "300s"),
    "open_for": (2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0),
}
OPENINGS = "openings"
"""The lengths of openings: several options at once, because one alone moves failed runs against calls to a
service in an outage."""

SAME_LENGTH = (20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0)
LONGEST = (240.0, 120.0, 60.0)


@dataclass(frozen=True)
class OptionToTry:
    """One option of one task, with the values to try, the nearest to the present one first.

    joint: each value is of several options, by their places in the policy.
    """

    option: str
    now: Any
    values: tuple[Any, ...]
    joint: bool = False

    def changes(self, place: int) -> dict[str, Any]:
        """The options that a value changes, by their places in the policy, with their values."""
        value = self.values[place]
        return dict(value) if self.joint else {self.option: value}

    @property
    def paths(self) -> frozenset[str]:
        """The places in the policy of all options that some value changes."""
        return frozenset(path for place in range(len(self.values)) for path in self.changes(place))

    def with_timeout(self, seconds: float) -> OptionToTry:
        """The same values, each together with a timeout."""
        values = tuple({"timeout": seconds, **self.changes(place)} for place in range(len(self.values)))
        return OptionToTry(f"timeout and {self.option}", None, values, joint=True)


@dataclass(frozen=True)
class Judged:
    """What of a task can be judged, and what cannot."""

    to_try: tuple[OptionToTry, ...]
    not_judged: tuple[NotJudged, ...]


def options_to_try(
    record: ServiceRecord, model: ServiceModel, task: int, options: Options, policy: TaskPolicy
) -> Judged:
    """The options of a task that its record can judge."""
    name = record.tasks[task].name
    hit = sum(bool(run.attempts) and not run.attempts[0].succeeded for run in record.tasks[task].runs)
    to_try: list[OptionToTry] = []
    refused: list[NotJudged] = []

    def refuse(option: str, why: str) -> None:
        refused.append(NotJudged(task=name, option=option, why=why))

    if hit < LEAST_HIT:
        refuse("retry", f"only {hit} runs had a failed first attempt; {LEAST_HIT} are needed")
    else:
        to_try += _of_retry(model, policy)
    _of_timeout(model, task, policy, to_try, refuse)
    seen = sum(not one.censored for one in model.outages)
    if seen < LEAST_OUTAGES:
        refuse("circuit", f"{seen} outages ended in the record; {LEAST_OUTAGES} are needed")
    elif policy.circuit is not None:
        to_try += _of_circuit(policy.circuit)
    else:
        plain = {"name": record.name, "failure_threshold": CircuitPolicy().failure_threshold}
        to_try.append(OptionToTry("circuit", None, (plain,)))
    _of_limit(record, task, policy, to_try, refuse)
    if value_at(options, "hedge") is None:
        refuse("hedge", "the record does not say whether a second call at the same time is harmless")
    else:
        refuse("hedge", "the record has the time of the quickest call only, not of those that were cancelled")
    if policy.falls_back:
        refuse(
            "fallback", "the record does not say what the fallbacks that were not used would have answered"
        )
    return Judged(tuple(to_try), tuple(refused))


def _nearest(values: Iterable[Any], now: float) -> tuple[Any, ...]:
    """The values other than that of now, the nearest (by their ratio) first."""
    others = [value for value in values if abs(value - now) > 1e-9 * max(1.0, now)]
    return tuple(sorted(others, key=lambda value: max(value, now) / max(1e-9, min(value, now))))


def _of_retry(model: ServiceModel, policy: TaskPolicy) -> list[OptionToTry]:
    retry, backoff = policy.retry, cast(Backoff, policy.retry.backoff)
    found = [OptionToTry("retry.attempts", retry.attempts, _nearest(ATTEMPTS, retry.attempts))]
    if retry.attempts > 1:
        written = backoff.model_dump(mode="json", exclude={"minimum", "jitter_kind"}, exclude_defaults=False)
        now = backoff.delays[0] if backoff.delays else backoff.initial
        values = tuple(
            {"kind": "exponential", "initial": initial, "multiplier": 2.0, "maximum": max(30.0, 4 * initial)}
            | {"jitter": max(0.2, backoff.jitter)}
            for initial in _nearest(DELAYS, max(0.01, now) if backoff.kind != "none" else 0.01)
        )
        found.append(OptionToTry("retry.backoff", written, values))
        now_elapsed = retry.max_elapsed
        elapsed = ELAPSED[::-1] if now_elapsed is None else _nearest(ELAPSED, now_elapsed)
        found.append(OptionToTry("retry.max_elapsed", now_elapsed, elapsed))
    for category, recovering in model.recovering.items():
        if recovering.tried >= LEAST_BY_CATEGORY and len(model.recovering) > 1 and not retry.rules:
            rule = {"backoff": backoff.model_dump(mode="json")}
            values = tuple({"attempts": n, **rule} for n in _nearest((1, 2, 3, 5, 8), retry.attempts))
            found.append(OptionToTry(f"retry.by_category.{category}", None, values))
    return found


def _of_timeout(
    model: ServiceModel, task: int, policy: TaskPolicy, to_try: list[OptionToTry], refuse: Any
) -> None:
    latency = model.latency[task]
    least = latency.at(0.995)
    if len(latency.seen) < LEAST_SUCCESSES or least is None:
        why = f"{len(latency.seen)} successes were seen; {LEAST_SUCCESSES} are needed"
        refuse("timeout", why if least is not None or not latency.seen else "too many calls were cut by it")
        return
    least = max(least, 0.05)
    # Without a timeout, the longest call that was seen is where shorter ones begin.
    longest = max([*latency.seen[-1:], *(seconds[-1] for seconds in model.failing.values())])
    now = policy.timeout or max(longest, 2 * least)
    values = [rounded(least * STEP**step) for step in range(60) if least * STEP**step < now]
    if policy.timeout is not None and latency.slow:
        values += [rounded(policy.timeout * STEP**step) for step in range(1, 4)]
    to_try.append(OptionToTry("timeout", policy.timeout, _nearest(values, now)))


def rounded(seconds: float) -> float:
    """Two digits, as a person would write it."""
    return float(f"{seconds:.2g}")


def _of_circuit(circuit: CircuitPolicy) -> list[OptionToTry]:
    found: list[OptionToTry] = []
    for option, values in IN_CIRCUIT.items():
        now = getattr(circuit, option)
        if option != "window":
            found.append(OptionToTry(f"circuit.{option}", now, _nearest(values, now)))
        elif isinstance(circuit.window_size, float):
            order = _nearest([float(value[:-1]) for value in values], circuit.window_size)
            found.append(OptionToTry("circuit.window", now, tuple(f"{value:g}s" for value in order)))
    capped = [{"circuit.open_max": longest} for longest in LONGEST if longest < circuit.open_max]
    same = [
        {"circuit.open_for": length, "circuit.open_backoff": 1.0}
        for length in _nearest(SAME_LENGTH, circuit.open_for)
        if circuit.open_backoff != 1.0
    ]
    if capped or same:
        found.append(OptionToTry(OPENINGS, None, (*capped, *same), joint=True))
    return found


def _of_limit(
    record: ServiceRecord, task: int, policy: TaskPolicy, to_try: list[OptionToTry], refuse: Any
) -> None:
    if policy.places is None:
        refuse("limits", "the task has no limit, and the record does not say how much its service bears")
        return
    held_up = sum(call.waited_in_line for call in record.calls if call.task == task)
    rejected = sum(
        attempt.rejected_by == "limit" for run in record.tasks[task].runs for attempt in run.attempts
    )
    if held_up + rejected < LEAST_HIT:
        refuse("limits", f"it held up {held_up + rejected} calls; {LEAST_HIT} are needed to judge it")
        return
    values = sorted({max(policy.places + 1, round(policy.places * STEP**step)) for step in range(1, 9)})
    to_try.append(OptionToTry("limits.max_concurrent", policy.places, tuple(values)))
