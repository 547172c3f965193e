"""The dead letters of the configured store, in Python and as the flows that an operator deploys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from prefect import flow, tags
from prefect.blocks.system import Secret
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger

from prefect_resilience.base.process import setting
from prefect_resilience.durable.batches.edge.flow_runs import OWN_TAG
from prefect_resilience.durable.letters.edge.known import Letters, StoreReference, choose, queue_of
from prefect_resilience.durable.letters.edge.replay import Replaying, replay_letters
from prefect_resilience.durable.letters.model import DeadLetter, LetterOutcome, Progress, ReplayReport
from prefect_resilience.errors.exceptions import ConfigurationError

LETTERS_SHOWN = 100
"""The most ids that are written to a flow run's parameters."""

_handed: ContextVar[tuple[Replaying, list[DeadLetter]] | None] = ContextVar(
    "prefect_resilience_replay", default=None
)
"""Input of the flow that is not a parameter, since Prefect keeps and shows parameters."""


def replay(
    letters: Letters = None,
    dry_run: bool = False,
    rate: float | None = None,
    *,
    status: str | Iterable[str] | None = None,
    task: str | None = None,
    since: datetime | timedelta | None = None,
    limit: int | None = None,
    force: bool = False,
    values: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    store: StoreReference = None,
) -> ReplayReport:
    """Repeat the calls of dead letters, the oldest first, in a flow run `replay-dead-letters`.

    Each call is made in its letter's batch: an effect that is done there is not repeated. A letter has one
    replay at a time, and is replayed with success only once. After an interruption, call `replay` again to
    continue; an interrupted letter is replayed only if no side effect can happen twice (see `force`).

    A letter is skipped, and keeps waiting, while its flow run is active or waits for a retry: that
    run may make the call itself. If the call has succeeded there, the letter is settled.

    Args:
        letters: Ids or letters; or leave it out and choose by `status`, `task`, `since` and `limit`. Without
            any of them: all waiting letters.
        dry_run: Only report the calls. Nothing is called, and no flow run is made.
        rate: The maximum number of letters per second.
        limit: The maximum number of letters.
        force: Also letters in doubt, whose last replay was interrupted at an unknown point; and a single
            letter that is named by its id, although its flow run is active or unknown. Their calls may then
            happen twice, unless they have an `effect=`.
        values: The values left out of letters, by path: {"api_key": "...", "order.card.number": "..."}.
        progress: Called after each letter with (done, total, outcome).

    Raises ConfigurationError for wrong options, StoreUnavailable when the store is unavailable.
    """
    queue = queue_of(store)
    chosen = choose(queue, letters, status, task, since, limit)
    despite_run = force and letters is not None and len(chosen) == 1
    how = Replaying(queue, rate, force, values or {}, progress, despite_run)
    return replay_chosen(how, chosen, task=task, dry_run=dry_run)


def replay_chosen(
    how: Replaying, chosen: list[DeadLetter], *, task: str | None = None, dry_run: bool = False
) -> ReplayReport:
    """Replay these letters in a flow run that shows the options as parameters; see `replay`."""
    if dry_run or not chosen or FlowRunContext.get() is not None:
        return replay_letters(how, chosen, dry_run=dry_run)
    few = [letter.id for letter in chosen] if len(chosen) <= LETTERS_SHOWN else None
    with setting(_handed, (how, chosen)), tags(OWN_TAG):
        report = replay_dead_letters(letters=few, task=task, rate=how.rate, force=how.force)
    return ReplayReport.model_validate(report)


# -- the flows


@flow(name="replay-dead-letters")
def replay_dead_letters(
    letters: list[str] | None = None,
    task: str | None = None,
    since: datetime | None = None,
    rate: float | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    force: bool = False,
    secrets: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Repeat the calls of dead letters, the oldest first. After an interruption, a new run continues.

    Args:
        letters: Ids; all waiting letters when left out.
        task: Only letters of the task or flow of this name or import path.
        since: Only letters made after this time (without an offset: in UTC).
        rate: The maximum number of letters per second.
        limit: The maximum number of letters.
        dry_run: Only report the calls; make none.
        force: Also letters in doubt, whose last replay was interrupted at an unknown point; and a single
            letter that is named by its id, although its flow run is active or unknown. Their calls may then
            happen twice, unless they have an `effect=`.
        secrets: The Secret blocks with the values left out of letters, by the values' paths:
            {"api_key": "my-block"}.
    """
    log = get_run_logger()
    if (handed := _handed.get()) is not None:
        how, chosen = handed
    else:
        queue = queue_of()
        chosen = choose(queue, letters, None, task, since, limit)
        load: Any = Secret.load
        values = {path: str(load(name, _sync=True).get()) for path, name in (secrets or {}).items()}
        despite_run = force and letters is not None and len(letters) == 1
        how = Replaying(queue, rate, force, values, despite_run=despite_run)
    progress = how.progress

    def log_outcome(done: int, total: int, outcome: LetterOutcome) -> None:
        log.info("%s/%s %s of %s: %s", done, total, outcome.result, outcome.name, outcome.message)
        if progress is not None:
            progress(done, total, outcome)

    report = replay_letters(replace(how, progress=log_outcome), chosen, dry_run=dry_run)
    log.info("%s", report.summary())
    return report.model_dump(mode="json")


@flow(name="purge-dead-letters")
def purge_dead_letters(
    older_than_days: float = 30.0,
    include_waiting: bool = False,
    dry_run: bool = False,
) -> list[str]:
    """Remove dead letters that were replayed or settled long ago; returns their ids.

    Args:
        older_than_days: The minimum age in days.
        include_waiting: Also letters of this age that were never replayed, or are in doubt.
        dry_run: Only return the ids; remove nothing.
    """
    if older_than_days < 0:
        raise ConfigurationError(f"older_than_days={older_than_days} must be 0 or more")
    age = timedelta(days=older_than_days)
    gone = queue_of().purge(age, include_waiting=include_waiting, dry_run=dry_run)
    ids = [letter.id for letter in gone]
    get_run_logger().info("Dead letters %s: %d", "to be removed" if dry_run else "removed", len(ids))
    return ids
