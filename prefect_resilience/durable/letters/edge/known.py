"""The letters of the configured store, chosen to be listed, replayed or removed; and what Prefect knows of
the flow runs of a letter.

A flow run that is started again repeats its calls. A replay at the same time would make the same call
twice. So a letter is left to an active flow run, and it is settled if its call has succeeded there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from prefect_resilience.base.edge.current_settings import current_settings, prefect_home
from prefect_resilience.base.naming import digest
from prefect_resilience.base.policy import closest
from prefect_resilience.durable.batches.batch import batch_block
from prefect_resilience.durable.batches.decisions import ApiUnavailable
from prefect_resilience.durable.letters import claims
from prefect_resilience.durable.letters.model import (
    Contents,
    DeadLetter,
    LetterOutcome,
    Pass,
    Reason,
    Starts,
    as_stored,
    outcome_of,
)
from prefect_resilience.durable.letters.queue import REPLAYABLE, DeadLetterQueue, is_of, with_id
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.stores import Store, open_store
from prefect_resilience.stores.base import scan_all
from prefect_resilience.telemetry.edge.events import emit

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

# Prefect is imported where a run is asked for or around the code: a list of the letters needs none.


def skip_for_its_run(letter: DeadLetter) -> LetterOutcome | None:
    """The outcome of a letter if its flow run may make or have made the call; None if it may be replayed."""
    from prefect_resilience.durable.batches.edge.flow_runs import find_runs

    try:
        runs = [*find_runs({*letter.flow_runs, letter.batch_id or ""}).values()]
    except ApiUnavailable as error:
        return _skip(letter, f"it is unknown whether its flow run is active: {error}", "api_unavailable")
    why = claims.why_left_to_runs(letter, runs)
    return None if why is None else _skip(letter, *why)


def _skip(letter: DeadLetter, why: str, reason: Reason) -> LetterOutcome:
    return outcome_of(letter, "skipped", redact(why), reason=reason)


StoreReference = Store | str | None
"""A value of `store=`: None for the configured store, a URL, or an open store."""


def queue_of(store: StoreReference = None) -> DeadLetterQueue:
    """The dead letters of a store. Letters kept on this host during an outage are stored first."""
    opened = open_store(store or current_settings().store_url) if not isinstance(store, Store) else store
    queue = DeadLetterQueue(opened)
    with suppress(StoreUnavailable, OSError):
        _store_kept(queue)
    return queue


Letters = str | DeadLetter | Iterable["str | DeadLetter"] | None


def list_letters(
    status: str | Iterable[str] | None = None,
    task: str | None = None,
    since: datetime | timedelta | None = None,
    limit: int | None = None,
    *,
    after: str | None = None,
    store: StoreReference = None,
) -> list[DeadLetter]:
    """The dead letters, the newest first.

    Args:
        status: "waiting", "replaying", "in_doubt", "replayed" or "settled", or several of them; all when
            left out.
        task: Only those of the task or flow of this name, key or import path ("module:function").
        since: Only those made after this time (without an offset: in UTC), or within this timedelta.
        limit: The maximum number of letters.
        after: Only those older than the letter of this id: the last one of the page before.
        store: A store or its URL; the configured one when left out.

    Raises StoreUnavailable, and ConfigurationError for a status that does not exist.
    """
    if limit is not None and limit < 1:
        raise ConfigurationError(f"limit={limit} must be 1 or more; leave it out for all")
    return [*islice(queue_of(store).letters(status, task, since, after=after), limit)]


def get_letter(letter_id: str, *, store: StoreReference = None) -> DeadLetter:
    """One dead letter, with its parameters and its error. Raises DeadLetterError when there is none."""
    return queue_of(store).get(letter_id)


def choose(
    queue: DeadLetterQueue,
    letters: Letters,
    status: str | Iterable[str] | None = None,
    task: str | None = None,
    since: datetime | timedelta | None = None,
    limit: int | None = None,
) -> list[DeadLetter]:
    """The letters to replay, the oldest first. Raises ConfigurationError for an unknown task."""
    if letters is None:
        matching = [*queue.letters(status or REPLAYABLE, task, since)][::-1][:limit]
        if not matching:
            check_task(queue, task)
        return matching
    if status is not None or task is not None or since is not None:
        raise ConfigurationError("choose the letters either by their ids, or by status, task and since")
    named = [letters] if isinstance(letters, str | DeadLetter) else list(letters)
    ids = {letter.id if isinstance(letter, DeadLetter) else letter for letter in named}
    return [queue.get(letter_id) for letter_id in sorted(ids)][:limit]


def purge(
    older_than: datetime | timedelta,
    *,
    include_waiting: bool = False,
    dry_run: bool = False,
    store: StoreReference = None,
) -> list[DeadLetter]:
    """Remove letters that were replayed or settled before a time, and return them.

    Args:
        older_than: A time (without an offset: in UTC), or a span before now.
        include_waiting: Also letters made before then that were never replayed, or are in doubt.
        dry_run: Only return the letters; remove nothing.
    """
    return [*queue_of(store).purge(older_than, include_waiting=include_waiting, dry_run=dry_run)]


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
        queue.put(DeadLetter.model_validate(written["letter"]), Contents.model_validate(written["contents"]))
        path.unlink(missing_ok=True)


def check_task(queue: DeadLetterQueue, task: str | None) -> None:
    """Raise ConfigurationError for a task without letters if one with a similar name has letters."""
    if task is None:
        return
    names: set[str] = set()
    for letter in queue.letters():
        if is_of(letter, task):
            return
        names.add(letter.name)
    near = closest(task, sorted(names))
    if near is not None:
        raise ConfigurationError(f"there is no dead letter of a task {task!r}. Did you mean {near!r}?")


def settle_call(
    starts: Starts, batch_id: str | None, identity: Callable[[], str], task_run_id: str | None, twice: bool
) -> DeadLetter | None:
    """Settle the letter that an earlier pass left for a call that has now succeeded.

    `twice`: the same run may have left it. Else the store is read once per pass, and `identity` is called
    only if the batch has letters. May raise StoreUnavailable.
    """
    success = Pass(at=datetime.now(UTC), outcome="succeeded", starts=starts, task_run_id=task_run_id)
    letters = None if twice else letters_before(starts, digest(str(batch_id)))
    if letters is not None and not letters:
        return None
    call = identity()
    if letters is not None and call not in letters:
        return None
    letter = queue_of().call_succeeded(call, success, batch_id)
    if letter is None or letter.status != "settled":
        return None
    payload = {"id": letter.id, "name": letter.name, "batch_id": letter.batch_id}
    emit("dead-letter.settled", "dead-letter", letter.id, payload)
    return letter


@lru_cache(maxsize=500)
def letters_before(starts: Starts, batch: str) -> set[str]:
    """The calls that had letters when this pass of a flow run began; `batch` is the batch's digest.

    A letter made later belongs to a failure in this pass, or to another run.
    """
    calls = scan_all(queue_of().store, f"{claims.CALLS}{batch}.")
    return {key.removeprefix(claims.CALLS) for key, _ in calls}


def starts_around(flow_run: FlowRun | None) -> Starts:
    """The flow runs around a call, from the API if this process does not know them; outside of flows the
    `with batch(...)` around it, as its pass of the batch."""
    if flow_run is None:
        block = batch_block()
        return () if block is None else ((block, 1),)
    from prefect_resilience.durable.batches.edge.tags import passes_of_runs

    try:
        return passes_of_runs(flow_run)
    except Exception:  # noqa: BLE001 - any failure of the API; the letter is kept
        return ((str(flow_run.id), flow_run.run_count),)
