"""Replaying dead letters: the same call, in the same batch. A letter has one replay at a time.

A letter is claimed right before its call, under the id of the replay's run. A replay that is cut off leaves
its letter in doubt. Without `force`, such a letter is replayed only if no side effect can happen twice: the
task has an `effect=`, and the ledger has the effects of the batch; or Prefect knows how the replay's run
ended; or the replay is a run of a deployment, which Prefect creates once per idempotency key.

A letter is left to its flow run while that run is active or being recovered (see `known`). This is checked
before the letter is claimed, and again right before the call.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID, uuid4

from prefect import Flow, Task
from prefect.blocks.core import Block
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import TagsContext
from prefect.exceptions import ObjectNotFound
from prefect.flow_engine import run_flow
from prefect.task_engine import run_task
from prefect.utilities.asyncutils import run_coro_as_sync
from prefect.utilities.importtools import load_script_as_module
from pydantic_core import to_jsonable_python

from prefect_resilience.base.process import start_thread
from prefect_resilience.durable.batches.batch import batch
from prefect_resilience.durable.batches.decisions import ApiUnavailable
from prefect_resilience.durable.batches.edge.status import check_recorded
from prefect_resilience.durable.batches.edge.tags import TAG, other_tags
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.letters.claims import refusal
from prefect_resilience.durable.letters.codec import Reader
from prefect_resilience.durable.letters.edge.known import known_end, left_to_its_run
from prefect_resilience.durable.letters.kinds import DeadLetterError, Finder
from prefect_resilience.durable.letters.model import (
    RUN_CREATED,
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

LETTER_TAG = "dead-letter:"
"""The prefix of the tag with the letter's id, on a deployment's run that replays it."""
SHOWN = 60
LEASE = 60.0
"""Seconds without a renewal after which a replay counts as dead; at once if its process here is dead."""

_replaying: ContextVar[str | None] = ContextVar("prefect_resilience_replaying", default=None)


def in_replay() -> bool:
    """Whether this code runs in the replay of a letter."""
    return _replaying.get() is not None


def is_replay_itself(run: object) -> bool:
    """Whether this task run (its id) or a run of this flow (its key) is the current replay."""
    return _replaying.get() == str(run)


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
    """A letter's call, ready to be made. `protected`: a second replay repeats no side effect. `effect`: the
    ledger records whether the call's effect was done in the batch."""

    subject: Any
    parameters: dict[str, Any]
    protected: bool
    effect: bool


def _look_at(how: Replaying, letter: DeadLetter) -> LetterOutcome:
    """The expected outcome of a replay. Nothing is changed or called. May raise DeadLetterError."""
    call = _check(how, letter, dry_run=True)
    if isinstance(call, LetterOutcome):
        return call
    if letter.status == "in_doubt" and not (how.force or call.protected):
        return _not_free(how, letter)
    arguments = ", ".join(
        f"{name}={redact(repr(value))[:SHOWN]}"
        for name, value in call.parameters.items()
        if all(name != missing.path.partition(".")[0] for missing in letter.left_out)
    )
    where = f"deployment {letter.deployment_id}" if letter.deployment_id else str(letter.source)
    return outcome_of(
        letter, "would_replay", f"{letter.kind} {letter.name} ({where}) with {arguments or 'nothing'}"
    )


def _check(how: Replaying, letter: DeadLetter, *, dry_run: bool = False) -> LetterOutcome | _PreparedCall:
    """The call of a letter, or the outcome of a letter that is not replayed. May raise DeadLetterError."""
    if letter.status not in REPLAYABLE:
        return _not_free(how, letter)
    skipped = left_to_its_run(how.queue, letter, despite_run=how.despite_run, dry_run=dry_run)
    if skipped is not None and skipped.reason != "unclear":
        return skipped
    call = _prepare(how, letter)
    if skipped is not None and not call.effect:
        return skipped
    local = letter.deployment_id is None and (call.effect or letter.kind == "flow")
    if local and letter.batch_id is not None:
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
    """Find the task or flow, and read the parameters. Raises DeadLetterError if something is missing."""
    deployed = letter.deployment_id is not None
    subject = None if deployed else how.finder.subject(letter.source, letter.key)
    kind: type[Any] = Task if letter.kind == "task" else Flow
    if not deployed and not isinstance(subject, kind):
        raise DeadLetterError(f"{letter.source} is no longer a {letter.kind}")
    reader = Reader(
        values=how.values, find_module=how.finder.modules_of(letter.source), load_block=load_block
    )
    contents = letter.contents
    if not contents.parameters and letter.size > 2:
        raise DeadLetterError("its parameters are no longer stored")
    parameters = reader.parameters(contents.parameters)
    if reader.missing:
        raise DeadLetterError(_missing(reader))
    effect = getattr(getattr(subject, "guard", None), "effect", None) is not None
    return _PreparedCall(subject, parameters, deployed or effect, effect)


def _missing(reader: Reader) -> str:
    first = reader.missing[0]
    names = ", ".join(left_out.path for left_out in reader.missing)
    lacks = f"it needs {names}, which the letter does not have ({first.why}, a {first.type})"
    return f"{lacks}: pass the value, as in --set {first.path}=..."


def load_block(name: str) -> Any:
    """The saved block that a letter or a ledger names, as "type-slug/name"."""
    try:
        loaded = cast("Any", Block.load)(name)
        return run_coro_as_sync(loaded) if hasattr(loaded, "__await__") else loaded
    except Exception as error:
        raise DeadLetterError(f"the block {name} cannot be loaded here: {error}") from error


# -- one letter


def _replay_one(how: Replaying, listed: DeadLetter) -> LetterOutcome:
    """Claim a letter and make its call. May raise DeadLetterError."""
    letter = how.queue.get(listed.id)  # it may have been listed long ago
    call = _check(how, letter)
    if isinstance(call, LetterOutcome):
        return call
    if letter.status == "in_doubt" and (outcome := known_end(how.queue, letter)) is not None:
        return outcome
    run_id = str(uuid4())
    taken, why = how.queue.claim(
        letter.id,
        how.owner,
        LEASE,
        run_id=run_id if letter.kind == "task" else None,
        despite_doubt=how.force or call.protected,
    )
    if why is not None or taken.claim is None:
        return _not_free(how, taken, why)
    return _replay_claimed(how, taken.holding(letter.contents), call, taken.claim.token, run_id)


def _replay_claimed(
    how: Replaying, letter: DeadLetter, call: _PreparedCall, token: str, run_id: str
) -> LetterOutcome:
    """Make the call while a thread renews the claim, and record the outcome."""
    _keep_to(how)
    try:
        with _hold(how, letter.id, token):
            # Its flow run may have been started again since the first check.
            skipped = None if how.despite_run else left_to_its_run(how.queue, letter, despite_run=False)
            if skipped is not None and not (skipped.reason == "unclear" and call.effect):
                how.queue.release(letter.id, token)
                return skipped
            if letter.deployment_id is not None:
                outcome = _run_deployment(letter, call.parameters)
            else:
                outcome = _call(letter, call, run_id)
    except BaseException as error:
        # Cut off, for example by Ctrl-C: it is unknown how far the call got.
        with suppress(StoreUnavailable):
            how.queue.settle(letter.id, token, "in_doubt", redact(f"interrupted by {error!r}"))
        raise
    ended = "replayed" if outcome.result == "replayed" else "failed"
    how.queue.settle(letter.id, token, ended, outcome.message)
    emit(
        "dead-letter.replayed",
        "dead-letter",
        letter.id,
        {**outcome.model_dump(mode="json"), "batch_id": letter.batch_id, "kind": letter.kind},
    )
    return outcome


def _keep_to(how: Replaying) -> None:
    """Wait as long as `rate` demands."""
    if how.rate is None:
        return
    now = how.clock()
    if now < how.next_at:
        how.sleep(how.next_at - now)
    how.next_at = max(now, how.next_at) + 1 / how.rate


@contextmanager
def _hold(how: Replaying, letter_id: str, token: str) -> Generator[None, None, None]:
    """Renew a claim while the call runs."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(LEASE / 3):
            with suppress(StoreUnavailable):
                if not how.queue.renew(letter_id, token, LEASE):
                    return

    thread = start_thread("dead-letter-lease", renew)
    try:
        yield
    finally:
        over.set()
        thread.join()


def _call(letter: DeadLetter, call: _PreparedCall, run_id: str) -> LetterOutcome:
    """Call the task or flow again, in the letter's batch."""
    own_batch: AbstractContextManager[object] = (
        batch(letter.batch_id) if letter.batch_id is not None else nullcontext()
    )
    token = _replaying.set(run_id if letter.kind == "task" else letter.key)
    try:
        with own_batch:
            if letter.kind == "task":
                state = _run_task(call, run_id)
            else:
                state = _finish(run_flow(call.subject, parameters=call.parameters, return_type="state"))
    finally:
        _replaying.reset(token)
    return _outcome_of_run(letter, state, run_id)


def _run_task(call: _PreparedCall, run_id: str) -> State[Any] | BaseException | None:
    task = cast("Task[..., Any]", call.subject)
    with TagsContext(current_tags=other_tags()):
        kind = "result" if task.isgenerator else "state"
        result: Any = run_task(task, task_run_id=UUID(run_id), parameters=call.parameters, return_type=kind)
        if not task.isgenerator:
            return _finish(result)
    try:  # a generator's task run ends when all of it has been read
        if task.isasync:
            run_coro_as_sync(_read_to_end(result))
        else:
            deque(result, maxlen=0)
    except Exception as error:  # noqa: BLE001 - any error of the task
        return error
    return None


async def _read_to_end(stream: Any) -> None:
    async for _ in stream:
        pass


def _finish(made: Any) -> State[Any] | None:
    return run_coro_as_sync(made) if hasattr(made, "__await__") else made


def _outcome_of_run(
    letter: DeadLetter, ended: State[Any] | BaseException | None, run_id: str
) -> LetterOutcome:
    if isinstance(ended, State):
        details = ended.state_details
        run_id = str((details.task_run_id if letter.kind == "task" else details.flow_run_id) or run_id)
        if ended.is_completed():
            return outcome_of(letter, "replayed", str(ended.name), run_id)
    elif ended is None:
        return outcome_of(letter, "replayed", "Completed", run_id)
    error = error_context(ended)
    message = error.summary() if error else str(getattr(ended, "message", ended))
    return outcome_of(letter, "failed", redact(message), run_id)


def _run_deployment(letter: DeadLetter, parameters: dict[str, Any]) -> LetterOutcome:
    """Create a run of the letter's deployment: one run per replay, however often this is tried."""
    definite = [replay.finished_at.isoformat() for replay in letter.replays if replay.outcome != "in_doubt"]
    key = "-".join(["dead-letter", letter.id, *definite[-1:]])
    tags = [f"{LETTER_TAG}{letter.id}", *([f"{TAG}{letter.batch_id}"] if letter.batch_id else [])]
    with get_client(sync_client=True) as client:
        try:
            run = client.create_flow_run_from_deployment(
                UUID(letter.deployment_id),
                parameters=to_jsonable_python(parameters),
                tags=tags,
                idempotency_key=key,
            )
        except ObjectNotFound:
            return outcome_of(letter, "failed", f"deployment {letter.deployment_id} no longer exists")
    return outcome_of(letter, "replayed", f"{RUN_CREATED}: {run.name}", str(run.id))
