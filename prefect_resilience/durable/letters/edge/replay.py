"""Replaying dead letters: the same call, in the same batch. A letter has one replay at a time.

A letter is claimed right before its call, under the id of the replay's run. A replay that is cut off leaves
its letter in doubt. Without `force`, such a letter is replayed only if no side effect can happen twice: the
task has an `effect=`, and the ledger has the effects of the batch.

A letter is left to its flow run while that run is active (see `known`). This is checked right before the
letter is claimed and called.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from uuid import UUID, uuid4

from prefect import Task
from prefect.client.schemas.objects import State
from prefect.context import TagsContext
from prefect.task_engine import run_task
from prefect.utilities.asyncutils import run_coro_as_sync
from prefect.utilities.importtools import load_script_as_module

from prefect_resilience.base.process import setting
from prefect_resilience.durable.batches.batch import batch
from prefect_resilience.durable.batches.decisions import ApiUnavailable
from prefect_resilience.durable.batches.edge.status import check_recorded
from prefect_resilience.durable.batches.edge.tags import other_tags
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.letters.claims import refusal
from prefect_resilience.durable.letters.codec import Reader
from prefect_resilience.durable.letters.edge.known import skip_for_its_run
from prefect_resilience.durable.letters.kinds import DeadLetterError, Finder
from prefect_resilience.durable.letters.model import (
    DeadLetter,
    LetterOutcome,
    Progress,
    ReplayReport,
    outcome_of,
)
from prefect_resilience.durable.letters.queue import REPLAYABLE, DeadLetterQueue
from prefect_resilience.errors.context import error_context
from prefect_resilience.errors.exceptions import ConfigurationError, NotRecorded, StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact, register_secret
from prefect_resilience.telemetry.edge.events import emit

SHOWN = 60
LEASE = 3_600.0
"""Seconds after which a replay counts as dead; at once if its process on this machine is dead."""

_replaying: ContextVar[str | None] = ContextVar("prefect_resilience_replaying", default=None)


def in_replay() -> bool:
    """Whether this code runs in the replay of a letter."""
    return _replaying.get() is not None


def is_replay_itself(task_run_id: UUID) -> bool:
    """Whether this task run is the current replay."""
    return _replaying.get() == str(task_run_id)


@dataclass
class Replaying:
    """How letters are replayed.

    `rate`: the most letters a second; None: no limit. `values`: the values that were left out of letters, by
    path. `force`: also letters in doubt. `despite_run`: also a letter whose flow run is active or unknown.
    """

    queue: DeadLetterQueue
    rate: float | None = None
    force: bool = False
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    progress: Progress | None = None
    despite_run: bool = False
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise ConfigurationError(
                f"rate={self.rate} must be more than 0 letters a second; None for no limit"
            )
        self.owner: str = f"{socket.gethostname()}:{os.getpid()}"
        self.finder: Finder = Finder(load_script_as_module)
        self.pause: float = 0.0 if self.rate is None else 1 / self.rate
        self.next_at: float = self.clock()
        for value in self.values.values():
            if isinstance(value, str):
                register_secret(value)


def replay_letters(how: Replaying, letters: Iterable[DeadLetter], *, dry_run: bool = False) -> ReplayReport:
    """Replay these letters one after the other. A failure of one letter does not stop the others.

    Raises StoreUnavailable when the store is unavailable: the replays until then are recorded there.
    """
    listed = list(letters)
    outcomes: list[LetterOutcome] = []
    for letter in listed:
        try:
            outcome = _look_at(how, letter) if dry_run else _replay_one(how, letter)
        except DeadLetterError as error:
            outcome = outcome_of(letter, "skipped", redact(str(error)))
        outcomes.append(outcome)
        if outcome.result == "skipped" and not dry_run:
            emit("dead-letter.skipped", "dead-letter", letter.id, outcome.model_dump(mode="json"))
        if how.progress is not None:
            how.progress(len(outcomes), len(listed), outcome)
    return ReplayReport(outcomes=tuple(outcomes), dry_run=dry_run)


@dataclass(frozen=True)
class _PreparedCall:
    """A letter's call, ready to be made. `effect`: the ledger records whether the call's effect was done in
    the batch, so a second replay repeats no side effect."""

    task: Task[..., Any]
    parameters: dict[str, Any]
    effect: bool


def _look_at(how: Replaying, letter: DeadLetter) -> LetterOutcome:
    """The expected outcome of a replay. Nothing is changed or called. May raise DeadLetterError."""
    call = _check(how, letter)
    if isinstance(call, LetterOutcome):
        return call
    if letter.status == "in_doubt" and not (how.force or call.effect):
        return _not_free(how, letter)
    arguments = ", ".join(
        f"{name}={redact(repr(value))[:SHOWN]}"
        for name, value in call.parameters.items()
        if all(name != missing.path.partition(".")[0] for missing in letter.left_out)
    )
    return outcome_of(
        letter, "would_replay", f"task {letter.name} ({letter.source}) with {arguments or 'nothing'}"
    )


def _check(how: Replaying, letter: DeadLetter) -> LetterOutcome | _PreparedCall:
    """The call of a letter, or the outcome of a letter that is not replayed. May raise DeadLetterError."""
    if letter.status not in REPLAYABLE:
        return _not_free(how, letter)
    skipped = None if how.despite_run else skip_for_its_run(letter)
    if skipped is not None and skipped.reason != "unclear":
        return skipped
    call = _prepare(how, letter)
    if skipped is not None and not call.effect:
        return skipped
    if call.effect and letter.batch_id is not None:
        try:
            check_recorded(open_ledger(), letter.batch_id)
        except NotRecorded as error:
            return outcome_of(letter, "skipped", str(error))
        except ApiUnavailable:
            pass  # the effect itself asks again
    return call


def _not_free(how: Replaying, letter: DeadLetter, why: str | None = None) -> LetterOutcome:
    why = why or refusal(letter, how.queue.now(), despite_doubt=False) or "it no longer exists"
    return outcome_of(letter, "skipped", why, reason="settled" if letter.status == "settled" else None)


def _prepare(how: Replaying, letter: DeadLetter) -> _PreparedCall:
    """Find the task, and read the parameters. Raises DeadLetterError if something is missing."""
    task: Any = how.finder.subject(letter.source, letter.key)
    if not isinstance(cast("object", task), Task):
        raise DeadLetterError(f"{letter.source} is no longer a task")
    if task.isgenerator:
        raise DeadLetterError(f"{letter.source} is a generator, which needs a reader: run its flow again")
    reader = Reader(values=how.values, find_module=partial(how.finder.module, source=letter.source))
    contents = letter.contents
    if not contents.parameters and letter.size > 2:
        raise DeadLetterError("its parameters are no longer stored")
    parameters = reader.parameters(contents.parameters)
    if reader.missing:
        raise DeadLetterError(_missing(reader))
    effect = getattr(getattr(task, "guard", None), "effect", None) is not None
    return _PreparedCall(task, parameters, effect)


def _missing(reader: Reader) -> str:
    first = reader.missing[0]
    names = ", ".join(left_out.path for left_out in reader.missing)
    lacks = f"it needs {names}, which the letter does not have ({first.why}, a {first.type})"
    return f"{lacks}: pass the value, as in --set {first.path}=..."


# -- one letter


def _replay_one(how: Replaying, listed: DeadLetter) -> LetterOutcome:
    """Claim a letter, make its call, and record the outcome. May raise DeadLetterError."""
    if (early := how.next_at - how.clock()) > 0:
        how.sleep(early)
    letter = how.queue.get(listed.id)  # it may have been listed long ago
    call = _check(how, letter)
    if isinstance(call, LetterOutcome):
        return call
    run_id = str(uuid4())
    despite_doubt = how.force or call.effect
    taken, why = how.queue.claim(letter.id, how.owner, LEASE, run_id=run_id, despite_doubt=despite_doubt)
    if why is not None or taken.claim is None:
        return _not_free(how, taken, why)
    how.next_at = max(how.clock(), how.next_at) + how.pause
    token = taken.claim.token
    try:
        outcome = _call(letter, call, run_id)
    except BaseException as error:
        # Cut off, for example by Ctrl-C: it is unknown how far the call got.
        with suppress(StoreUnavailable):
            how.queue.settle(letter.id, token, "in_doubt", redact(f"interrupted by {error!r}"))
        raise
    ended = "replayed" if outcome.result == "replayed" else "failed"
    how.queue.settle(letter.id, token, ended, outcome.message)
    payload = {**outcome.model_dump(mode="json"), "batch_id": letter.batch_id}
    emit("dead-letter.replayed", "dead-letter", letter.id, payload)
    return outcome


def _call(letter: DeadLetter, call: _PreparedCall, run_id: str) -> LetterOutcome:
    """Call the task again, in the letter's batch."""
    own_batch: AbstractContextManager[object] = (
        batch(letter.batch_id) if letter.batch_id is not None else nullcontext()
    )
    with setting(_replaying, run_id), own_batch, TagsContext(current_tags=other_tags()):
        state: Any = run_task(
            call.task, task_run_id=UUID(run_id), parameters=call.parameters, return_type="state"
        )
        ended: State[Any] = run_coro_as_sync(state) if hasattr(state, "__await__") else state
    run_id = str(ended.state_details.task_run_id or run_id)
    if ended.is_completed():
        return outcome_of(letter, "replayed", str(ended.name), run_id)
    error = error_context(ended)
    return outcome_of(letter, "failed", redact(error.summary() if error else str(ended.message)), run_id)
