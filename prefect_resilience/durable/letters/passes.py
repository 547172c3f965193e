"""The passes of a flow run, and what each does to the letter of a call in it. Pure.

A flow run that is retried, whose Retry button is pressed, or which is recovered is the same run, started once
more. A subflow in it may be a new run. So where a call stands is told by all flow runs around it with the
number of their start: [(root, 2), (sub, 1)] comes later than [(root, 1), (an earlier sub, 1)].
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from prefect_resilience.durable.letters.model import PASSES_KEPT, DeadLetter, Pass, Starts

Relation = Literal["same", "another pass", "elsewhere"]

_FRESH = {"task_run_id", "flow_run_id", "run_count", "attempts", "category", "code", "message"}
"""What a letter takes over from a later failure of the same call."""


def relation(one: Starts, other: Starts) -> Relation:
    """How two places in runs relate: in the same pass, in two passes of one run, or side by side."""
    for (run, count), (other_run, other_count) in zip(one, other, strict=False):
        if run != other_run:
            return "elsewhere"
        if count != other_count:
            return "another pass"
    return "same" if len(one) == len(other) else "elsewhere"


def run_again(starts: Starts) -> bool:
    """Whether a flow run around the call had been started before: only then it may have failed before."""
    return any(count > 1 for _, count in starts)


def may_be_same(known: Iterable[Starts], starts: Starts, *, in_replay: bool = False) -> bool:
    """Whether a letter of equal calls, known from these places, may be of the call in this place.

    Equal calls of one pass are different ones, so a letter is of one call in each pass. `in_replay`: also one
    that is known from other runs alone, since a replay makes a run of its own.
    """
    near = [place for place in known if place and starts and place[0][0] == starts[0][0]]
    if not near:
        return in_replay
    return all(relation(place, starts) == "another pass" for place in near)


def failed(letter: DeadLetter, anew: DeadLetter, now: datetime) -> DeadLetter:
    """The letter after its call has failed in another pass, as `anew` tells.

    One that was done with waits again: its run asked for the call once more, and this time nobody made it.
    """
    changes: dict[str, Any] = anew.model_dump(include=_FRESH)
    if letter.status in ("replayed", "settled"):
        changes |= {"status": "waiting", "settled_at": None}
    latest = tuple(one.model_copy(update={"at": now}) for one in anew.passes)
    changes |= {"failures": letter.failures + 1, "passes": (*letter.passes, *latest)[-PASSES_KEPT:]}
    return letter.model_copy(update=changes)


def succeeded(letter: DeadLetter, one: Pass) -> DeadLetter | None:
    """The letter after its call has succeeded in another pass; None for one that is done with already.

    One whose replay goes on, or was cut off, stays what it is: the call may have been made twice.
    """
    if letter.status in ("replayed", "settled"):
        return None
    changes: dict[str, Any] = {"passes": (*letter.passes, one)[-PASSES_KEPT:]}
    if letter.status == "waiting":
        changes |= {"status": "settled", "settled_at": one.at}
    return letter.model_copy(update=changes)
