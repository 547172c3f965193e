"""DeadLetter: a call that finally failed, with the data to make it again; how one is made and stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import PurePath
from typing import Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from prefect_resilience.base.naming import digest, is_of_process
from prefect_resilience.base.policy import nearest
from prefect_resilience.durable.letters.codec import LeftOut, Reader, encode_parameters
from prefect_resilience.durable.letters.kinds import Source
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact, redact_data

Status = Literal["waiting", "replaying", "in_doubt", "replayed", "settled"]
STATUSES: tuple[Status, ...] = get_args(Status)
Outcome = Literal["replayed", "failed", "in_doubt"]
REPLAYS_KEPT = 20
MESSAGE = 300
"""Characters of an error that a listing shows."""
PASSES_KEPT = 20

Starts = tuple[tuple[str, int], ...]
"""The flow runs around a call, the root first, each with the number of its start."""


class Claim(BaseModel, frozen=True):
    """The current replay of a letter. It holds until `until`, unless it is released or its process has died.

    `token` identifies this claim; `run_id` is the task run of the replay; `process` identifies the
    owner's process, if the system can.
    """

    owner: str
    token: str
    since: datetime
    until: datetime
    run_id: str | None = None
    process: list[Any] | None = None


class Replay(BaseModel, frozen=True):
    """One replay that has ended; `message` says why it failed, or what is unknown about it."""

    started_at: datetime
    finished_at: datetime
    outcome: Outcome
    owner: str
    run_id: str | None = None
    message: str = ""


class Pass(BaseModel, frozen=True):
    """The outcome of the call in one pass of its flow run: it finally failed, or it succeeded.

    `starts` are the flow runs around it with the number of their start, the root first.
    """

    at: datetime
    outcome: Literal["failed", "succeeded"] = "failed"
    starts: Starts = ()
    task_run_id: str | None = None


class Contents(BaseModel, frozen=True):
    """The part of a letter that a listing does not read: the parameters as JSON, and the error."""

    parameters: dict[str, Any]
    error: ErrorContext | None = None


class DeadLetter(BaseModel):
    """A call that finally failed.

    status: "waiting" for its replay; "replaying" by the owner of `claim`; "in_doubt" when a replay was cut
        off at an unknown point; "replayed" with success; "settled" when the call succeeded in a later pass of
        its flow run, without a replay.
    name: the task's name in the UI; `key` is its key in Prefect, `source` where to find its function (None if
        it is bound to no name).
    batch_id: the batch of the call and of its replay: the root flow run, or the batch that the code named.
        The shared batch prevents a second side effect.
    run_count: the number of starts of the flow run at the latest failure.
    failures: the number of passes of its flow run in which the call failed. A run that is started again and
        fails again creates no second letter of the same call. `passes` has the outcome of each pass, the
        latest last; at most 20.
    attempts: the attempts of the task in the latest pass; a call that a circuit or a limit rejected is none.
    settled_at: when it was replayed or settled.
    category, code, message: a summary of the error; `error` has all of it.
    left_out: the values missing from the parameters, such as secrets.
    replays: the replays that ended, the latest last; at most 20.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    id: str = ""
    status: Status = "waiting"
    name: str
    key: str
    source: Source | None = None
    batch_id: str | None = None
    flow_run_id: str | None = None
    task_run_id: str | None = None
    run_count: int = 1
    failures: int = 1
    identity: str = ""
    created_at: datetime
    settled_at: datetime | None = None
    attempts: int = Field(default=1, ge=0)
    category: str = ""
    code: str = ""
    message: str = ""
    left_out: tuple[LeftOut, ...] = ()
    size: int = 0
    claim: Claim | None = None
    replays: tuple[Replay, ...] = ()
    passes: tuple[Pass, ...] = ()

    _contents: Contents | Callable[[], Contents] | None = PrivateAttr(default=None)

    def __eq__(self, other: object) -> bool:
        # Letters are equal whether or not their contents have been read yet.
        return isinstance(other, DeadLetter) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def contents(self) -> Contents:
        """The parameters as JSON and the error, read from the store on first use."""
        if callable(self._contents):
            self._contents = self._contents()
        return self._contents or Contents(parameters={})

    @property
    def parameters(self) -> dict[str, Any]:
        """The call's parameters, equal to the original ones; a `LeftOut` stands for each missing value.

        Reading them may import the modules of their classes. Raises DeadLetterError if that fails.
        """
        return Reader().parameters(self.contents.parameters)

    @property
    def error(self) -> ErrorContext | None:
        """The error, with the history of the attempts."""
        return self.contents.error

    def holding(self, contents: Contents | Callable[[], Contents]) -> DeadLetter:
        """This letter with its contents, or with a function that reads them."""
        letter = self.model_copy()
        letter._contents = contents
        return letter

    @property
    def flow_runs(self) -> tuple[str, ...]:
        """Every known flow run that may make the call."""
        pass_runs = [run_id for run_pass in self.passes for run_id, _ in run_pass.starts]
        own = [self.flow_run_id] if self.flow_run_id else []
        return tuple(dict.fromkeys([*pass_runs, *own]))

    def summary(self) -> str:
        """One line: `503 unavailable: Service Unavailable`."""
        same = self.code.lower() == self.category
        head = self.category if same else f"{self.code} {self.category}".strip()
        return f"{head}: {self.message}" if self.message else head


def as_stored(letter: DeadLetter) -> dict[str, Any]:
    """The letter's entry as JSON for a store, which `DeadLetter.model_validate` reads; short, since listings
    read thousands."""
    return letter.model_dump(mode="json", exclude_defaults=True)


def check_statuses(status: str | Iterable[str] | None) -> set[str] | None:
    """The given statuses; None for all. Raises ConfigurationError for one that does not exist."""
    if status is None:
        return None
    wanted = {status} if isinstance(status, str) else set(status)
    for name in wanted:
        if name not in STATUSES:
            raise ConfigurationError(f"unknown status {name!r} of a dead letter{nearest(name, STATUSES)}")
    return wanted or None


# -- the outcomes of a replay

Result = Literal["replayed", "failed", "skipped", "would_replay"]
Reason = Literal["run_goes_on", "settled", "unclear", "api_unavailable"]


class LetterOutcome(BaseModel, frozen=True):
    """The outcome of one letter.

    result: "replayed" with success; "failed" again, so it keeps waiting;
        "skipped", nothing was called; "would_replay" in a dry run.
    message: why, or what would be called. run_id: the task run of the replay.
    reason: if a letter was skipped because of its flow run: "run_goes_on" (the run may make the call itself),
        "settled" (it made the call), "unclear" (it ended; it is unknown whether it
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


# -- making a letter of a call that failed, without its secrets


def letter_of(
    parameters: Mapping[str, Any],
    error: ErrorContext | None,
    *,
    now: datetime,
    starts: Starts = (),
    **fields: Any,
) -> tuple[DeadLetter, Contents]:
    """The letter of a failed call and its contents; `fields` are further fields of `DeadLetter`.

    Secrets are left out of the parameters. `starts` are the flow runs around the call; the default is its own
    flow run.
    """
    encoded = encode_parameters(parameters)
    attributes: dict[str, Any] = {"created_at": now, "left_out": encoded.left_out, "size": encoded.size}
    if error is not None:
        # Secrets may have become known since the error was described.
        error = ErrorContext.model_validate(redact_data(error.model_dump(mode="json")))
        lines = error.message.strip().splitlines() or [""]
        attributes |= {"category": str(error.category), "code": error.code, "attempts": error.attempts_made}
        attributes["message"] = lines[0][:MESSAGE]
    letter = DeadLetter.model_validate({**attributes, **fields})
    if not starts and letter.flow_run_id is not None:
        starts = ((letter.flow_run_id, letter.run_count),)
    changes: dict[str, Any] = {
        "passes": (Pass(at=now, starts=starts, task_run_id=letter.task_run_id),),
        "identity": identity_of(letter.batch_id, letter.name, letter.source, letter.key, encoded.parameters),
    }
    return letter.model_copy(update=changes), Contents(parameters=encoded.parameters, error=error)


def identity_of(
    batch_id: str | None, name: str, source: Source | None, key: str, parameters: Mapping[str, Any]
) -> str:
    """A digest that is the same for the same call in every pass: of the batch, the function's name and
    place, and the parameters as JSON without secrets.

    The code is not part of it, since a fix changes it: Prefect's key of a task ends with its code's digest.
    The identity begins with the batch's digest, so that all letters of a batch can be found.
    """
    where = [key.rpartition("-")[0] or key] if source is None else [_place(source), source.qualname]
    call = json.dumps([name, where, parameters], sort_keys=True)
    return f"{digest(str(batch_id))}.{hashlib.sha256(call.encode()).hexdigest()[:24]}"


def _place(source: Source) -> str:
    """The module; the name of its file if the module has another name in each process."""
    if source.file and is_of_process(source.module):
        return PurePath(source.file).name
    return source.module


def loss(letter: DeadLetter, error: BaseException) -> str:
    """The log line for a letter that could not be stored, with enough data to find the call."""
    run = letter.task_run_id or "no run"
    return redact(
        f"The dead letter of {letter.name!r} ({run}) is lost, because it could not "
        f"be stored: {error!r}. The call failed with {letter.summary()}"
    )
