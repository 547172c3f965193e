"""Chooses letters of a store: to list them, to replay them, to remove them. Imports nothing of Prefect."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import islice

from prefect_resilience.durable.letters.edge.known import StoreReference, check_task, queue_of
from prefect_resilience.durable.letters.model import DeadLetter
from prefect_resilience.durable.letters.queue import REPLAYABLE, DeadLetterQueue
from prefect_resilience.errors.exceptions import ConfigurationError

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
    return [*islice(queue_of(store).matching(status, task, since, after=after), limit)]


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
        matching = [*queue.matching(status or REPLAYABLE, task, since)][::-1][:limit]
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
