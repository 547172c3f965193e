"""From pages of the Prefect API to the record of a period. Pure.

The final event of a run that was retried or failed (`run.recovered`, `run.failed`, `fallback.used`) has all
its attempts. Runs that succeeded at once have no event; they are rows of task runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from random import Random
from typing import Any, cast

from prefect_resilience.operations.reports.figures import FINAL, function_of, task_of
from prefect_resilience.operations.tuning.record import (
    RecordedAttempt,
    RecordedCircuit,
    RecordedOpening,
    RecordedRun,
    RecordedTask,
)

ENDS = {"run.recovered": "succeeded", "run.failed": "failed", "fallback.used": "fallback"}
"""The final events of runs with failures, and how such a run ended."""

ROW_ENDS = {"CRASHED": "crashed", "CANCELLED": "cancelled"}
PLAIN = "Completed"
FINALLY = frozenset({"Completed", "Failed", "TimedOut", "Fallback", "Degraded"})
"""States of runs that an event reports, unless they succeeded at once."""


@dataclass(frozen=True, slots=True)
class KnownOptions:
    """The options of one task. `changed_at`: when another set of options was replaced by them, if known.

    mixed: other options are in use at the same time.
    """

    task: str
    task_key: str
    options: dict[str, object]
    block: str | None = None
    changed_at: float | None = None
    mixed: bool = False


@dataclass(frozen=True, slots=True)
class NamedRun:
    """A run, and the name of its task."""

    task: str
    run: RecordedRun


@dataclass(frozen=True, slots=True)
class SeenRows:
    """What rows of task runs show: the runs without failures, and the runs whose failures only events tell.

    troubled: the ids of the latter, each with the run's end.
    """

    runs: list[NamedRun] = field(default_factory=list[NamedRun])
    troubled: dict[str, float] = field(default_factory=dict[str, float])


# -- events


def run_of_event(event: Mapping[str, Any], name: str) -> NamedRun | None:
    """The run of a final event; None if the event lacks its attempts, as those of older versions do.

    `name`: the event's name without the prefix.
    """
    payload: Mapping[str, Any] = event.get("payload") or {}
    record: Mapping[str, Any] = payload.get("record") or {}
    told = [cast("Mapping[str, Any]", one) for one in record.get("attempts") or () if isinstance(one, dict)]
    task, run_id = event["resource"].get("prefect.resource.name"), payload.get("task_run_id")
    if not told or not task or not run_id:
        return None
    circuit = record.get("circuit")
    attempts = [_failed_attempt(one, circuit) for one in told]
    start, last = attempts[0].start, attempts[-1]
    end = last.start + last.seconds
    if name == "run.recovered":
        began = end + (last.delay or 0.0)
        end = max(began, start + float(payload.get("after") or 0.0))
        attempts.append(RecordedAttempt(start=began, seconds=end - began, succeeded=True, circuit=circuit))
    return NamedRun(
        task,
        RecordedRun(
            run_id=run_id,
            start=start,
            end=max(start, end),
            ended=cast("Any", ENDS[name]),
            attempts=tuple(attempts),
            fallback=payload.get("to") if name == "fallback.used" else None,
        ),
    )


def _failed_attempt(told: Mapping[str, Any], circuit: str | None) -> RecordedAttempt:
    by = told.get("by")
    return RecordedAttempt(
        start=told["at"],
        seconds=max(0.0, told["seconds"]),
        succeeded=False,
        category=told.get("category"),
        code=told.get("code"),
        retry_after=told.get("retry_after"),
        delay=told.get("delay"),
        rejected_by=None if by is None else "circuit" if by == "circuit" else "limit",
        circuit=circuit,
    )


# -- rows of task runs


@dataclass(frozen=True)
class TaskNames:
    """The names of the resilient tasks, by which rows are matched."""

    names: frozenset[str]
    functions: Mapping[str, str | None]
    """The task of a function; None if there are several."""

    @classmethod
    def of(cls, options: Iterable[KnownOptions], others: Iterable[str]) -> TaskNames:
        functions: dict[str, str | None] = {}
        known = list(options)
        for one in known:
            function = function_of(one.task_key)
            functions[function] = None if function in functions else one.task
        return cls(frozenset({one.task for one in known} | set(others)), functions)

    def task_of(self, row: Mapping[str, Any]) -> str | None:
        """The resilient task of a row; None for other tasks. A run may have a name of its own."""
        named = task_of(row["name"], row["task_key"], row["dynamic_key"])
        return named if named in self.names else self.functions.get(function_of(row["task_key"]))


def seen_in(rows: Iterable[Mapping[str, Any]], names: TaskNames, weight: float = 1.0) -> SeenRows:
    """Sort rows of task runs. Each stands for `weight` runs."""
    seen = SeenRows()
    for row in rows:
        task, end = names.task_of(row), row["end_time"]
        if task is None or end is None or row["state_type"] not in FINAL:
            continue
        ended = _seconds(end)
        if row["state_name"] in FINALLY and not _at_once(row):
            seen.troubled[row["id"]] = ended
        else:
            seen.runs.append(NamedRun(task, _run_of_row(row, ended, weight)))
    return seen


def _at_once(row: Mapping[str, Any]) -> bool:
    return row["state_name"] == PLAIN and row["run_count"] <= 1


def _run_of_row(row: Mapping[str, Any], end: float, weight: float) -> RecordedRun:
    start = min(end, _seconds(row["start_time"])) if row["start_time"] else end
    # A run that ended otherwise may have made attempts that no event tells of.
    ok = _at_once(row)
    attempt = RecordedAttempt(start=start, seconds=end - start, succeeded=True)
    return RecordedRun(
        run_id=row["id"],
        start=start,
        end=end,
        ended=cast("Any", "succeeded" if ok else ROW_ENDS.get(row["state_type"], "other")),
        attempts=(attempt,) if ok else (),
        weight=max(1.0, weight),
    )


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


# -- many runs


def thinned(runs: Sequence[NamedRun], most: int, random: Random) -> list[NamedRun]:
    """At most `most` runs that succeeded at once, and all others.

    Each task keeps the same number of them, or all that it has. They are chosen at random, and their weights
    grow by what was left out, so that sums over them stay the same on average.
    """
    plain: dict[str, list[NamedRun]] = {}
    for one in runs:
        if is_plain(one.run):
            plain.setdefault(one.task, []).append(one)
    share = _share([len(some) for some in plain.values()], most)
    kept = [one for one in runs if not is_plain(one.run)]
    for some in plain.values():
        chosen = some if len(some) <= share else random.sample(some, share)
        kept += [_heavier(one, len(some) / len(chosen)) for one in chosen]
    return kept


def _share(numbers: Sequence[int], most: int) -> int:
    """The largest number of runs that each task may keep, so that all keep at most `most`; at least 1."""
    share, left = 0, most
    for place, number in enumerate(sorted(numbers)):
        share = left // (len(numbers) - place)
        if number > share:
            return max(1, share)
        left -= number
    return max([1, *numbers])


def is_plain(run: RecordedRun) -> bool:
    """Whether it succeeded at once."""
    return len(run.attempts) == 1 and run.attempts[0].succeeded


def _heavier(one: NamedRun, by: float) -> NamedRun:
    if by == 1:
        return one
    return NamedRun(one.task, replace(one.run, weight=one.run.weight * by))


# -- the record


def tasks_of(runs: Iterable[NamedRun], options: Iterable[KnownOptions]) -> tuple[RecordedTask, ...]:
    """The tasks by name, each with its runs in order and its options."""
    by_task: dict[str, list[RecordedRun]] = {}
    for one in runs:
        by_task.setdefault(one.task, []).append(one.run)
    known = {one.task: one for one in options}
    return tuple(
        _task(name, by_task.get(name, []), known.get(name)) for name in sorted(by_task.keys() | known.keys())
    )


def _task(name: str, runs: list[RecordedRun], known: KnownOptions | None) -> RecordedTask:
    circuit = None if known is None else circuit_name(known.options)
    ordered = sorted(runs, key=lambda run: (run.start, run.run_id))
    if circuit is not None and "{" not in circuit:
        ordered = [_behind(run, circuit) for run in ordered]
    if known is None:
        return RecordedTask(name=name, runs=tuple(ordered))
    return RecordedTask(
        name=name,
        runs=tuple(ordered),
        options=known.options,
        changed_at=known.changed_at,
        block=known.block,
        circuit=circuit,
    )


def circuit_name(options: Mapping[str, object]) -> str | None:
    """The name of the circuit in a task's options."""
    circuit = options.get("circuit")
    return cast("dict[str, str]", circuit).get("name") if isinstance(circuit, dict) else None


def _behind(run: RecordedRun, circuit: str) -> RecordedRun:
    """The run with the circuit at those attempts whose record does not name one."""
    if all(one.circuit is not None for one in run.attempts):
        return run
    attempts = tuple(
        one if one.circuit is not None else replace(one, circuit=circuit) for one in run.attempts
    )
    return replace(run, attempts=attempts)


def circuits_of_record(
    openings: Mapping[str, Iterable[RecordedOpening]], options: Iterable[KnownOptions]
) -> tuple[RecordedCircuit, ...]:
    """The circuits that opened or that a task's options name, with their policy where a task tells it."""
    policies: dict[str, dict[str, object]] = {}
    for one in options:
        name = circuit_name(one.options)
        if name is not None:
            circuit = cast("dict[str, object]", one.options["circuit"])
            policies[name] = {option: value for option, value in circuit.items() if option != "name"}
    names = openings.keys() | {name for name in policies if "{" not in name}
    return tuple(
        RecordedCircuit(name=name, openings=tuple(openings.get(name, ())), policy=_policy(name, policies))
        for name in sorted(names)
    )


def _policy(name: str, policies: Mapping[str, dict[str, object]]) -> dict[str, object] | None:
    """The policy of a circuit, also if its name was filled in: `llm:{provider}` is that of `llm:primary`."""
    if name in policies:
        return policies[name]
    matching = [policy for template, policy in policies.items() if _fills(name, template)]
    return matching[0] if len(matching) == 1 else None


def _fills(name: str, template: str) -> bool:
    parts = [re.escape(part) for part in re.split(r"\{[^{}]*\}", template)]
    return len(parts) > 1 and re.fullmatch(".+".join(parts), name, re.DOTALL) is not None
