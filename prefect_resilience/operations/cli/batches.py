"""`prefect-resilience batches ...`: see what runs did to the world outside, and go on from there."""

from __future__ import annotations

import json as json_text
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from prefect_resilience.base.text import plural
from prefect_resilience.durable.batches.decisions import RecoveryReport
from prefect_resilience.durable.batches.edge import known, recovery, settling
from prefect_resilience.durable.batches.edge.flow_runs import ApiUnavailable
from prefect_resilience.durable.batches.edge.known import check_known
from prefect_resilience.durable.batches.edge.status import BatchStatus, batch_status
from prefect_resilience.durable.batches.strategies import Strategy
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.cli import batches_tables as tables
from prefect_resilience.operations.cli import options, output
from prefect_resilience.operations.cli.look import printable
from prefect_resilience.operations.cli.options import (
    DryRun,
    Flag,
    Force,
    Json,
    Store,
    Yes,
    check_limit,
    explained,
    store_url,
)

Id = Annotated[str, Parameter(help="The batch: the id of its flow run, or its name.")]
Reason = Annotated[str | None, Parameter(help="Why, for the audit log.")]
_MEANS: dict[str, str] = {
    "done": "is done, and will not be done again",
    "not_done": "may be done again",
    "undone": "is undone, and a later run of the batch may do it anew",
    "kept": "stays done, and no rollback will undo it",
}
DONE = ("rescheduled", "compensated", "abandoned", "nothing")

app: App = App(
    name="batches",
    help="See the effects of a batch, recover it, settle what is in doubt, roll it back or give it up.",
    help_format="plaintext",
    version_flags=[],
)


@app.command(name="list")
def list_all(
    *,
    open: Flag = False,
    archived: Flag = False,
    since: str = "30d",
    limit: int = 100,
    store: Store = None,
    json: Json = False,
) -> int:
    """Show the batches: first those in doubt, then others that are open, then the rest, the newest first.

    A flow run that failed or crashed is one, also without effects.

    Example: prefect-resilience batches list --open

    Args:
        open: Only those that need somebody: an effect is not settled, or their flow run ended badly.
        archived: Instead those that left the ledger.
        since: How far to look back for flow runs that ended badly: a span, or a time.
        limit: Show at most so many.
    """
    check_limit(limit)
    if open and archived:
        raise ConfigurationError("--open and --archived exclude each other: what is archived is settled")
    url = store_url(store)
    back = options.since("--since", since)
    with explained(url):
        found = tables.find(url, archived=archived, only_open=open, since=back, limit=limit)
    if json:
        output.as_json([tables.batch_row(one, found) for one in found.shown])
    elif not found.batches:
        which = "open " if open else "archived " if archived else ""
        output.show(f"There are no {which}batches in {redact(url)}.")
    else:
        more = f"The first {limit} of " if len(found.batches) > limit else ""
        output.show(tables.batches_table(found), more + tables.summary(found.batches, redact(url)))
    for sentence in found.caveats:
        output.say(sentence)
    return 0


@app.command(alias=("status", "batch-status"))
def show(batch: Id, /, *, archived: Flag = False, store: Store = None, json: Json = False) -> int:
    """Show the effects of a batch, how to go on with it, and what was done to it; of an archived one too.

    Example: prefect-resilience batches show 01a1febe-b96e-7be5-9158-1f14ad773e0c

    Args:
        archived: What was archived, also of one in the ledger.
    """
    url = store_url(store)
    with explained(url):
        status = _existing(batch, url, archived)
        needs_nothing = None if status.hint or status.archived else _why_nothing(batch, url)
        document = tables.batch_as_json(status)
        now = open_ledger(url).store.now()
    return output.answer(document, *tables.batch_card(status, status.hint or needs_nothing, now), json=json)


@app.command
def recover(
    batch: Id,
    /,
    *,
    strategy: Literal["auto", "restart", Strategy] = "auto",
    rollback_to: str | None = None,
    reason: Reason = None,
    dry_run: DryRun = False,
    force: Force = False,
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> int:
    """Go on with a batch whose run ended badly: the same flow run runs again, and what is done stays done.

    Example: prefect-resilience batches recover 01a1febe-b96e-7be5-9158-1f14ad773e0c --dry-run

    Args:
        strategy: auto does what the hint says; restart runs the same flow run again whatever it says.
        rollback_to: Instead undo what was done since this savepoint, or other batch: rollback --to.
    """
    if rollback_to is not None and strategy not in ("auto", "compensate"):
        raise ConfigurationError(f"--rollback-to and --strategy {strategy} exclude each other")
    options.import_from_here()
    url = store_url(store)
    if rollback_to is not None:
        work = partial(recovery.recover, batch, "compensate", to=rollback_to, force=force, store=url)
        asks: tuple[str, ...] = ("compensated",)
    else:
        work = partial(recovery.recover, batch, strategy, force=force, store=url)
        asks = tuple(tables.DRY) if force else ("compensated", "abandoned")
    return _carried_out(work, asks, url, reason, dry_run, yes, json)


@app.command
def settle(
    batch: Id,
    key: str,
    answer: Literal["done", "not-done", "undone", "kept"],
    /,
    *,
    result: str | None = None,
    external_id: str | None = None,
    reason: Reason = None,
    store: Store = None,
    json: Json = False,
) -> int:
    """Say what became of an effect that is in doubt, or could not be undone; the next run goes by it.

    Example: prefect-resilience batches settle invoices-2026-11 invoice:7 done --external-id msg-4711

    Args:
        key: The effect's key, as `batches show` writes it.
        answer: done: it took place. not-done: it did not, and may be done again.
            Of one that a rollback could not undo: undone: it is by now.
            kept: it stays done, and no rollback tries to undo it.
        result: With done: what its task returns from now on, as JSON; null if left out.
        external_id: With done: how the receiver calls it, as in msg-4711.
    """
    url = store_url(store)
    value = _json(result)
    settled: settling.Answer = "not_done" if answer == "not-done" else answer
    with explained(url):
        after = settling.settle(batch, key, settled, value, external_id, reason=reason, store=url)
    return output.answer(tables.effect_as_json(after), f"{printable(key)} {_MEANS[settled]}.", json=json)


@app.command
def reopen(
    batch: Id, /, *, reason: Reason = None, yes: Yes = False, store: Store = None, json: Json = False
) -> int:
    """Go on with a batch of which the ledger lost records: what it has now is all that counts.

    Example: prefect-resilience batches reopen invoices-2026-11 --reason "the bank has none of the others"
    """
    url = store_url(store)
    with explained(url):
        number = len(batch_status(batch, store=url).effects)
    question = f"The ledger has {number} effects of this batch, and the next run may send any other. Go on?"
    if not yes and not output.agreed(question, f"change batch {batch}"):
        return 1
    with explained(url):
        status = known.reopen(batch, reason=reason, store=url)
    if json:
        output.as_json(tables.batch_as_json(status))
    else:
        output.show(f"Reopened {printable(batch)} with {number} effects.")
    return 0


@app.command
def rollback(
    batch: Id,
    /,
    *,
    to: str | None = None,
    reason: Reason = None,
    dry_run: DryRun = False,
    force: Force = False,
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> int:
    """Undo what was done, the last first, by the compensations of the effects.

    Example: prefect-resilience batches rollback invoices-2026-11 --to before-payment

    Args:
        to: What was done since this savepoint, or since the end of this other batch; else all.
    """
    options.import_from_here()
    url = store_url(store)
    work = partial(recovery.recover, batch, "compensate", to=to, force=force, store=url)
    return _carried_out(work, ("compensated",), url, reason, dry_run, yes, json)


@app.command
def abandon(
    batch: Id,
    /,
    *,
    reason: Reason = None,
    forget_doubts: Flag = False,
    dry_run: DryRun = False,
    force: Force = False,
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> int:
    """Give a batch up: its effects are archived, and what was never done leaves the ledger.

    Example: prefect-resilience batches abandon invoices-2026-11 --reason "sent by hand"

    Args:
        forget_doubts: Also what is in doubt: a later run of the batch may then do it a second time.
    """
    url = store_url(store)
    work = partial(recovery.abandon, batch, forget_doubts=forget_doubts, force=force, store=url)
    return _carried_out(work, ("abandoned",), url, reason, dry_run, yes, json)


@app.command
def prune(
    *, older_than: str, dry_run: DryRun = False, yes: Yes = False, store: Store = None, json: Json = False
) -> int:
    """Archive batches in which nothing has happened for that long, and take them out of the ledger.

    Choose a span longer than any run is ever run again: what is not in the ledger would be done again.
    Example: prefect-resilience batches prune --older-than 180d --dry-run

    Args:
        older_than: A span as in 180d, or a time as in 2026-11-20T18:00.
    """
    url = store_url(store)
    before = options.since("--older-than", older_than)
    with explained(url):
        old = known.prune(before, dry_run=True, store=url)
    number = plural(len(old), "batch", "batches")
    if old and not dry_run:
        question = f"Archive {number} and take them out of the ledger?"
        if not yes and not output.agreed(question, f"change {number}"):
            return 1
        with explained(url):
            old = known.prune(before, store=url)
    done = f"{plural(len(old), 'batch', 'batches')} {options.was(len(old), dry_run)} archived."
    return output.answer([tables.batch_row(one) for one in old], done, json=json)


# -- what the commands share


def _existing(batch: str, url: str, archived: bool) -> BatchStatus:
    """The batch as it is in the ledger, or, if it left the ledger, as it was archived."""
    check_known(open_ledger(url), batch)
    live = batch_status(batch, store=url)
    if live.effects and not archived:
        return live
    kept = batch_status(batch, archived=True, store=url)
    if kept.archived is None and archived:
        raise ConfigurationError(f"nothing of the batch {batch!r} is archived: leave --archived out")
    return live if kept.archived is None else kept


def _why_nothing(batch: str, url: str) -> str:
    """Why there is no hint: how the run stands, and what the effects say."""
    try:
        return recovery.recover(batch, dry_run=True, store=url).why
    except ApiUnavailable as error:
        return f"nothing in it is missing or in doubt; {error}"


def _carried_out(
    work: Callable[..., RecoveryReport],
    asks: tuple[str, ...],
    url: str,
    reason: str | None,
    dry_run: bool,
    yes: bool,
    json: bool,
) -> int:
    """Plan the work, ask if its action is one of `asks`, do it, and show what it did."""
    with explained(url):
        report = work(dry_run=True)
    if not dry_run and not yes and report.action in asks and not _agreed(report):
        return 1
    if not dry_run:
        with explained(url):
            report = work(reason=reason)
    output.answer(report, *tables.report_lines(report), json=json)
    left = any(one.how != "skipped" for one in report.not_undone)
    return 0 if report.dry_run or (report.action in DONE and not left) else 1


def _agreed(plan: RecoveryReport) -> bool:
    verb = {"compensated": "Undo what was done in", "abandoned": "Give up"}.get(plan.action, "Go on with")
    return output.agreed(f"{verb} the batch {printable(plan.batch_id)}?", f"change batch {plan.batch_id}")


def _json(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json_text.loads(text)
    except ValueError:
        raise ConfigurationError(
            f"--result {text!r:.60} is no JSON: write texts in quotes, as in --result '\"m-1\"'"
        ) from None
