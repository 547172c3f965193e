"""`prefect-resilience batches ...`: show the side effects of runs; recover, settle, roll back, abandon."""

from __future__ import annotations

import json as json_text
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from prefect_resilience.base.text import plural
from prefect_resilience.durable.batches.decisions import RecoveryReport
from prefect_resilience.durable.batches.edge import known, recovery, settling
from prefect_resilience.durable.batches.edge.flow_runs import ApiUnavailable
from prefect_resilience.durable.batches.edge.known import check_known
from prefect_resilience.durable.batches.edge.listing import in_order
from prefect_resilience.durable.batches.edge.status import BatchStatus, BatchSummary, batch_status
from prefect_resilience.durable.batches.strategies import Strategy
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.cli import batches_tables as tables
from prefect_resilience.operations.cli import look, options
from prefect_resilience.operations.cli.look import printable
from prefect_resilience.operations.cli.options import DryRun, Flag, Json, Store, Yes
from prefect_resilience.operations.importing import import_from_here

Id = Annotated[str, Parameter(help="The batch: the id of its flow run, or its name.")]
Reason = Annotated[str | None, Parameter(help="The reason, for the audit log.")]
_MEANS: dict[str, str] = {
    "done": "is done and will not be repeated",
    "not_done": "was not done, so the next run may do it",
    "undone": "is compensated, so a later run of the batch may repeat it",
    "kept": "stays done, and no rollback will compensate it",
}
DONE = ("rescheduled", "compensated", "abandoned", "nothing")


@Parameter(name="*")
@dataclass(frozen=True)
class Recovering:
    """The options of every command that recovers, rolls back or abandons a batch."""

    reason: Reason = None
    dry_run: DryRun = False
    force: Annotated[
        Flag,
        Parameter(help="Also if Prefect shows the run as running. Only if its process has certainly ended."),
    ] = False
    yes: Yes = False
    store: Store = None
    json: Json = False


RECOVERING = Recovering()

app: App = options.group(
    "batches", "Show the effects of a batch; recover it, settle effects in doubt, roll it back or abandon it."
)


@app.command(name="list")
def list_all(
    *,
    open: Flag = False,
    archived: Flag = False,
    all: Flag = False,
    since: str = "30d",
    limit: int = 100,
    how: options.Answering = options.ANSWERING,
) -> int:
    """Show the batches: those in doubt, then other open ones, then the rest; in each group the newest first.

    A flow run that failed or crashed is in the list even if it has no effects, but not among the open ones.

    Example: prefect-resilience batches list --open

    Args:
        open: Only open batches: an effect is not settled, or the flow run failed or crashed after some were.
        archived: Show archived and abandoned batches instead.
        all: Read a ledger with more than 10,000 effects, too. Without it, only its open batches are shown.
        since: How far to look back for failed or crashed flow runs: a span, or a time.
        limit: The largest number of batches to show.
    """
    options.check_limit(limit)
    if open and archived:
        raise ConfigurationError("--open and --archived cannot be combined: an archived batch is settled")
    url = options.store_url(how.store)
    back = options.since("--since", since)
    with options.explained(url):
        found = tables.find(url, archived=archived, only_open=open, every=all, since=back, limit=limit)
    if how.json:
        look.as_json([tables.batch_row(one, found) for one in found.shown])
    elif not found.shown:
        which = "open " if open or found.left_out else "archived " if archived else ""
        look.show(f"There are no {which}batches in {redact(url)}.")
    else:
        more = f"The first {limit} of " if found.counts.total > limit else ""
        says = tables.summary(found.counts, redact(url), left_out=found.left_out)
        look.show(tables.batches_table(found), more + says)
    for sentence in found.caveats:
        look.say(sentence)
    return 0


@app.command(alias=("status", "batch-status"))
def show(batch: Id, /, *, archived: Flag = False, how: options.Answering = options.ANSWERING) -> int:
    """Show the effects of a batch, how to recover it, and its audit log; also of an archived batch.

    Example: prefect-resilience batches show 01a1febe-b96e-7be5-9158-1f14ad773e0c

    Args:
        archived: Show the archived records even if the ledger still has the batch.
    """
    url = options.store_url(how.store)
    with options.explained(url):
        status = _existing(batch, url, archived)
        needs_nothing = None if status.hint or status.archived else _why_nothing(batch, url)
        document = tables.batch_as_json(status)
        now = open_ledger(url).store.now()
    return look.answer(document, *tables.batch_card(status, status.hint or needs_nothing, now), json=how.json)


@app.command
def recover(
    batch: Id,
    /,
    *,
    strategy: Literal["auto", "restart", Strategy] = "auto",
    rollback_to: str | None = None,
    how: Recovering = RECOVERING,
) -> int:
    """Recover a batch after a failed or crashed run: the run starts again, and done effects are not repeated.

    Example: prefect-resilience batches recover 01a1febe-b96e-7be5-9158-1f14ad773e0c --dry-run

    Args:
        strategy: auto follows the hint; restart runs the same flow run again whatever the hint is, unless it
            completed: then start a new run of the flow.
        rollback_to: Roll back to this savepoint, or to the end of this other batch, as rollback --to does.
    """
    if rollback_to is not None and strategy not in ("auto", "compensate"):
        raise ConfigurationError(f"--rollback-to and --strategy {strategy} cannot be combined")
    import_from_here()
    url = options.store_url(how.store)
    if rollback_to is not None:
        work = partial(recovery.recover, batch, "compensate", to=rollback_to, force=how.force, store=url)
        asks: tuple[str, ...] = ("compensated",)
    else:
        work = partial(recovery.recover, batch, strategy, force=how.force, progress=look.say, store=url)
        asks = tuple(tables.ACTIONS) if how.force else ("compensated", "abandoned")
    return _carried_out(work, asks, url, how)


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
    force: Flag = False,
    how: options.Answering = options.ANSWERING,
) -> int:
    """Settle an effect that is in doubt or could not be compensated. The next run uses the answer.

    Example: prefect-resilience batches settle invoices-2026-11 invoice:7 done --external-id msg-4711

    Args:
        key: The effect's key, as `batches show` writes it.
        answer: `done`: it took place. `not-done`: it did not take place, so the next run may do it.
            If a rollback could not compensate it: `undone`: it has been compensated.
            `kept`: it stays done, and no rollback compensates it.
        result: With done: the value that its task returns from now on, as JSON; default: null.
        external_id: With done: its id at the receiver, as in msg-4711.
        force: Also while it seems to be in progress: its process hangs. End that process first.
    """
    url = options.store_url(how.store)
    value = _json(result)
    settled: settling.Answer = "not_done" if answer == "not-done" else answer
    with options.explained(url):
        after = settling.settle(
            batch, key, settled, value, external_id, reason=reason, force=force, store=url
        )
    return look.answer(asdict(after), f"{printable(key)} {_MEANS[settled]}.", json=how.json)


@app.command
def reopen(
    batch: Id, /, *, reason: Reason = None, yes: Yes = False, how: options.Answering = options.ANSWERING
) -> int:
    """Reopen a batch with lost ledger records. From now on only the records that are left count.

    Example: prefect-resilience batches reopen invoices-2026-11 --reason "the bank has none of the others"
    """
    url = options.store_url(how.store)
    with options.explained(url):
        number = len(batch_status(batch, store=url).effects)
    question = f"The ledger has {number} effects of this batch. The next run may repeat any other. Continue?"
    if not yes and not look.agreed(question, f"change batch {batch}"):
        return 1
    with options.explained(url):
        status = known.reopen(batch, reason=reason, store=url)
    if how.json:
        look.as_json(tables.batch_as_json(status))
    else:
        look.show(f"Reopened {printable(batch)} with {number} effects.")
    return 0


@app.command
def rollback(batch: Id, /, *, to: str | None = None, how: Recovering = RECOVERING) -> int:
    """Compensate the effects of a batch, the last one first.

    Example: prefect-resilience batches rollback invoices-2026-11 --to before-payment

    Args:
        to: Only effects since this savepoint, or since the end of this other batch; all by default.
    """
    import_from_here()
    url = options.store_url(how.store)
    work = partial(recovery.recover, batch, "compensate", to=to, force=how.force, store=url)
    return _carried_out(work, ("compensated",), url, how)


@app.command
def abandon(batch: Id, /, *, forget_doubts: Flag = False, how: Recovering = RECOVERING) -> int:
    """Abandon a batch: its effects are archived, and effects that were never done leave the ledger.

    Example: prefect-resilience batches abandon invoices-2026-11 --reason "sent manually"

    Args:
        forget_doubts: Also abandon effects in doubt: a later run of the batch may then do them a second time.
    """
    url = options.store_url(how.store)
    work = partial(recovery.abandon, batch, forget_doubts=forget_doubts, force=how.force, store=url)
    return _carried_out(work, ("abandoned",), url, how)


@app.command
def prune(*, older_than: str, how: options.Asking = options.ASKING) -> int:
    """Archive batches without activity for that long, and remove them from the ledger.

    Choose a span after which no run is recovered: effects that are not in the ledger would be repeated.
    Example: prefect-resilience batches prune --older-than 180d --dry-run

    Args:
        older_than: A span as in 180d, or a time as in 2026-11-20T18:00.
    """
    url = options.store_url(how.store)
    before = options.since("--older-than", older_than)
    with options.explained(url):
        number, rows = _pruned(known.pruning(before, dry_run=True, store=url), how.json)
    if number and not how.dry_run:
        batches = plural(number, "batch", "batches")
        question = f"Archive {batches} and remove them from the ledger?"
        if not how.yes and not look.agreed(question, f"change {batches}"):
            return 1
        with options.explained(url):
            number, rows = _pruned(known.pruning(before, store=url), how.json)
    done = f"{plural(number, 'batch', 'batches')} {options.was(number, how.dry_run)} archived."
    return look.answer(rows, done, json=how.json)


def _pruned(batches: Iterable[BatchSummary], keep: bool) -> tuple[int, list[dict[str, Any]]]:
    """The number of batches, and the rows of their JSON if it is asked for."""
    number, kept = 0, list[BatchSummary]()
    for one in batches:
        number += 1
        if keep:
            kept.append(one)
    return number, [tables.batch_row(one) for one in in_order(kept)]


# -- helpers of several commands


def _existing(batch: str, url: str, archived: bool) -> BatchStatus:
    """The batch from the ledger, or from the archive if the ledger no longer has it."""
    check_known(open_ledger(url), batch)
    live = batch_status(batch, store=url)
    if live.effects and not archived:
        return live
    kept = batch_status(batch, archived=True, store=url)
    if kept.archived is None and archived:
        raise ConfigurationError(f"the batch {batch!r} has no archived records: leave --archived out")
    return live if kept.archived is None else kept


def _why_nothing(batch: str, url: str) -> str:
    """Why there is no hint, from the state of the run and its effects."""
    try:
        report = recovery.recover(batch, dry_run=True, store=url)
    except ApiUnavailable as error:
        return f"nothing to do: no effect is missing or in doubt; {error}"
    return f"{'nothing to do' if report.action == 'nothing' else 'not now'}: {report.why}"


def _carried_out(
    work: Callable[..., RecoveryReport], asks: tuple[str, ...], url: str, how: Recovering
) -> int:
    """Plan the work, ask if its action is in `asks`, carry it out and show the report."""
    with options.explained(url):
        report = work(dry_run=True)
    if not how.dry_run and not how.yes and report.action in asks and not _agreed(report):
        return 1
    if not how.dry_run:
        with options.explained(url):
            report = work(reason=how.reason)
    look.answer(report, *tables.report_lines(report), json=how.json)
    left = any(one.how != "skipped" for one in report.not_undone)
    return 0 if report.action in DONE and not left else 1


def _agreed(plan: RecoveryReport) -> bool:
    verb = {"compensated": "Compensate the effects of", "abandoned": "Abandon"}.get(
        plan.action, "Continue with"
    )
    return look.agreed(f"{verb} the batch {printable(plan.batch_id)}?", f"change batch {plan.batch_id}")


def _json(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json_text.loads(text)
    except ValueError:
        raise ConfigurationError(
            f"--result {text!r:.60} is not JSON: write text in double quotes, as in --result '\"m-1\"'"
        ) from None
