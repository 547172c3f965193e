"""How much of a period is replayed, and which values are worth a replay of their own. Pure.

The time of the advice is bounded for any record: see MOST_ATTEMPTS. Behind a circuit of many tasks, a first
round changes an option of every fourth task at once. What a value does to its own task's runs says whether
it is worth replays in which nothing else changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from prefect_resilience.operations.tuning.calls import ServiceRecord
from prefect_resilience.operations.tuning.candidates import LEAST_HIT, OptionToTry
from prefect_resilience.operations.tuning.evidence import is_plain
from prefect_resilience.operations.tuning.losses import task_losses
from prefect_resilience.operations.tuning.options import with_value
from prefect_resilience.operations.tuning.trials import ServiceTrials

MOST_ATTEMPTS = 500_000
"""About so many attempts are replayed for the first choice, and at most as many on top of what it chose."""

ATTEMPTS_OF_RUN = 3
"""About the attempts of a run that is replayed, those of runs that meet an open circuit included."""

MOST_OF_SERVICE, LEAST_OF_SERVICE = 10_000, 200
OF_TIMEOUT, OF_RETRY, OF_CIRCUIT = 20, 25, 40
"""About the number of values that are tried of a task's timeout, of its retries, and of a circuit."""

GROUPS = 4
SHARE_OF_WORTH = 0.3
"""An option is tried if it gains this share of what is worth a change, where other tasks change too."""

MOST_VALUES = 5
FINALISTS = 3
"""About so many values of an option are replayed often."""

ToTry = list[tuple[int, OptionToTry]]


@dataclass(slots=True)
class Effort:
    """What may be replayed of one service.

    most: the runs that are not plain in one replay. attempts: those in all replays for the first choice.
    """

    most: int
    attempts: float
    _before: int = 0
    _options: int = 0

    def replays(self, trials: ServiceTrials) -> float:
        """How many replays the effort allows."""
        return self.attempts / max(1, trials.replay(trials.options, 1).attempts)

    def share_out(self, trials: ServiceTrials, options: Sequence[OptionToTry]) -> None:
        """Decide how often each value is replayed, and how often those that may be the best."""
        replays = self.replays(trials)
        values = sum(len(one.values) for one in options)
        trials.few = min(trials.few, 2 if 6 * values <= replays else 1)
        finalists = max(1, FINALISTS * len(options))
        trials.sure = max(trials.few, min(trials.sure, int((replays - trials.few * values) / finalists)))

    def is_left(self, trials: ServiceTrials, options: int) -> bool:
        """Whether there is enough effort left to judge so many options, by what the last choice took."""
        took = (trials.spent - self._before) * options / self._options if self._options else 0
        self._before, self._options = trials.spent, options
        return trials.spent + took <= 2 * self.attempts or not took


def efforts_for(services: Sequence[ServiceRecord]) -> list[Effort]:
    """The effort for each service of a period. A service with few runs to replay leaves more to others."""
    needs = [_need(record) for record in services]
    level = _level(needs)
    parts = [number * min(need, level) for need, number in needs]
    whole = max(1.0, sum(parts))
    return [
        Effort(max(LEAST_OF_SERVICE, min(MOST_OF_SERVICE, int(level))), MOST_ATTEMPTS * part / whole)
        for part in parts
    ]


def _level(needs: Sequence[tuple[int, int]]) -> float:
    """The most runs of one replay, so that all replays together have MOST_ATTEMPTS."""
    left, replays = MOST_ATTEMPTS / ATTEMPTS_OF_RUN, sum(number for _, number in needs)
    for need, number in sorted(needs):
        if need > left / replays:
            return left / replays
        left -= need * number
        replays -= number
    return float(MOST_OF_SERVICE)


def _need(record: ServiceRecord) -> tuple[int, int]:
    """The runs of a service that are not plain, and about the number of its replays."""
    hit = [sum(not is_plain(run) for run in task.runs) for task in record.tasks]
    groups = hit if len(hit) <= GROUPS else hit[: 2 * GROUPS]
    replays = sum(OF_TIMEOUT + (OF_RETRY if number >= LEAST_HIT else 0) for number in groups)
    return max(1, sum(hit)), replays + OF_CIRCUIT


def _of_circuit(option: OptionToTry) -> bool:
    """Whether it changes a circuit that is there, and nothing else: the circuit of all tasks."""
    return all(path.startswith("circuit.") for path in option.paths)


def once_for_all(to_try: ToTry) -> ToTry:
    """Without the options of a circuit for all tasks but the first: they are the same."""
    seen: set[str] = set()
    found: ToTry = []
    for task, option in to_try:
        if not _of_circuit(option) or option.option not in seen:
            found.append((task, option))
            seen |= {option.option} if _of_circuit(option) else set()
    return found


def screened(trials: ServiceTrials, to_try: ToTry, effort: Effort) -> ToTry:
    """The options and values that may be worth a change, if there are more tasks than GROUPS.

    If they are more than there is effort for, those that seem to gain the most.
    """
    if len(trials.options) <= GROUPS:
        return to_try
    before = task_losses(trials.replay(trials.options, 1), trials.prices)
    least = SHARE_OF_WORTH * trials.worth(1)
    by_name: dict[str, ToTry] = {}
    for task, option in to_try:
        if not _of_circuit(option):
            by_name.setdefault(option.option, []).append((task, option))
    gained: dict[tuple[int, str], list[float]] = {}
    for name, some in by_name.items():
        for group in (some[at::GROUPS] for at in range(GROUPS)):
            for place in range(max((len(one.values) for _, one in group), default=0)):
                for task, gain in _gains(trials, group, place, before):
                    gained.setdefault((task, name), []).append(gain)
    found: dict[int, OptionToTry] = {}
    most: dict[int, float] = {}
    for at, (task, option) in enumerate(to_try):
        gains = gained.get((task, option.option))
        most[at] = math.inf if gains is None else max(gains)
        if most[at] >= least:
            found[at] = _best(option, gains)
    left = effort.replays(trials)
    for at in sorted(found, key=most.__getitem__, reverse=True):
        left -= len(found[at].values)
        if left < 0 and most[at] < math.inf:
            del found[at]
    return [(to_try[at][0], found[at]) for at in sorted(found)]


def _gains(
    trials: ServiceTrials, group: ToTry, place: int, before: Sequence[float]
) -> list[tuple[int, float]]:
    """What the value at a place gains for each task of a group: its own gain, and its part of that of
    others."""
    options, changed = list(trials.options), list[int]()
    for task, option in group:
        if place < len(option.values):
            changed.append(task)
            for path, value in option.changes(place).items():
                options[task] = with_value(options[task], path, value)
    after = task_losses(trials.replay(options, 1), trials.prices)
    own = {task: before[task] - after[task] for task in changed}
    others = max(0.0, sum(before) - sum(after) - sum(own.values()))
    return [(task, gain + others / len(own)) for task, gain in own.items()]


def _best(option: OptionToTry, gains: Sequence[float] | None) -> OptionToTry:
    """The option with the values that gained the most, in their order."""
    if gains is None or len(option.values) <= MOST_VALUES:
        return option
    order = sorted(range(len(gains)), key=lambda place: -gains[place])[:MOST_VALUES]
    return replace(option, values=tuple(option.values[place] for place in sorted(order)))
