"""Who gets a lane in the picture of a run, and what is drawn in it. Pure.

Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from prefect_resilience.summaries.model import (
    ENDED_BADLY,
    FINAL,
    REPLACED,
    REPLAYED,
    Happening,
    RunFacts,
    Seen,
    TaskRunSeen,
)

MOST_LANES = 30
MOST_CIRCUITS = 6
MOST_BARS = 60
MOST_BARS_OF_ALL = 600
"""Bars in all lanes together; of a lane that has more than its share, those at its end."""

Look = Literal["ok", "failed", "replaced", "replayed", "wait", "running", "open", "half-open"]

_BY_CIRCUIT = {"circuit.opened": "open", "circuit.half-opened": "half-open"}


@dataclass(frozen=True, slots=True)
class Bar:
    """From one moment to another; `tip` is what a pointer over it shows."""

    look: Look
    start: float
    end: float
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """One line of the picture."""

    label: str
    bars: tuple[Bar, ...]
    circuit: bool = False


@dataclass(frozen=True, slots=True)
class Timeline:
    """All lanes; `more` task runs have none."""

    start: float
    end: float
    lanes: tuple[Lane, ...]
    more: int = 0


def timeline_of(facts: RunFacts, seen: Seen) -> Timeline | None:
    """The lanes of a run; None when there is nothing to draw."""
    now = _end(facts, seen)
    begun = [run for run in seen.task_runs if any(state.type == "RUNNING" for state in run.states)]
    chosen = sorted(sorted(begun, key=_weight)[:MOST_LANES], key=_began)
    lanes = [*_circuits(seen.happenings, now), *(_lane(run, now) for run in chosen)]
    if not lanes:
        return None
    share = MOST_BARS_OF_ALL // len(lanes)
    lanes = [replace(lane, bars=lane.bars[-share:]) for lane in lanes]
    starts = [bar.start for lane in lanes for bar in lane.bars]
    start = min(starts) if facts.began is None else min(*starts, facts.began)
    return Timeline(start, max(now, start), tuple(lanes), max(seen.total, len(begun)) - len(chosen))


def _end(facts: RunFacts, seen: Seen) -> float:
    moments = [state.at for run in seen.task_runs for state in run.states]
    moments += [one.at for one in seen.happenings]
    return max(*moments, facts.ended or 0.0, facts.began or 0.0)


def _weight(run: TaskRunSeen) -> tuple[int, float]:
    """What went wrong most comes first."""
    last = run.last
    if last is None or last.type in ENDED_BADLY:
        rank = 0
    elif run.attempts > 1:
        rank = 1
    else:
        rank = 2 if run.remarkable else 3
    return rank, _began(run)


def _began(run: TaskRunSeen) -> float:
    return next((state.at for state in run.states if state.type == "RUNNING"), 0.0)


def _lane(run: TaskRunSeen, now: float) -> Lane:
    """Attempts are the spans in which it ran; the state after each says how it went."""
    bars: list[Bar] = []
    for place, state in enumerate(run.states):
        after = run.states[place + 1] if place + 1 < len(run.states) else None
        end = now if after is None else after.at
        if state.type == "RUNNING":
            look = _outcome(None if after is None else (after.type, after.name))
            tip = f"attempt {sum(bar.look != 'wait' for bar in bars) + 1}: {end - state.at:.1f} s"
            bars.append(Bar(look, state.at, end, f"{tip}, {after.name if after else 'running'}"))
        elif state.name == "AwaitingRetry":
            bars.append(Bar("wait", state.at, end, f"waits {end - state.at:.1f} s"))
    return Lane(run.name, tuple(bars[-MOST_BARS:]))


def _outcome(after: tuple[str, str] | None) -> Look:
    if after is None:
        return "running"
    kind, name = after
    if name in REPLACED:
        return "replaced"
    if name == REPLAYED:
        return "replayed"
    if kind in FINAL:
        return "ok" if kind == "COMPLETED" else "failed"
    return "failed"


def _circuits(happenings: Iterable[Happening], now: float) -> list[Lane]:
    found: dict[str, list[Happening]] = {}
    for one in sorted(happenings, key=lambda one: one.at):
        if one.name.startswith("circuit."):
            found.setdefault(one.subject, []).append(one)
    lanes = [Lane(name, _openings(moves, now), circuit=True) for name, moves in found.items()]
    return [lane for lane in lanes if lane.bars][:MOST_CIRCUITS]


def _openings(moves: Sequence[Happening], now: float) -> tuple[Bar, ...]:
    bars: list[Bar] = []
    for place, move in enumerate(moves):
        end = moves[place + 1].at if place + 1 < len(moves) else now
        look = _BY_CIRCUIT.get(move.name)
        if move.name == "circuit.forced" and move.payload.get("after") == "forced_open":
            look = "open"
        if look is not None:
            bars.append(
                Bar("open" if look == "open" else "half-open", move.at, end, f"{look}: {end - move.at:.1f} s")
            )
    return tuple(bars[-MOST_BARS:])
