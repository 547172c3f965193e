"""Handles a failed attempt: records it, makes its ErrorContext, and decides on a retry."""

from __future__ import annotations

import math
import random
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from prefect_resilience.base.drive import Steps
from prefect_resilience.base.outcomes import not_repeated
from prefect_resilience.calls.model import Guard, RunContext, RunRecord
from prefect_resilience.errors.classify.classify import ErrorInfo, classify
from prefect_resilience.errors.classify.shapes import add_note
from prefect_resilience.errors.context import (
    AttemptRecord,
    ErrorContext,
    attach_context,
    attached_context,
    count_rejected,
    exhausted_since,
    name_rejecting_guard,
)
from prefect_resilience.errors.exceptions import InDoubt
from prefect_resilience.errors.requests import subtask_request, with_inner
from prefect_resilience.errors.secrets.redact import redact_beginning
from prefect_resilience.errors.taxonomy import MESSAGE_LIMIT
from prefect_resilience.guards.fallbacks import Answer, Chain
from prefect_resilience.guards.partials import left_by, partial_of
from prefect_resilience.guards.retries.policy import PrefectRetries, Retry, Verdict, bucket_of

if TYPE_CHECKING:
    from prefect_resilience.durable.effects.claim import EffectClaim


def judged(
    guard: Guard, run: RunContext, began: float, error: BaseException, claim: EffectClaim | None = None
) -> Steps[tuple[ErrorContext, Verdict]]:
    """Record the failed attempt, and decide whether to retry."""
    now = time.monotonic()
    record = run.record(began)
    retry = guard.retrying
    if not record.history and retry.budget is not None:
        bucket_of(retry.budget, now).earn()
    info = classify(error, rules=guard.rules)
    verdict = verdict_of(retry, record, info, error, now)
    if verdict.retry and (why := not_repeated(error)) is not None:
        verdict = Verdict(False, 0.0, why)
    if verdict.retry and claim is not None and (why := claim.retry_refusal(error)):
        verdict = Verdict(False, 0.0, why)
    inner = attached_context(error)
    tried = exhausted_since(error, time.time() - (now - began))
    if verdict.retry and tried is not None and not retry.retry_exhausted:
        verdict = Verdict(False, 0.0, _tried(tried))
    if verdict.retry and isinstance(error, Exception):
        why = yield from run.retry_refusal(error)
        verdict = verdict if why is None else Verdict(False, 0.0, why)
    record.verdict, record.error = verdict, error
    record.previous_delay = verdict.delay if verdict.retry else None
    record.history.append(
        AttemptRecord(
            attempt=len(record.history) + 1,
            started_at=datetime.fromtimestamp(time.time() - (now - began), UTC),
            duration=now - began,
            error=info,
            delay=verdict.delay if verdict.retry else None,
        )
    )
    # The next attempt of this run cannot continue from the partial result of another run inside it.
    here = run.identity
    own_error = inner is None or (inner.task_run_id, inner.node_id) == (here["task_run_id"], here["node_id"])
    left = left_by(error) if own_error else None
    kept = record.notes.told(left) or partial_of(error)
    own = ErrorContext.from_exception(
        error,
        info,
        timestamp=datetime.now(UTC),
        attempt=len(record.history),
        max_attempts=retry.rule_for(info, error).attempts,
        history=list(record.history),
        exhausted=not verdict.retry and (tried is not None or _is_exhausted(retry, record, info, error)),
        **({} if kept is None else {"partial_output": kept}),
        **here,
    )
    context = with_inner(own, inner, subtask_request(error))
    attach_context(error, context)
    record.notes.ended(context, left)
    return context, verdict


def _tried(inner: ErrorContext) -> str:
    return (
        f"{inner.node_id or 'an inner guard'} has already made {inner.attempt} attempts; "
        "use Retry(retry_exhausted=True) to retry anyway"
    )


def _is_exhausted(retry: Retry, record: RunRecord, info: ErrorInfo, error: BaseException) -> bool:
    """Whether the retries are used up, rather than the error one that is not retried."""
    if isinstance(retry, PrefectRetries):
        return False
    return len(record.history) > 1 and retry.refusal(info, error) is None


def verdict_of(retry: Retry, record: RunRecord, info: ErrorInfo, error: BaseException, now: float) -> Verdict:
    if record.must_not_restart:
        return Verdict(False, 0.0, "the consumer already has a chunk, and restart_stream=True is not set")
    # By name, because the policy may have been replaced since.
    rule = retry.rule_name(info, error)
    record.counted = record.counters[rule] = record.counters.get(rule, 0) + 1
    verdict = retry.decide(
        info,
        record.counted,
        elapsed=now - record.started,
        random=random.random(),
        previous_delay=record.previous_delay,
        exception=error,
    )
    if verdict.retry and retry.budget is not None and not bucket_of(retry.budget, now).spend(now):
        return Verdict(False, 0.0, f"the retry budget {retry.budget.name!r} is used up")
    return verdict


def retry_told(record: RunRecord, context: ErrorContext, verdict: Verdict) -> str:
    """The log line of a retry: the attempts counted for errors of this kind, and the delay."""
    made, most = record.counted + 1, context.max_attempts
    if (why := describe_rejection(context)) is not None:
        return f"Not called: {why}. Trying again ({made}/{most}) in {verdict.delay:.1f} s"
    return f"Retrying ({made}/{most}) in {verdict.delay:.1f} s: {context.summary()}"


def replaced_message(context: ErrorContext, answer: Answer) -> str:
    """The message of a state, and the log line, of a call that a fallback answered."""
    return f"Fallback {answer.fallback.name!r} used after {_attempts(context)}: {context.summary()}"


def gave_up_told(context: ErrorContext, verdict: Verdict) -> str:
    """The log line of a call that failed for good."""
    why = describe_rejection(context)
    if why is not None and not context.attempts_made:
        times = f" ({context.rejected_calls} times)" if context.rejected_calls > 1 else ""
        return f"Not called{times}: {why}"
    return f"Giving up after {_attempts(context)} ({verdict.why}): {context.summary()}"


def _attempts(context: ErrorContext) -> str:
    """As "2 attempts and 1 rejected call": a call that a circuit or a limit rejected is no attempt."""
    rejected = count_rejected(context.history)
    words: list[str] = []
    for number, noun in ((context.attempt - rejected, "attempt"), (rejected, "rejected call")):
        if number:
            words.append(f"{number} {noun}{'' if number == 1 else 's'}")
    return " and ".join(words)


def describe_rejection(context: ErrorContext) -> str | None:
    """Which guard rejected the call, and until when; None if the call was made."""
    by = name_rejecting_guard(context.category, context.exception_type)
    if by != "circuit":
        return None if by is None else context.message
    wait = context.retry_after
    until = " until it is closed manually" if wait is None else f"; next probe in {math.ceil(wait)} s"
    return f"circuit {context.circuit!r} is open{until}"


def annotate(error: BaseException, context: ErrorContext, verdict: Verdict, chain: Chain) -> None:
    """Add notes (PEP 678) to the exception: the number of attempts, and the fallbacks that failed."""
    notes = [f"prefect-resilience: gave up after {_attempts(context)}: {verdict.why}"]
    notes += [f"prefect-resilience: fallback {name!r} failed: {failure}" for name, failure in chain.failures]
    for note in notes:
        add_note(error, redact_beginning(note, MESSAGE_LIMIT))


def caused_by(doubt: InDoubt, error: BaseException, context: ErrorContext) -> InDoubt:
    """The doubt, raised in place of the function's own error, which becomes its cause. A caller that took
    that error for a plain failure might repeat the side effect in another way."""
    doubt.__cause__ = error
    attach_context(doubt, context)
    return doubt
