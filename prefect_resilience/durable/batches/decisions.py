"""Decides what a recovery does, from the state of the batch and the request. Pure: changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from prefect_resilience.base.text import utc_text
from prefect_resilience.durable.batches.audit import AuditEntry, RecoveryAction, trail_of
from prefect_resilience.durable.batches.batch import run_id_of
from prefect_resilience.durable.batches.strategies import (
    ENDED_BADLY,
    RESTARTS,
    STRATEGIES,
    RecoveryHint,
    RecoveryPolicy,
    RecoveryTrail,
    RunEnd,
    SeenEffect,
    Strategy,
    recovery_hint,
    restart_strategy,
)
from prefect_resilience.durable.sagas.compensations import NotUndone, RollbackReport, in_words, not_undone
from prefect_resilience.errors.exceptions import ResilienceError

AUTO, RESTART = "auto", "restart"
ASKED = (AUTO, RESTART, *STRATEGIES)


@dataclass(frozen=True, slots=True)
class RecoveryRequest:
    """The options of a recovery."""

    strategy: str = AUTO
    to: str | None = None
    force: bool = False
    policy: RecoveryPolicy | None = None
    """None: the policy of the run's flow, else the default."""


def archive_in_words(done: int, at: float) -> str:
    """How many effects of a batch were done and are archived, and since when."""
    subject = "its 1 done effect was" if done == 1 else f"its {done} done effects were"
    return f"{subject} moved to the archive at {utc_text(at)}"


FAILED_OR_CRASHED = ("FAILED", "CRASHED")


class ApiUnavailable(ResilienceError):
    """The Prefect API is unavailable or rejected the request; nothing was changed."""


@dataclass(frozen=True, slots=True)
class BatchRun:
    """A root flow run. `state` is its state's name in the UI, `type` the type in capitals. `since` is when it
    entered the state, in seconds since the epoch."""

    id: UUID
    name: str
    type: str
    state: str
    since: float
    deployed: bool
    next_at: float | None
    ended: RunEnd
    policy: RecoveryPolicy | None = None
    """The recovery policy of its flow, if it has one."""
    inner: bool = False
    """Whether it is a subflow run."""
    labels: Mapping[str, Any] = field(default_factory=dict[str, Any])
    pool: str | None = None
    """Its work pool."""
    run_count: int = 0
    """How often it began."""
    asks_for_recovery: bool = False
    """Whether its flow or its deployment allows automatic recovery."""
    in_process: bool = False
    """Whether it waits for a retry in its process. If that is gone, `type` is CRASHED."""

    @property
    def ended_badly(self) -> bool:
        """Whether it failed, crashed or was cancelled."""
        return self.type in ENDED_BADLY


@dataclass(frozen=True, slots=True)
class BatchSnapshot:
    """The state of a batch."""

    batch_id: str
    effects: tuple[SeenEffect, ...]
    busy: tuple[str, ...]
    """The keys of the effects in progress."""
    run: BatchRun | None
    log: dict[str, Any]
    now: float
    begun_at: float | None = None
    """When the newest of its effects was last begun."""
    flow_run_id: str | None = None
    """The flow run of that effect."""
    archived: str | None = None
    """The archived effects in words, if the ledger has none of the batch any more."""
    not_recorded: str | None = None
    """Why the ledger does not have all records that Prefect has of the batch."""

    @property
    def trail(self) -> RecoveryTrail:
        """Earlier recoveries. An effect that was begun after an abandonment ends it."""
        trail = trail_of(self.log)
        again = (
            trail.abandoned_at is not None
            and self.begun_at is not None
            and self.begun_at > trail.abandoned_at
        )
        return replace(trail, abandoned_at=None) if again else trail


class RecoveryReport(BaseModel, frozen=True):
    """What a recovery did, or with `dry_run` what it would have done.

    `action`: "rescheduled" (a worker runs the same flow run again, from `next_at` on), "compensated",
    "abandoned", "told" (a person must act, as `why` says), `refused` (not now, as `why` says), or "nothing"
    (there is nothing to recover, or it was abandoned). `next_at` is in seconds since the epoch. `undone` and
    `not_undone`: the effects that a rollback compensated, or would compensate, and those that it leaves, with
    the reasons. `audit` is the batch's audit log, the newest entry last.
    """

    batch_id: str
    strategy: Strategy | None
    why: str
    action: RecoveryAction
    flow_run_id: str | None = None
    next_at: float | None = None
    dry_run: bool = False
    undone: tuple[str, ...] = ()
    not_undone: tuple[NotUndone, ...] = ()
    audit: tuple[AuditEntry, ...] = ()
    waits: bool = False
    """Whether it waits for a service that said when it is back, so that no attempt is counted."""


def decided(
    seen: BatchSnapshot,
    strategy: Strategy | None,
    action: RecoveryAction,
    why: str,
    next_at: float | None = None,
) -> RecoveryReport:
    """A report of the decision about a batch."""
    return RecoveryReport(
        batch_id=seen.batch_id,
        strategy=strategy,
        why=why,
        action=action,
        flow_run_id=None if seen.run is None else str(seen.run.id),
        next_at=next_at,
    )


def with_rollback(report: RecoveryReport, done: RollbackReport, *, planned: bool = False) -> RecoveryReport:
    """The report with the outcome of its rollback, which is not "compensated" if nothing was compensated."""
    undone, stays = tuple(effect.key for effect in (*done.already, *done.compensated)), not_undone(done)
    rest = "" if planned or done.complete else "; a person must act on the rest"
    action: RecoveryAction = "told" if stays else "nothing"
    # An effect in doubt may turn out to be done; then it is compensated.
    if undone or (planned and not done.complete):
        action = "compensated"
    why = f"{report.why}; {in_words(done, planned=planned)}{rest}"
    return report.model_copy(update={"action": action, "why": why, "undone": undone, "not_undone": stays})


def hint_for(seen: BatchSnapshot, asked: RecoveryRequest, chance: float) -> RecoveryHint | None:
    """How to recover the batch by the policy."""
    run = seen.run
    if seen.not_recorded is not None and not asked.force:
        return RecoveryHint(strategy="manual_only", why=seen.not_recorded)
    ended = run.ended if run is not None else None
    if asked.force and ended is not None and ended.state not in ENDED_BADLY:
        ended = RunEnd("CRASHED")
    policy = asked.policy or (run.policy if run is not None else None) or RecoveryPolicy()
    return recovery_hint(seen.effects, ended, seen.trail, policy, seen.now, chance)


def decide(seen: BatchSnapshot, asked: RecoveryRequest, chance: float) -> RecoveryReport:
    """What to do. `chance` in [0, 1) is for the jitter of the delay."""
    if (why := _why_refused(seen, asked)) is not None:
        at = seen.run.next_at if seen.run is not None and seen.run.type == "SCHEDULED" else None
        return decided(seen, None, "refused", why, at)
    if asked.strategy == AUTO:
        return _by_hint(seen, asked, chance)
    if asked.strategy == "manual_only":
        return decided(seen, "manual_only", "told", "manual_only was requested")
    if asked.strategy == "compensate" and seen.archived is not None:
        return decided(seen, "compensate", "refused", f"{seen.archived}: a rollback does not find them there")
    if asked.strategy == "compensate":
        down_to = "" if asked.to is None else f" to {asked.to!r}"
        return decided(seen, "compensate", "compensated", f"a rollback{down_to} was requested")
    if asked.strategy == "abandon":
        return decided(seen, "abandon", "abandoned", "it was abandoned")
    strategy = asked.strategy if asked.strategy in RESTARTS else restart_strategy(seen.effects)
    assert strategy in RESTARTS
    return _restart(seen, asked, strategy, "a restart was requested", seen.now)


def _why_refused(seen: BatchSnapshot, asked: RecoveryRequest) -> str | None:
    if seen.busy:
        return (
            f"its effect {seen.busy[0]!r} is in progress: wait for its end; if its process hangs, end it, "
            "or settle the effect with force"
        )
    run = seen.run
    if run is None or asked.force or run.type in ENDED_BADLY | {"COMPLETED"}:
        return None
    if run.type == "SCHEDULED":
        waits = "already waits for a worker"
        if run.in_process:
            waits = "waits in its process for a retry: use force if that process is certainly gone"
        return f"its flow run {run.name!r} is {run.state} and {waits}"
    if run.type == "PAUSED":
        return f"its flow run {run.name!r} is {run.state}: resume it"
    return (
        f"its flow run {run.name!r} is {run.state}: wait for its end, "
        "or use force if its process is certainly gone"
    )


def _by_hint(seen: BatchSnapshot, asked: RecoveryRequest, chance: float) -> RecoveryReport:
    hint = hint_for(seen, asked, chance)
    if hint is None:
        reason = "it has no effects" if not seen.effects else "no effect is missing or in doubt"
        reason = seen.archived or reason
        completed = seen.run is not None and seen.run.type == "COMPLETED"
        return decided(seen, None, "nothing", "its flow run completed" if completed else reason)
    if seen.trail.abandoned_at is not None:
        return decided(seen, None, "nothing", hint.why)
    if hint.strategy in RESTARTS:
        report = _restart(seen, asked, hint.strategy, hint.why, hint.next_at)
        return report.model_copy(update={"waits": hint.automatic and hint.attempt is None})
    if hint.automatic:
        action: RecoveryAction = "abandoned" if hint.strategy == "abandon" else "compensated"
        return decided(seen, hint.strategy, action, hint.why)
    return decided(seen, hint.strategy, "told", hint.why)


def _restart(
    seen: BatchSnapshot, asked: RecoveryRequest, strategy: Strategy, why: str, at: float | None
) -> RecoveryReport:
    run = seen.run
    if seen.archived is not None and not asked.force:
        why = f"{seen.archived}: a restart would repeat them; use force to allow that"
        return decided(seen, strategy, "refused", why)
    if run is not None and run.type == "COMPLETED" and not asked.force:
        return decided(seen, strategy, "refused", f"its flow run {run.name!r} completed")
    if run is not None and run.deployed:
        return decided(seen, strategy, "rescheduled", why, at)
    if run is None or run_id_of(seen.batch_id) is None:
        obstacle = "it has no known flow run with a deployment"
    else:
        obstacle = f"its flow run {run.name!r} has no deployment, so no worker can run it again"
    how = f"run your program inside `with batch({seen.batch_id!r}):`; effects that are done are not repeated"
    return decided(seen, strategy, "told", f"{why}; {obstacle}: {how}")
