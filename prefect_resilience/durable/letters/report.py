"""What became of the letters of one replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from prefect_resilience.durable.letters.model import DeadLetter

RUN_CREATED = "a run of its deployment was created"
"""How the message of a replay begins of which another flow run says how it ends."""

Result = Literal["replayed", "failed", "skipped", "would_replay"]
Reason = Literal["run_goes_on", "settled", "unclear", "api_unavailable"]


class LetterOutcome(BaseModel):
    """What became of one letter.

    result: "replayed" with success (a deployment's run: created); "failed" again, so that it waits on;
        "skipped", nothing was called; "would_replay" in a dry run.
    message: why, or what would be called. run_id: the task or flow run that was the replay.
    reason: of a skipped one, where its flow run is why: "run_goes_on" (it may make the call itself, or is
        being recovered), "settled" (it has made the call), "unclear" (it has completed, and nobody knows
        whether it made the call), "api_unavailable" (Prefect could not be asked).
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    id: str
    name: str
    result: Result
    message: str = ""
    run_id: str | None = None
    reason: Reason | None = None


class ReplayReport(BaseModel):
    """What became of every letter, in the order they were taken: the oldest first."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    outcomes: tuple[LetterOutcome, ...] = ()
    dry_run: bool = False

    def of(self, result: Result) -> list[LetterOutcome]:
        """The outcomes with this result."""
        return [one for one in self.outcomes if one.result == result]

    @property
    def replayed(self) -> int:
        """How many letters were replayed with success."""
        return len(self.of("replayed"))

    @property
    def failed(self) -> int:
        """How many failed again, and wait on."""
        return len(self.of("failed"))

    @property
    def skipped(self) -> int:
        """How many were not called."""
        return len(self.of("skipped"))

    @property
    def left_to_runs(self) -> int:
        """How many were skipped because their flow runs go on, and may make the calls themselves."""
        return sum(one.reason == "run_goes_on" for one in self.outcomes)

    @property
    def well(self) -> bool:
        """Whether nothing failed, and nothing was skipped but what its flow run makes or has made."""
        skipped = self.of("skipped")
        return not self.failed and all(one.reason in ("run_goes_on", "settled") for one in skipped)

    def summary(self) -> str:
        """One line: `12 letters: 10 replayed, 1 failed, 1 skipped`."""
        number = "1 letter" if len(self.outcomes) == 1 else f"{len(self.outcomes)} letters"
        counts = [
            f"{count} {result.replace('_', ' ')}"
            for result in ("replayed", "failed", "skipped", "would_replay")
            if (count := len(self.of(result)))  # pyright: ignore[reportArgumentType]
        ]
        return f"{number}: {', '.join(counts)}" if counts else "no letter"


Progress = Callable[[int, int, LetterOutcome], None]
"""Told after each letter: how many are done, of how many, and what became of this one."""


def outcome_of(
    letter: DeadLetter, result: Result, message: str, run_id: str | None = None, reason: Reason | None = None
) -> LetterOutcome:
    return LetterOutcome(
        id=letter.id, name=letter.name, result=result, message=message, run_id=run_id, reason=reason
    )
