"""The letters of the configured store, and what Prefect knows of a letter's flow runs and replays.

A flow run that is started again repeats its calls. A replay at the same time would make the same call
twice. So a letter is left to an active flow run, and it is settled if its call has succeeded there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect_resilience.base.edge.current_settings import api_url, current_settings, prefect_home
from prefect_resilience.base.naming import digest
from prefect_resilience.base.policy import closest
from prefect_resilience.durable.batches.audit import Audit
from prefect_resilience.durable.batches.batch import batch_block
from prefect_resilience.durable.batches.decisions import ApiUnavailable, BatchRun
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.letters import claims
from prefect_resilience.durable.letters.claims import ENTRY, SETTLED
from prefect_resilience.durable.letters.model import (
    Contents,
    DeadLetter,
    LetterOutcome,
    Pass,
    Reason,
    Starts,
    as_stored,
    batch_digest,
    from_stored,
    outcome_of,
)
from prefect_resilience.durable.letters.queue import OPEN, DeadLetterQueue, is_of, with_id
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.stores import Store, open_store
from prefect_resilience.stores.base import scan_all
from prefect_resilience.telemetry.edge.events import emit

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

# Prefect is imported where a run is asked for or around the code: a list of the letters needs none.


def left_to_its_run(
    queue: DeadLetterQueue, letter: DeadLetter, *, despite_run: bool, dry_run: bool = False
) -> LetterOutcome | None:
    """The outcome of a letter if its flow run makes or made the call; None if it may be replayed.

    `despite_run`: the operator has checked, so only a call that is known to have succeeded is skipped.
    """
    from prefect_resilience.durable.batches.edge.flow_runs import find_runs

    try:
        runs = [*find_runs({*letter.flow_runs, letter.batch_id or ""}).values()]
    except ApiUnavailable as error:
        unknown = f"it is unknown whether its flow run is active: {error}"
        return None if despite_run else _skip(letter, unknown, "api_unavailable")
    ended = claims.later_ends(letter, runs)
    if letter.kind == "flow" and letter.status == "waiting":
        own = {letter.flow_run_id, *letter.replay_runs}
        if done := [run for run in ended if str(run.id) in own and run.type == "COMPLETED"]:
            return _settle(queue, letter, done[0], dry_run)
    if despite_run:
        return None
    if (why := claims.going_on(runs) or _recovery(queue, letter)) is not None:
        return _skip(letter, why, "run_goes_on")
    return _skip(letter, claims.unclear(ended[0]), "unclear") if ended else None


def _skip(letter: DeadLetter, why: str, reason: Reason) -> LetterOutcome:
    return outcome_of(letter, "skipped", redact(why), reason=reason)


def _recovery(queue: DeadLetterQueue, letter: DeadLetter) -> str | None:
    """The reason to skip the letter while its batch is being recovered and its run scheduled; else None."""
    ledger = open_ledger(queue.store)
    roots = {run_pass.starts[0][0] for run_pass in letter.passes if run_pass.starts}
    for batch_id in sorted(roots | ({letter.batch_id} if letter.batch_id else set())):
        audit = Audit(ledger, batch_id)
        if audit.is_claimed(document := audit.document()):
            return f"{document['claim']['by']} is recovering its batch: its flow run may make the call itself"
    return None


def _settle(queue: DeadLetterQueue, letter: DeadLetter, run: BatchRun, dry_run: bool) -> LetterOutcome:
    """Settle the letter: the call succeeded without a replay."""
    if not dry_run:
        succeeded = Pass(at=queue.now(), outcome="succeeded", starts=((str(run.id), run.run_count),))
        after = queue.made_by_run(letter.id, succeeded)
        if after is not None and after.status == "settled":
            tell_settled(after)
    return outcome_of(letter, "skipped", SETTLED, reason="settled")


def tell_settled(letter: DeadLetter) -> None:
    """Send the event that a letter needs no replay."""
    payload = {"id": letter.id, "name": letter.name, "kind": letter.kind, "batch_id": letter.batch_id}
    emit("dead-letter.settled", "dead-letter", letter.id, payload)


# -- how a replay ended


def known_end(queue: DeadLetterQueue, letter: DeadLetter) -> LetterOutcome | None:
    """The outcome of a replay that was cut off, from its task run; None if the letter may be replayed."""
    run_id = letter.claim.run_id if letter.claim else next((r.run_id for r in letter.replays[::-1]), None)
    if run_id is None or letter.kind != "task":
        return None
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            state = client.read_task_run(UUID(run_id)).state
        except (ObjectNotFound, ValueError):
            return None
    if state is None or not (state.is_completed() or state.is_failed()):
        return None
    ended = f"the interrupted replay has ended: {state.name}"
    queue.resolve(letter.id, "replayed" if state.is_completed() else "failed", ended)
    return outcome_of(letter, "replayed", ended, run_id) if state.is_completed() else None


StoreReference = Store | str | None
"""A value of `store=`: None for the configured store, a URL, or an open store."""


def queue_of(store: StoreReference = None) -> DeadLetterQueue:
    """The dead letters of a store. Letters kept on this host during an outage are stored first."""
    opened = open_store(store or current_settings().store_url) if not isinstance(store, Store) else store
    queue = DeadLetterQueue(opened)
    with suppress(StoreUnavailable, OSError):
        _store_kept(queue)
    return queue


# -- letters on this host while the store is unavailable

ENDING = ".letter.json"


def spool_of(queue: DeadLetterQueue) -> Path:
    """The folder that holds the letters of a store while it is unavailable."""
    return prefect_home() / "dead-letters" / digest(queue.store.url)


def keep_on_host(queue: DeadLetterQueue, letter: DeadLetter, contents: Contents) -> DeadLetter:
    """Write a letter and sync it to the disk; only this user can read it. May raise OSError."""
    letter, folder = with_id(letter, datetime.now(UTC)), spool_of(queue)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = folder / f"{letter.id}.part"
    written = {"letter": as_stored(letter), "contents": contents.model_dump(mode="json")}
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(written, file)
        file.flush()
        os.fsync(file.fileno())
    part.rename(folder / f"{letter.id}{ENDING}")
    return letter


def _store_kept(queue: DeadLetterQueue) -> None:
    """Move the letters on this host to the store. May raise StoreUnavailable and OSError.

    Two processes may do this at once, and one may be cut off. A letter keeps the id that it got on the host,
    so it is stored once.
    """
    for path in sorted(spool_of(queue).glob(f"*{ENDING}")):
        try:
            written = json.loads(path.read_text())
        except FileNotFoundError:
            continue  # another process was first
        queue.put(from_stored(written["letter"]), Contents.model_validate(written["contents"]))
        path.unlink(missing_ok=True)


LISTED = 5


def check_task(queue: DeadLetterQueue, task: str | None) -> None:
    """Raise ConfigurationError for a task or flow without letters and without known runs.

    A name is right if the store has no letters at all, or if the Prefect API knows runs of it. Without an API
    a name is wrong if a similar one has letters.
    """
    if task is None:
        return
    names: set[str] = set()
    for letter in queue.letters():
        if is_of(letter, task):
            return
        names.add(letter.name)
    if not names:
        return
    near = closest(task, sorted(names))
    if _has_run(task, unknown=near is None):
        return
    examples = f"There are letters of {', '.join(sorted(names)[:LISTED])}."
    hint = f"Did you mean {near!r}?" if near else examples
    raise ConfigurationError(f"there is no dead letter of a task or flow {task!r}. {hint}")


def _has_run(task: str, unknown: bool) -> bool:
    """Whether the Prefect API knows a run of this task or flow; `unknown` if the API does not answer."""
    if api_url() is None:
        return unknown
    from prefect.client.orchestration import get_client

    name = task.rpartition(":")[2].rpartition(".")[2]
    try:
        with get_client(sync_client=True) as client:
            flows = client.request("POST", "/flows/count", json={"flows": {"name": {"any_": [name]}}})
            # Prefect names a run after its task, followed by a short suffix.
            runs = {"task_runs": {"name": {"like_": f"{name}-"}}}
            return bool(flows.json() or client.request("POST", "/task_runs/count", json=runs).json())
    except Exception:  # noqa: BLE001 - any failure of the API
        return unknown


def settle_call(
    starts: Starts, batch_id: str | None, identity: Callable[[], str], task_run_id: str | None, twice: bool
) -> DeadLetter | None:
    """Settle the letter that an earlier pass left for a call that has now succeeded.

    `twice`: the same run may have left it. Else the store is read once per pass, and `identity` is called
    only if the batch has letters. May raise StoreUnavailable.
    """
    success = Pass(at=datetime.now(UTC), outcome="succeeded", starts=starts, task_run_id=task_run_id)
    own = claims.of_run(queue_of().store, task_run_id) if twice else None
    if own is not None:
        letter = queue_of().made_by_run(own, success)
    else:
        letters = letters_before(starts, batch_digest(batch_id))
        if not letters or (call := identity()) not in letters:
            return None
        letter = queue_of().call_succeeded(call, success, batch_id)
    if letter is not None and letter.status == "settled":
        tell_settled(letter)
    return letter


@lru_cache(maxsize=500)
def letters_before(starts: Starts, batch: str) -> set[str]:
    """The calls that had letters when this pass of a flow run began; `batch` is the batch's digest.

    A letter made later belongs to a failure in this pass, or to another run.
    """
    return claims.in_batch(queue_of().store, batch)


def starts_here() -> Starts | None:
    """The flow runs around this code, without asking the API.

    None outside of flows, and if the caller of the flow run is in another process.
    """
    runs = [*_contexts()]
    if not runs or runs[-1].parent_task_run_id is not None:
        return None
    return tuple((str(run.id), run.run_count) for run in reversed(runs))


def block_starts() -> Starts:
    """The `with batch(...)` around a call outside of flows: its pass of the batch."""
    block = batch_block()
    return () if block is None else ((block, 1),)


def starts_of(flow_run: FlowRun) -> Starts:
    """The flow runs around a flow run and the run itself; from the API if this process does not know them.

    If the API does not answer, only the flow run itself.
    """
    from prefect_resilience.durable.batches.edge.tags import passes_of_runs

    starts = starts_here()
    if starts is not None and starts[-1][0] == str(flow_run.id):
        return starts
    try:
        return passes_of_runs(flow_run)
    except Exception:  # noqa: BLE001 - any failure of the API; the letter is kept
        return ((str(flow_run.id), flow_run.run_count),)


def _contexts() -> Iterator[FlowRun]:
    """The current flow run, its caller, and so on.

    Prefect keeps the outer context only in the token that restores it.
    """
    from prefect.context import FlowRunContext

    context: Any = FlowRunContext.get()
    last: FlowRun | None = None
    while isinstance(context, FlowRunContext) and context.flow_run is not None:
        if last is None or context.flow_run.id != last.id:  # a thread may have entered a copy of it
            last = context.flow_run
            yield last
        if last.parent_task_run_id is None:
            return
        context = getattr(getattr(context, "_token", None), "old_value", None)


def count_ended(queue: DeadLetterQueue, most: int) -> tuple[int, bool]:
    """The number of letters among the newest `most` that were replayed or settled, and whether there are
    older ones."""
    documents = scan_all(queue.store, ENTRY)
    first = (document.value.get("status", "waiting") for _, document in islice(documents, most))
    return sum(status not in OPEN for status in first), next(documents, None) is not None
