"""DeadLetter: a call that finally failed, with the data to make it again; how one is made and stored."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any, ClassVar, Literal, get_args
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from prefect_resilience.base.naming import is_of_process
from prefect_resilience.base.policy import nearest
from prefect_resilience.durable.letters.codec import LARGEST, LeftOut, Reader, encode_parameters
from prefect_resilience.durable.letters.kinds import Source
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact, redact_data

Status = Literal["waiting", "replaying", "in_doubt", "replayed", "settled"]
STATUSES: tuple[str, ...] = get_args(Status)
Outcome = Literal["replayed", "failed", "in_doubt"]
REPLAYS_KEPT = 20
MESSAGE = 300
"""Characters of an error that a listing shows."""
PASSES_KEPT = 20

Starts = tuple[tuple[str, int], ...]
"""The flow runs around a call, the root first, each with the number of its start."""


class Claim(BaseModel, frozen=True):
    """The current replay of a letter. The claim holds until `until`, unless it is renewed or released.

    `token` identifies this claim; `run_id` is the task or flow run of the replay; `process` identifies the
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

    `starts` are the flow runs around it with the number of their start, the root first; `attempts`, `code`,
    `category` and `message` describe a failure.
    """

    at: datetime
    outcome: Literal["failed", "succeeded"] = "failed"
    starts: Starts = ()
    task_run_id: str | None = None
    attempts: int = 1
    category: str = ""
    code: str = ""
    message: str = ""


class Contents(BaseModel, frozen=True):
    """The part of a letter that a listing does not read: the parameters as JSON, and the error."""

    parameters: dict[str, Any]
    error: ErrorContext | None = None


class DeadLetter(BaseModel):
    """A call that finally failed.

    status: "waiting" for its replay; "replaying" by the owner of `claim`; "in_doubt" when a replay was cut
        off at an unknown point; "replayed" with success; "settled" when the call succeeded in a later pass of
        its flow run, without a replay.
    kind: a task or a flow; `name` is its name in the UI, `key` its key in Prefect, `source` where to find its
        function (None if it is bound to no name).
    batch_id: the batch of the call and of its replay: the root flow run, or the batch that the code named.
        The shared batch prevents a second side effect.
    deployment_id: the deployment that ran the flow; a replay creates a run of it.
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
    kind: Literal["task", "flow"]
    name: str
    key: str
    source: Source | None = None
    deployment_id: str | None = None
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
        return tuple(dict.fromkeys([*pass_runs, *own, *self.replay_runs]))

    @property
    def replay_runs(self) -> tuple[str, ...]:
        """The flow runs that replayed the letter of a flow and failed: they may be retried, too."""
        return tuple(replay.run_id for replay in self.replays if replay.run_id) if self.kind == "flow" else ()

    def summary(self) -> str:
        """One line: `503 unavailable: Service Unavailable`."""
        same = self.code.lower() == self.category
        head = self.category if same else f"{self.code} {self.category}".strip()
        return f"{head}: {self.message}" if self.message else head


def as_stored(letter: DeadLetter) -> dict[str, Any]:
    """The letter's entry as JSON for a store; short, since listings read thousands."""
    return letter.model_dump(mode="json", exclude_defaults=True)


def from_stored(
    value: Mapping[str, Any], contents: Contents | Callable[[], Contents] | None = None
) -> DeadLetter:
    """The letter of a stored entry, with its contents or a function that reads them."""
    letter = DeadLetter.model_validate(value)
    letter._contents = contents  # pyright: ignore[reportPrivateUsage]
    return letter


def check_statuses(status: str | Iterable[str] | None) -> set[str] | None:
    """The given statuses; None for all. Raises ConfigurationError for one that does not exist."""
    if status is None:
        return None
    wanted = {status} if isinstance(status, str) else set(status)
    for name in wanted:
        if name not in STATUSES:
            raise ConfigurationError(f"unknown status {name!r} of a dead letter{nearest(name, STATUSES)}")
    return wanted or None


def archive_to(path: Path, letters: Iterable[DeadLetter]) -> None:
    """Add letters to a file, each as a line of JSON, and sync it to the disk."""
    with path.open("a", encoding="utf-8") as file:
        for letter in letters:
            line = {**letter.model_dump(mode="json"), "contents": letter.contents.model_dump(mode="json")}
            file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


# -- ids
_RANDOM_BITS = 62


def new_id(now: float, chance: int) -> str:
    """A UUID of version 7 (RFC 9562, method 3): the time in milliseconds and 4096ths of one, then chance.

    `now` is in seconds since the epoch, `chance` any integer; 62 bits of it are used.
    """
    ticks = max(0, int(now * 1000 * 4096))
    milliseconds, fraction = (ticks >> 12) & ((1 << 48) - 1), ticks & 0xFFF
    number = milliseconds << 80 | 0x7 << 76 | fraction << 64 | 0b10 << _RANDOM_BITS
    return str(UUID(int=number | chance & ((1 << _RANDOM_BITS) - 1)))


def first_id_at(now: float) -> str:
    """The smallest possible id of a letter made at this time."""
    return new_id(now, 0)


def is_id(text: str) -> bool:
    """Whether this is an id as `new_id` writes them."""
    try:
        return str(UUID(text)) == text
    except (ValueError, AttributeError, TypeError):
        return False


# -- making a letter of a call that failed, without its secrets

_OF_A_PASS = ("task_run_id", "attempts", "category", "code", "message")


def letter_of(
    parameters: Mapping[str, Any],
    error: ErrorContext | None,
    *,
    now: datetime,
    largest: int = LARGEST,
    starts: Starts = (),
    **fields: Any,
) -> tuple[DeadLetter, Contents]:
    """The letter of a failed call and its contents; `fields` are further fields of `DeadLetter`.

    Secrets are left out of the parameters, and at most `largest` characters of JSON are kept. `starts` are
    the flow runs around the call; the default is its own flow run.
    """
    encoded = encode_parameters(parameters, largest)
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
    failed = {name: getattr(letter, name) for name in _OF_A_PASS}
    changes: dict[str, Any] = {
        "passes": (Pass(at=now, starts=starts, **failed),),
        "identity": identity_of(
            letter.batch_id, letter.kind, letter.name, letter.source, letter.key, encoded.parameters
        ),
    }
    return letter.model_copy(update=changes), Contents(parameters=encoded.parameters, error=error)


def identity_of(
    batch_id: str | None, kind: str, name: str, source: Source | None, key: str, parameters: Mapping[str, Any]
) -> str:
    """A digest that is the same for the same call in every pass: of the batch, the function's name and
    place, and the parameters as JSON without secrets.

    The code is not part of it, since a fix changes it: Prefect's key of a task ends with its code's digest.
    The identity begins with the batch's digest, so that all letters of a batch can be found.
    """
    where = [key.rpartition("-")[0] or key] if source is None else [_place(source), source.qualname]
    call = json.dumps([kind, name, where, parameters], sort_keys=True)
    return f"{batch_digest(batch_id)}.{_digest(call)}"


def batch_digest(batch_id: str | None) -> str:
    """The beginning of the identities of a batch's calls."""
    return _digest(str(batch_id))


def _place(source: Source) -> str:
    """The module; the name of its file if the module has another name in each process."""
    if source.file and is_of_process(source.module):
        return PurePath(source.file).name
    return source.module


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:24]


def loss(letter: DeadLetter, error: BaseException) -> str:
    """The log line for a letter that could not be stored, with enough data to find the call."""
    run = letter.task_run_id or letter.flow_run_id or "no run"
    return redact(
        f"The dead letter of {letter.kind} {letter.name!r} ({run}) is lost, because it could not be stored: "
        f"{error!r}. The call failed with {letter.summary()}"
    )
