"""How much of a period is replayed, and which values are worth a replay of their own. Pure.

The time of the advice is bounded for any record: all replays together are of at most about MOST_EVENTS runs
that are not plain. Behind a circuit of many tasks, a first round changes an option of every fourth task at
once. What a value does to its own task's runs says whether it is worth a replay in which nothing else
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from prefect_resilience.operations.tuning.calls import ServiceRecord
from prefect_resilience.operations.tuning.candidates import LEAST_HIT, OptionToTry
from prefect_resilience.operations.tuning.evidence import is_plain
from prefect_resilience.operations.tuning.losses import Prices, task_losses
from prefect_resilience.operations.tuning.options import with_value
from prefect_resilience.operations.tuning.replaying import ReplaySums

MOST_EVENTS = 800_000
MOST_OF_SERVICE, LEAST_OF_SERVICE = 10_000, 200
OF_TIMEOUT, OF_RETRY, OF_CIRCUIT = 20, 25, 30
"""About the number of values that are tried of a task's timeout, of its retries, and of a circuit."""

GROUPS = 4
SHARE_OF_WORTH = 0.3
"""An option is tried if it gains this share of what is worth a change, where other tasks change too."""

MOST_VALUES = 5

Options = dict[str, Any]
ToTry = list[tuple[int, OptionToTry]]


def most_replayed(services: Iterable[ServiceRecord]) -> int:
    """The most runs that are not plain in each replay, so that all replays have at most MOST_EVENTS."""
    needs = sorted(_need(record) for record in services)
    left, replays = float(MOST_EVENTS), sum(number for _, number in needs)
    for need, number in needs:
        level = left / replays
        if need > level:
            return max(LEAST_OF_SERVICE, min(MOST_OF_SERVICE, int(level)))
        left -= need * number
        replays -= number
    return MOST_OF_SERVICE


def _need(record: ServiceRecord) -> tuple[int, int]:
    """The runs of a service that are not plain, and about the number of its replays."""
    hit = [sum(not is_plain(run) for run in task.runs) for task in record.tasks]
    groups = hit if len(hit) <= GROUPS else hit[: 2 * GROUPS]
    replays = sum(OF_TIMEOUT + (OF_RETRY if number >= LEAST_HIT else 0) for number in groups)
    return sum(hit), replays + OF_CIRCUIT


def once_for_all(to_try: ToTry) -> ToTry:
    """Without the options of a circuit for all but its first task: they are the same for all."""
    seen: set[str] = set()
    found: ToTry = []
    for task, option in to_try:
        if option.option.startswith("circuit."):
            if option.option in seen:
                continue
            seen.add(option.option)
        found.append((task, option))
    return found


def screened(
    to_try: ToTry,
    options: Sequence[Options],
    replay: Callable[[list[Options]], ReplaySums],
    prices: Prices,
    worth: float,
) -> ToTry:
    """The options and values that may be worth a change, if there are more tasks than GROUPS.

    worth: the gain from which a change is worth its trouble.
    """
    if len(options) <= GROUPS:
        return to_try
    before = task_losses(replay(list(options)), prices)
    gained: dict[tuple[int, str], list[float]] = {}
    names = dict.fromkeys(one.option for _, one in to_try if not one.option.startswith("circuit"))
    for name in names:
        mine = [(task, one) for task, one in to_try if one.option == name]
        for group in range(GROUPS):
            for place in range(max(len(one.values) for _, one in mine)):
                changed = {
                    task: one.values[place] for task, one in mine[group::GROUPS] if place < len(one.values)
                }
                if changed:
                    after = task_losses(replay(_changed(options, name, changed)), prices)
                    others = sum(before) - sum(after) - sum(before[task] - after[task] for task in changed)
                    for task in changed:
                        gain = before[task] - after[task] + max(0.0, others / len(changed))
                        gained.setdefault((task, name), []).append(gain)
    return [
        (task, _best(one, gained.get((task, one.option))))
        for task, one in to_try
        if max(gained.get((task, one.option), [worth])) >= SHARE_OF_WORTH * worth
    ]


def _changed(options: Sequence[Options], name: str, values: dict[int, Any]) -> list[Options]:
    return [
        with_value(one, name, values[task]) if task in values else one for task, one in enumerate(options)
    ]


def _best(option: OptionToTry, gains: list[float] | None) -> OptionToTry:
    """The option with the values that gained the most, in their order."""
    if gains is None or len(option.values) <= MOST_VALUES:
        return option
    order = sorted(range(len(gains)), key=lambda place: -gains[place])[:MOST_VALUES]
    return replace(option, values=tuple(option.values[place] for place in sorted(order)))
