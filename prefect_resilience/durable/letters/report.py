"""The outcomes of a replay, and the effect of later passes of a flow run on a letter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from prefect_resilience.durable.letters.model import PASSES_KEPT, DeadLetter, Pass, Starts

if TYPE_CHECKING:
    from prefect_resilience.durable.batches.decisions import BatchRun

RUN_CREATED = "a run of its deployment was created"
"""The prefix of the message when a run of a deployment makes the call. That run may end later."""

Result = Literal["replayed", "failed", "skipped", "would_replay"]
Reason = Literal["run_goes_on", "settled", "unclear", "api_unavailable"]


class LetterOutcome(BaseModel, frozen=True):
    """The outcome of one letter.

    result: "replayed" with success (a deployment's run: created); "failed" again, so it keeps waiting;
        "skipped", nothing was called; "would_replay" in a dry run.
    message: why, or what would be called. run_id: the task or flow run of the replay.
    reason: if a letter was skipped because of its flow run: "run_goes_on" (the run may make the call itself,
        or is being recovered), "settled" (it made the call), "unclear" (it ended; it is unknown whether it
        made the call), "api_unavailable" (the Prefect API did not answer).
    """

    id: str
    name: str
    result: Result
    message: str = ""
    run_id: str | None = None
    reason: Reason | None = None


class ReplayReport(BaseModel, frozen=True):
    """The outcome of every letter, in the order of the replay: the oldest first."""

    outcomes: tuple[LetterOutcome, ...] = ()
    dry_run: bool = False

    def of(self, result: Result) -> list[LetterOutcome]:
        """The outcomes with this result."""
        return [outcome for outcome in self.outcomes if outcome.result == result]

    @property
    def replayed(self) -> int:
        """How many letters were replayed with success."""
        return len(self.of("replayed"))

    @property
    def failed(self) -> int:
        """How many failed again, and keep waiting."""
        return len(self.of("failed"))

    @property
    def skipped(self) -> int:
        """How many were not called."""
        return len(self.of("skipped"))

    @property
    def left_to_runs(self) -> int:
        """How many were skipped because their flow runs are active and may make the calls themselves."""
        return sum(outcome.reason == "run_goes_on" for outcome in self.outcomes)

    @property
    def well(self) -> bool:
        """Whether nothing failed, and letters were skipped only if their flow runs make or made the calls."""
        skipped = self.of("skipped")
        return not self.failed and all(outcome.reason in ("run_goes_on", "settled") for outcome in skipped)

    def summary(self) -> str:
        """One line: `12 letters: 10 replayed, 1 failed, 1 skipped`."""
        number = "1 letter" if len(self.outcomes) == 1 else f"{len(self.outcomes)} letters"
        counts = [
            f"{count} {result.replace('_', ' ')}"
            for result in ("replayed", "failed", "skipped", "would_replay")
            if (count := len(self.of(result)))  # pyright: ignore[reportArgumentType]
        ]
        return f"{number}: {', '.join(counts)}" if counts else "no letters"


Progress = Callable[[int, int, LetterOutcome], None]
"""Called after each letter with the number done, the total, and the outcome of this letter."""


def outcome_of(
    letter: DeadLetter, result: Result, message: str, run_id: str | None = None, reason: Reason | None = None
) -> LetterOutcome:
    return LetterOutcome(
        id=letter.id, name=letter.name, result=result, message=message, run_id=run_id, reason=reason
    )


# The passes of a flow run, and their effect on the letter of a call in it. Pure functions.
#
# A flow run that is retried (by policy, by the Retry button, or by recovery) is the same run, started again.
# A subflow in it may be a new run. So the place of a call is the list of all flow runs around it with the
# number of their start: [(root, 2), (sub, 1)] comes later than [(root, 1), (an earlier sub, 1)].

_FRESH = {"task_run_id", "flow_run_id", "run_count", "attempts", "category", "code", "message"}
"""The fields that a later failure of the same call updates."""


def is_another_pass(one: Starts, other: Starts) -> bool:
    """Whether two places are in two passes of one run: not in the same pass, nor in different runs."""
    for (run, count), (other_run, other_count) in zip(one, other, strict=False):
        if run != other_run or count != other_count:
            return run == other_run
    return False


def run_again(starts: Starts) -> bool:
    """Whether a flow run around the call was started before. If not, there is no earlier failure."""
    return any(count > 1 for _, count in starts)


def is_elsewhere(starts: Starts, batch_id: str | None) -> bool:
    """Whether the batch of a call is not its root flow run: other flow runs may make the same call of it."""
    return bool(starts) and starts[0][0] != batch_id


def may_be_same(known: Iterable[Starts], starts: Starts, *, in_replay: bool = False) -> bool:
    """Whether a letter that is known from these places may belong to an equal call in this place.

    Equal calls in one pass are different calls, so a letter belongs to one call per pass. `in_replay`: a
    letter that is known only from other runs fits, too: a replay, or another pass of a batch with a name, has
    a run of its own.
    """
    near = [place for place in known if place and starts and place[0][0] == starts[0][0]]
    if not near:
        return in_replay
    return all(is_another_pass(place, starts) for place in near)


def failed(letter: DeadLetter, anew: DeadLetter, now: datetime) -> DeadLetter:
    """The letter after its call failed in another pass; `anew` is the letter of that failure.

    A replayed or settled letter waits again: its run repeated the call, and the call failed.
    """
    changes: dict[str, Any] = anew.model_dump(include=_FRESH)
    if letter.status in ("replayed", "settled"):
        changes |= {"status": "waiting", "settled_at": None}
    latest = tuple(run_pass.model_copy(update={"at": now}) for run_pass in anew.passes)
    changes |= {"failures": letter.failures + 1, "passes": (*letter.passes, *latest)[-PASSES_KEPT:]}
    return letter.model_copy(update=changes)


def succeeded(letter: DeadLetter, one: Pass) -> DeadLetter | None:
    """The letter after its call has succeeded in another pass; None if it was replayed or settled before.

    A letter that is being replayed or in doubt keeps its status: the call may have been made twice.
    """
    if letter.status in ("replayed", "settled"):
        return None
    changes: dict[str, Any] = {"passes": (*letter.passes, one)[-PASSES_KEPT:]}
    if letter.status == "waiting":
        changes |= {"status": "settled", "settled_at": one.at}
    return letter.model_copy(update=changes)


FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def going_on(runs: Iterable[BatchRun]) -> str | None:
    """The reason to leave the call to an active run; None if no run is active."""
    for run in runs:
        if run.type not in FINAL:
            return f"its flow run {run.name!r} is {run.state}: it may make the call itself"
    return None


def later_ends(letter: DeadLetter, runs: Iterable[BatchRun]) -> list[BatchRun]:
    """The flow runs that were started again after the letter and completed or were cut off: they may have
    made the call without a record."""
    latest: dict[str | None, int] = {letter.flow_run_id: letter.run_count}
    for run_pass in letter.passes:
        for run_id, count in run_pass.starts:
            latest[run_id] = max(latest.get(run_id, 0), count)
    again = [run for run in runs if run.run_count > latest.get(str(run.id), 0)]
    ends = ("COMPLETED", "CRASHED", "CANCELLED")
    return [run for run in again if run.type in ends or run.state == "TimedOut"]


def unclear(run: BatchRun) -> str:
    """The message that a person must decide about a letter: its run was started again, and has ended."""
    return (
        f"its flow run {run.name!r} was run again and is {run.state}; it is unknown whether it made this "
        "call: check, then replay this letter by its id, with force"
    )
