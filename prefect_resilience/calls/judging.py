"""Handles a failed attempt: records it, makes its ErrorContext, and decides on a retry."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from logging import ERROR, INFO, WARNING
from typing import TYPE_CHECKING, Any

from prefect_resilience.base.deadlines import current_deadline
from prefect_resilience.base.drive import Steps
from prefect_resilience.base.outcomes import not_repeated
from prefect_resilience.calls.model import Guard, RunContext, RunRecord, stood_in
from prefect_resilience.errors.classify.classify import ErrorInfo, classify
from prefect_resilience.errors.classify.shapes import put
from prefect_resilience.errors.context import (
    ENDED,
    AttemptRecord,
    ErrorContext,
    attach_context,
    attached_context,
    count_rejected,
    exhausted_since,
    name_rejecting_guard,
)
from prefect_resilience.errors.exceptions import ConfigurationError, DeadlineExceeded, InDoubt
from prefect_resilience.errors.requests import subtask_request, with_inner
from prefect_resilience.errors.secrets.redact import add_note
from prefect_resilience.errors.taxonomy import MESSAGE_LIMIT
from prefect_resilience.guards.fallbacks import Answer, Chain
from prefect_resilience.guards.partials import value_left_by
from prefect_resilience.guards.retries.policy import PrefectRetries, Retry, Verdict, bucket_of
from prefect_resilience.telemetry.payloads import CallEvent, CallReport, error_payload

if TYPE_CHECKING:
    from prefect_resilience.durable.effects.claim import EffectClaim

MOST_ATTEMPTS = 200
"""The most attempts in an event; of more, the first ones."""


def judge_attempt(
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
    limit = current_deadline.get()
    if verdict.retry and limit is not None and verdict.delay >= limit.remaining():
        verdict = Verdict(False, 0.0, f"waiting {verdict.delay:.3g} s would pass the {limit}")
    if verdict.retry and claim is not None and (why := claim.retry_refusal(error)):
        verdict = Verdict(False, 0.0, why)
    inner = attached_context(error)
    tried = exhausted_since(error, time.time() - (now - began), began)
    if verdict.retry and tried is not None and not retry.retry_exhausted:
        verdict = Verdict(False, 0.0, _why_exhausted(tried))
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
    ids = run.identity
    is_own = inner is None or (inner.task_run_id, inner.node_id) == (ids["task_run_id"], ids["node_id"])
    partial = value_left_by(error) if is_own else None
    output = record.notes.as_output(partial)
    own = ErrorContext.from_exception(
        error,
        info,
        timestamp=datetime.now(UTC),
        stack_trace=not verdict.retry,  # of an error that is retried, `error_context` makes it for its reader
        attempt=len(record.history),
        max_attempts=retry.rule_for(info, error).attempts,
        history=list(record.history),
        exhausted=not verdict.retry and (tried is not None or _is_exhausted(retry, record, info, error)),
        **({} if output is None else {"partial_output": output}),
        **ids,
    )
    context = with_inner(own, inner, subtask_request(error))
    attach_context(error, context)
    put(error, ENDED, now)
    record.notes.end_attempt(error, context, partial)
    return context, verdict


def _why_exhausted(inner: ErrorContext) -> str:
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


def fallback_message(context: ErrorContext, answer: Answer) -> str:
    """The message of a state, and the log line, of a call that a fallback answered."""
    return f"Fallback {answer.fallback.name!r} used after {_attempts(context)}: {context.summary()}"


def _attempts(context: ErrorContext) -> str:
    """As "2 attempts and 1 rejected call": a call that a circuit or a limit rejected is no attempt."""
    rejected = count_rejected(context.history)
    numbers = ((context.attempt - rejected, "attempt"), (rejected, "rejected call"))
    words = [f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in numbers if number]
    return " and ".join(words)


def describe_rejection(context: ErrorContext) -> str | None:
    """Which guard rejected the call, and until when; None if the call was made."""
    by = name_rejecting_guard(context.category, context.exception_type)
    if by != "circuit":
        return None if by is None else context.message
    wait = context.retry_after
    until = " until it is closed manually" if wait is None else f"; next probe in {math.ceil(wait)} s"
    return f"circuit {context.circuit!r} is open{until}"


# The reports of what was decided.


def report_retry(run: RunContext, context: ErrorContext, verdict: Verdict) -> None:
    record = run.record_so_far()
    counted = 0 if record is None else record.counted
    number, delay = f"{counted + 1}/{context.max_attempts}", f"{verdict.delay:.1f} s"
    asks = "" if verdict.asked_for is None else f" (the service asks for {verdict.asked_for:.3g} s)"
    line = f"Retrying ({number}) in {delay}{asks}: {context.summary()}"
    if (why := describe_rejection(context)) is not None:
        line = f"Not called: {why}. Retrying ({number}) in {delay}"
    events = _events(run, context, "retry.scheduled", {"delay": verdict.delay, "why": verdict.why + asks})
    run.report(CallReport(WARNING, ("retry", context.code), line, failure=context, events=events))


def report_fallback(run: RunContext, context: ErrorContext, answer: Answer, error: BaseException) -> None:
    fallback = answer.fallback
    stood_in(run.guard.fn, fallback.name, fallback.degraded)
    kind, line = ("fallback", fallback.name, context.code), fallback_message(context, answer)
    payload = {"to": fallback.name, "degraded": fallback.degraded, "attempts": context.attempts_made}
    events = _events(run, context, "fallback.used", {**payload, **_times(run, context)})
    if isinstance(error, DeadlineExceeded):
        events = [*events, *_deadline_event(run, error)]
    run.report(CallReport(WARNING, kind, line, error, context, events, ("calls", "fallbacks")))


def report_failure(run: RunContext, context: ErrorContext, verdict: Verdict, error: BaseException) -> None:
    line = f"Giving up after {_attempts(context)} ({verdict.why}): {context.summary()}"
    if (why := describe_rejection(context)) is not None and not context.attempts_made:
        times = f" ({context.rejected_calls} times)" if context.rejected_calls > 1 else ""
        line = f"Not called{times}: {why}"
    payload = {"why": verdict.why, "exhausted": context.retryable}
    events = _events(run, context, "run.failed", {**payload, **_times(run, context)})
    if isinstance(error, DeadlineExceeded):
        events = [*events, *_deadline_event(run, error)]
    kind = ("gave up", context.code)
    run.report(CallReport(ERROR, kind, line, error, context, events, ("calls", "failures")))


def report_recovery(run: RunContext, record: RunRecord) -> None:
    history, after = record.history, time.monotonic() - record.started
    last, attempts = history[-1].error, len(history) + 1 - count_rejected(history)
    line, ids = f"Recovered at attempt {attempts}, after {after:.1f} s", run.identity
    part = {**ids, "after": after, "error": {"category": last.category} if last else None}

    def whole() -> dict[str, Any]:
        error = last and last.model_dump(mode="json")
        return {**part, "attempts": attempts, "error": error, **_history(run, history)}

    event = CallEvent("run.recovered", "task", ids["node_id"], part, whole)
    run.report(CallReport(INFO, ("recovered",), line, events=[event]))


_OF_ATTEMPT = (
    *("node_id", "action_id", "task_run_id", "flow_run_id"),
    *("category", "code", "kind", "attempt", "circuit"),
)


def _events(
    run: RunContext, context: ErrorContext, happening: str, told: dict[str, Any]
) -> Sequence[CallEvent]:
    """The events of an attempt that failed, or that a circuit or a limit rejected, and of what follows.

    The resource of a failed attempt is the error's category and code; that of a rejected one is the task.
    Prefect counts events by resource, in its reports and in automations on "more than N of these in M
    seconds".
    """
    node = run.identity["node_id"]
    attempt = {name: value for name in _OF_ATTEMPT if (value := getattr(context, name)) is not None}
    if (by := name_rejecting_guard(context.category, context.exception_type)) is None:
        name = f"{context.category.value}.{context.code}"
        events = [CallEvent("attempt.failed", "error", name, attempt)]
    else:
        events = [CallEvent("attempt.refused", "task", node, {**attempt, "by": by})]
    counted = {**attempt, "exception_type": context.exception_type, **told}
    events.append(CallEvent(happening, "task", node, counted, lambda: {**error_payload(context), **told}))
    if told.get("degraded"):
        events.append(CallEvent("run.degraded", "task", node, {**error_payload(context), "to": told["to"]}))
    return events


def _deadline_event(run: RunContext, error: DeadlineExceeded) -> list[CallEvent]:
    """The event of a deadline that passed, once for each error."""
    if error.is_reported:
        return []
    error.is_reported = True
    payload = {**run.identity, "seconds": error.seconds, "set_at": error.set_at}
    return [CallEvent("deadline.exceeded", "task", run.identity["node_id"], payload)]


def _times(run: RunContext, context: ErrorContext) -> dict[str, Any]:
    """`after`: seconds since the first attempt began; `waited`: those of them that were delays."""
    history = context.history
    began = history[0].started_at if history else context.timestamp
    return {"after": max((context.timestamp - began).total_seconds(), 0.0), **_history(run, history)}


def _history(run: RunContext, history: Sequence[AttemptRecord]) -> dict[str, Any]:
    """The delays, and the record of the failed attempts, from which `tune` learns."""
    record: dict[str, Any] = {"attempts": [_attempt_record(attempt) for attempt in history[:MOST_ATTEMPTS]]}
    with suppress(ConfigurationError):  # a name that cannot be filled in is the error that is told of
        if (circuit := run.guard.circuit) is not None:
            record["circuit"] = circuit.bind(run.parameters).name
    return {"waited": sum(attempt.delay or 0.0 for attempt in history), "record": record}


def _attempt_record(attempt: AttemptRecord) -> dict[str, Any]:
    """`at` is in seconds since the epoch."""
    delay = None if attempt.delay is None else round(attempt.delay, 3)
    fields: dict[str, Any] = {"seconds": round(attempt.duration, 4), "delay": delay}
    fields["at"] = round(attempt.started_at.timestamp(), 3)
    if (error := attempt.error) is not None:
        fields["by"] = name_rejecting_guard(error.category, error.exception_type)
        fields |= {"code": error.code, "retry_after": error.retry_after, "category": error.category.value}
    return {name: value for name, value in fields.items() if value is not None}


def annotate(error: BaseException, context: ErrorContext, verdict: Verdict, chain: Chain) -> None:
    """Add notes (PEP 678) to the exception: the number of attempts, and the fallbacks that failed."""
    notes = [f"prefect-resilience: gave up after {_attempts(context)}: {verdict.why}"]
    notes += [f"prefect-resilience: fallback {name!r} failed: {failure}" for name, failure in chain.failures]
    for note in notes:
        add_note(error, note, MESSAGE_LIMIT)


def chain_doubt(doubt: InDoubt, error: BaseException, context: ErrorContext) -> InDoubt:
    """The doubt, raised in place of the function's own error, which becomes its cause. A caller that took
    that error for a plain failure might repeat the side effect in another way."""
    doubt.__cause__ = error
    attach_context(doubt, context)
    return doubt
