"""`prefect-resilience batches ...`: show the side effects of runs; recover, settle, roll back, abandon."""

from __future__ import annotations

import json as json_text
from functools import partial
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from prefect_resilience.base.text import plural, printable
from prefect_resilience.durable.batches.edge import known
from prefect_resilience.durable.batches.edge.status import BatchStatus, batch_status
from prefect_resilience.durable.batches.strategies import Strategy
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations import batch_rows as rows
from prefect_resilience.operations.cli import look, options
from prefect_resilience.operations.cli.options import Flag
from prefect_resilience.operations.users_code import import_from_here

Id = Annotated[str, Parameter(help="The batch: the id of its flow run, or its name.")]
_MEANS: dict[str, str] = {
    "done": "is done and will not be repeated",
    "not_done": "was not done, so the next run may do it",
    "undone": "is compensated, so a later run of the batch may repeat it",
    "kept": "stays done, and no rollback will compensate it",
}
VERBS = {"compensated": "roll back", "abandoned": "abandon"}
DONE = ("rescheduled", "compensated", "abandoned", "nothing")

app: App = App(name="batches", version_flags=[])


@app.command(name="list")
def list_all(
    *,
    open: Flag = False,
    archived: Flag = False,
    all: Flag = False,
    since: str = "30d",
    limit: options.Limit = 100,
    how: options.Answering = options.ANSWERING,
) -> int:
    """Show the batches, those in doubt first, then other open ones; and the flow runs that failed or crashed.

    A batch is open if an effect is not settled, or if its flow run failed or crashed after some were done.

    Example: prefect-resilience batches list

    Args:
        open: Only batches that are open.
        archived: Show the batches that were pruned or abandoned instead.
        all: Show settled batches of a ledger with more than 10,000 effects, too, which reads all of them.
        since: How far to look back for failed or crashed flow runs: a span, or a time.
        limit: The largest number of batches to show.
    """
    if open and archived:
        raise ConfigurationError("--open and --archived cannot be combined: an archived batch is settled")
    back = options.since("--since", since)
    with how.at_store() as url:
        listed, batches = rows.find(
            url, archived=archived, only_open=open, every=all, since=back, limit=limit
        )
    if listed:
        more = f"The first {limit} of " if batches.counts.total > limit else ""
        parts = [look.table(rows.COLUMNS, listed), more + rows.counts_line(batches, url)]
    else:
        kind = "archived " if archived else "open " if open or batches.left_out else ""
        parts = [f"There are no {kind}batches in {redact(url)}."]
    how.answer([row.as_json for row in listed], *parts)
    for sentence in rows.caveats(batches):
        look.say(sentence)
    return 0


@app.command(alias=("status", "batch-status"))
def show(batch: Id, /, *, how: options.Answering = options.ANSWERING) -> int:
    """Show the effects of a batch, how to recover it, and its audit log; also of an archived batch.

    Example: prefect-resilience batches show 01a1febe-b96e-7be5-9158-1f14ad773e0c
    """
    with how.at_store() as url:
        status = _read(batch, url)
    document = _document(status)
    facts = {**document, "effects": None, "audit": None}
    tables = ((rows.EFFECTS, status.effects), (rows.AUDIT, status.audit))
    parts = (look.table(columns, lines) for columns, lines in tables if lines)
    return how.answer(document, look.card(facts), *parts)


@app.command
def recover(
    batch: Id,
    /,
    *,
    strategy: Literal["auto", "restart", Strategy] = "auto",
    rollback_to: str | None = None,
    how: options.Recovering = options.RECOVERING,
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
    if rollback_to is not None:
        return rollback(batch, to=rollback_to, how=how)
    asks = tuple(rows.ACTIONS) if how.force else ("compensated", "abandoned")
    return _carry_out(how, asks, "recover", batch, strategy, progress=look.say)


@app.command
def settle(
    batch: Id,
    key: str,
    answer: Literal["done", "not-done", "undone", "kept"],
    /,
    *,
    result: str | None = None,
    external_id: str | None = None,
    reason: options.Reason = None,
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
    from prefect_resilience.durable.batches.edge import settling

    value = _json(result)
    settled: settling.Answer = "not_done" if answer == "not-done" else answer
    with how.at_store() as url:
        after = settling.settle(
            batch, key, settled, value, external_id, reason=reason, force=force, store=url
        )
    return how.answer(after, f"{printable(key)} {_MEANS[settled]}.")


@app.command
def reopen(batch: Id, /, *, reason: options.Reason = None, how: options.Asking = options.ASKING) -> int:
    """Reopen a batch with lost ledger records. From now on only the records that are left count.

    Example: prefect-resilience batches reopen invoices-2026-11 --reason "the bank has none of the others"
    """
    with how.at_store() as url:
        number = len(batch_status(batch, store=url).effects)
        how.confirm(f"let the next run repeat all but {plural(number, 'effect')} of batch {batch}")
        document = _document(known.reopen(batch, reason=reason, store=url))
    return how.answer(document, f"Reopened {printable(batch)} with {plural(number, 'effect')}.")


@app.command
def rollback(batch: Id, /, *, to: str | None = None, how: options.Recovering = options.RECOVERING) -> int:
    """Compensate the effects of a batch, the last one first.

    Example: prefect-resilience batches rollback invoices-2026-11 --to before-payment

    Args:
        to: Only effects since this savepoint, or since the end of this other batch; all by default.
    """
    return _carry_out(how, ("compensated",), "recover", batch, "compensate", to=to)


@app.command
def abandon(batch: Id, /, *, how: options.Recovering = options.RECOVERING) -> int:
    """Abandon a batch: its effects are archived, and effects that were never done leave the ledger.

    Example: prefect-resilience batches abandon invoices-2026-11 --reason "sent manually"
    """
    return _carry_out(how, ("abandoned",), "abandon", batch)


@app.command
def prune(*, older_than: str, how: options.Planning = options.PLANNING) -> int:
    """Archive batches without activity for that long, and remove them from the ledger.

    Choose a span after which no run is recovered: effects that are not in the ledger would be repeated.
    Example: prefect-resilience batches prune --older-than 180d --dry-run

    Args:
        older_than: A span as in 180d, or a time as in 2026-11-20T18:00.
    """
    before = options.since("--older-than", older_than)
    columns: look.Columns = {"batch": "batch_id", "effects": "total", "last": "last_at"}
    with how.at_store() as url:
        work = partial(known.prune, before, store=url)
        batches, sentence = how.sweep("archive", "batch", "batches", columns, work)
    return how.answer([rows.BatchRow(batch).as_json for batch in batches], sentence)


# -- helpers of several commands


def _document(status: BatchStatus) -> dict[str, Any]:
    """The batch as JSON."""
    names = ("batch_id", "state", "occurred_at", "seconds_in_error", "seconds_silent")
    names += ("archived", "hint", "effects", "audit")
    return {name: getattr(status, name) for name in names}


def _read(batch: str, url: str) -> BatchStatus:
    """The batch from the ledger, or from the archive if the ledger no longer has it."""
    known.check_known(open_ledger(url), batch)
    live = batch_status(batch, store=url)
    archived = live if live.effects else batch_status(batch, archived=True, store=url)
    return live if archived.archived is None else archived


def _carry_out(
    how: options.Recovering,
    asks: tuple[str, ...],
    action: Literal["recover", "abandon"],
    *words: str,
    **options: Any,
) -> int:
    """Plan the action, ask if the plan is in `asks`, carry it out and show the report."""
    from prefect_resilience.durable.batches.edge import recovery

    import_from_here()
    with how.at_store() as url:
        chosen = recovery.recover if action == "recover" else recovery.abandon
        work = partial(chosen, *words, **options, force=how.force, store=url)
        report = work(dry_run=True)
        if report.action in asks and not how.dry_run:
            how.confirm(f"{VERBS.get(report.action, 'recover')} batch {printable(report.batch_id)}")
        if not how.dry_run:
            report = work(reason=how.reason)
    how.answer(report, *rows.report_lines(report))
    stays = any(effect.how != "skipped" for effect in report.not_undone)
    return 0 if report.action in DONE and not stays else 1


def _json(text: str | None) -> Any:
    try:
        return None if text is None else json_text.loads(text)
    except ValueError:
        raise ConfigurationError(
            f"--result {text!r:.60} is not JSON: write text in double quotes, as in --result '\"m-1\"'"
        ) from None
