"""DeadLetter: a call that finally failed, with all it takes to make it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from prefect_resilience.durable.letters.codec import LeftOut, Reader
from prefect_resilience.errors.context import ErrorContext

Status = Literal["waiting", "replaying", "in_doubt", "replayed", "settled"]
STATUSES: tuple[str, ...] = get_args(Status)
Outcome = Literal["replayed", "failed", "in_doubt"]
REPLAYS_KEPT = 20
PASSES_KEPT = 20

Starts = tuple[tuple[str, int], ...]
"""The flow runs around a call, the root first, and which start of each it was."""


class Source(BaseModel):
    """Where a task or flow is found again: `module:qualname`, and the file for what no import finds."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    module: str
    qualname: str
    file: str | None = None

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}"


class Claim(BaseModel):
    """Who replays a letter right now. It holds until `until`, unless it is renewed or given back before.

    `token` is this claim's own; `run_id` the task or flow run that is the replay; `process` whose it is, as
    far as the system says.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    owner: str
    token: str
    since: datetime
    until: datetime
    run_id: str | None = None
    process: list[Any] | None = None


class Replay(BaseModel):
    """One replay that has come to an end; `message` says why it failed, or what is unknown about it."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    started_at: datetime
    finished_at: datetime
    outcome: Outcome
    owner: str
    run_id: str | None = None
    message: str = ""


class Pass(BaseModel):
    """What became of the call in one pass of its flow run: it failed for good, or it succeeded.

    `starts` are the flow runs around it with the number of their start, the root first; `attempts`, `code`,
    `category` and `message` are those of a failure.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    at: datetime
    outcome: Literal["failed", "succeeded"] = "failed"
    starts: Starts = ()
    task_run_id: str | None = None
    attempts: int = 1
    category: str = ""
    code: str = ""
    message: str = ""


class Contents(BaseModel):
    """What a listing does not read: the parameters as JSON (see `codec`), and the error."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    parameters: dict[str, Any]
    error: ErrorContext | None = None


class DeadLetter(BaseModel):
    """A call that finally failed.

    status: "waiting" for its replay; "replaying" by the owner of `claim`; "in_doubt" when a replay was cut
        off and nobody knows how far it had come; "replayed" with success; "settled" when the call succeeded
        in a later pass of its flow run, without a replay.
    kind: of what, a task or a flow; `name` is what the UI calls it, `key` what Prefect knows it by, `source`
        where it is found again (None: nowhere, it was made in passing).
    batch_id: the batch that a replay belongs to as well, so that no effect is done twice: the root flow run,
        or the batch that the code named.
    deployment_id: of a flow that was run by its deployment; a replay makes a run of it.
    run_count: how often the flow run had been started when this failed last.
    failures: in how many passes of its flow run the call failed: a run that is run again, and fails again,
        makes no second letter of the same call. `passes` says what became of it in each, the latest last; at
        most 20.
    attempts: of the task, until it gave up in the latest pass.
    settled_at: when it was replayed or settled.
    category, code, message: the error in short; `error` is all of it.
    left_out: what is missing from the parameters, such as secrets.
    replays: those that ended, the latest last; at most 20.
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
    attempts: int = Field(default=1, ge=1)
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
        # Whether its contents have been read yet makes no difference.
        return isinstance(other, DeadLetter) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def contents(self) -> Contents:
        """The parameters as JSON and the error, read from the store when they are first asked for."""
        if callable(self._contents):
            self._contents = self._contents()
        return self._contents or Contents(parameters={})

    @property
    def parameters(self) -> dict[str, Any]:
        """The call's parameters, equal to what they were; a `LeftOut` stands for each that is missing.

        Reading them may import the modules that their classes are defined in. Raises DeadLetterError where
        that fails.
        """
        return Reader().parameters(self.contents.parameters)

    @property
    def error(self) -> ErrorContext | None:
        """What went wrong, with the history of the attempts."""
        return self.contents.error

    def holding(self, contents: Contents | Callable[[], Contents]) -> DeadLetter:
        """This letter with its contents, or with what reads them."""
        made = self.model_copy()
        made._contents = contents
        return made

    @property
    def flow_runs(self) -> tuple[str, ...]:
        """Every flow run that may make the call, as far as the letter knows."""
        known = [run_id for one in self.passes for run_id, _ in one.starts]
        own = [self.flow_run_id] if self.flow_run_id else []
        return tuple(dict.fromkeys([*known, *own, *self.replay_runs]))

    @property
    def replay_runs(self) -> tuple[str, ...]:
        """The flow runs that replayed the letter of a flow and failed: they may be run again as well."""
        return tuple(one.run_id for one in self.replays if one.run_id) if self.kind == "flow" else ()

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
    """The letter of a stored entry, with its contents or what reads them."""
    letter = DeadLetter.model_validate(value)
    letter._contents = contents  # pyright: ignore[reportPrivateUsage]
    return letter
