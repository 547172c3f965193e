"""`prefect-resilience batches ...`: see what runs did to the world outside, and go on from there."""

from __future__ import annotations

import json as json_text
import os
import sys
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter
from pydantic import RootModel

from prefect_resilience.durable.batches.edge import known, recovery, settling
from prefect_resilience.durable.batches.edge.flow_runs import ApiUnavailable
from prefect_resilience.durable.batches.edge.known import check_known
from prefect_resilience.durable.batches.edge.recovery import RecoveryReport
from prefect_resilience.durable.batches.edge.status import BatchStatus, BatchSummary, batch_status
from prefect_resilience.durable.batches.strategies import Strategy
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.cli import asking, batches_tables, dead_letters, fleet, output
from prefect_resilience.operations.cli import batches_tables as tables
from prefect_resilience.operations.cli.options import DryRun, Force, Json, Store, Yes

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
    open: Annotated[
        bool,
        Parameter(
            negative="",
            show_default=False,
            help="Only those that need somebody: an effect is not settled, or their flow run ended badly.",
        ),
    ] = False,
    archived: Annotated[
        bool, Parameter(negative="", show_default=False, help="Instead those that left the ledger.")
    ] = False,
    since: Annotated[
        str, Parameter(help="How far to look back for flow runs that ended badly: a span, or a time.")
    ] = "30d",
    limit: Annotated[int, Parameter(help="Show at most so many.")] = 100,
    store: Store = None,
    json: Json = False,
) -> int:
    """Show the batches: first those in doubt, then others that are open, then the rest, the newest first.

    A flow run that failed or crashed is one, also without effects.

    Example: prefect-resilience batches list --open
    """
    if limit < 1:
        raise ConfigurationError(f"--limit {limit} must be 1 or more")
    if open and archived:
        raise ConfigurationError("--open and --archived exclude each other: what is archived is settled")
    url = dead_letters.store_url(store)
    back = dead_letters.when("--since", since)
    assert back is not None
    with fleet.explained(url):
        seen = batches_tables.find(url, archived=archived, only_open=open, since=back, limit=limit)
    if json:
        output.as_json(
            [tables.batch_row(one, seen.hints.get(one.batch_id), seen.names) for one in seen.shown]
        )
    elif not seen.batches:
        which = "open " if open else "archived " if archived else ""
        output.show(f"There are no {which}batches in {redact(url)}.")
    else:
        more = f"The first {limit} of " if len(seen.batches) > limit else ""
        table = tables.batches_table(seen.shown, seen.hints, seen.names, seen.now)
        output.show(table, more + tables.summary(seen.batches, redact(url)))
    for sentence in seen.caveats:
        output.say(sentence)
    return 0


@app.command(alias=("status", "batch-status"))
def show(
    batch: Id,
    /,
    *,
    archived: Annotated[
        bool,
        Parameter(negative="", show_default=False, help="What was archived, also of one in the ledger."),
    ] = False,
    store: Store = None,
    json: Json = False,
) -> int:
    """Show the effects of a batch, how to go on with it, and what was done to it; of an archived one too.

    Example: prefect-resilience batches show 01a1febe-b96e-7be5-9158-1f14ad773e0c
    """
    url = dead_letters.store_url(store)
    with fleet.explained(url):
        status = _existing(batch, url, archived)
        hint, audit = status.hint, status.audit
        needs_nothing = None if hint or status.archived else _why_nothing(batch, url)
        now = open_ledger(url).store.now()
    if json:
        output.as_json(RootModel[Any](tables.batch_as_json(status, hint, audit)))
    else:
        output.show(*tables.batch_card(status, hint or needs_nothing, audit, now))
    return 0


@app.command
def recover(
    batch: Id,
    /,
    *,
    strategy: Annotated[
        Literal["auto", "restart", Strategy],
        Parameter(
            help="auto does what the hint says; restart runs the same flow run again whatever it says."
        ),
    ] = "auto",
    rollback_to: Annotated[
        str | None,
        Parameter(help="Instead undo what was done since this savepoint, or other batch: rollback --to."),
    ] = None,
    reason: Reason = None,
    dry_run: DryRun = False,
    force: Force = False,
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> int:
    """Go on with a batch whose run ended badly: the same flow run runs again, and what is done stays done.

    Example: prefect-resilience batches recover 01a1febe-b96e-7be5-9158-1f14ad773e0c --dry-run
    """
    if rollback_to is not None:
        if strategy not in ("auto", "compensate"):
            raise ConfigurationError(f"--rollback-to and --strategy {strategy} exclude each other")
        asked: dict[str, Any] = {"to": rollback_to, "reason": reason, "dry_run": dry_run}
        return rollback(batch, **asked, force=force, yes=yes, store=store, json=json)
    url = dead_letters.store_url(store)
    _look_here()
    with fleet.explained(url):
        plan = recovery.recover(batch, strategy, dry_run=True, force=force, store=url)
    asks = plan.action in ("compensated", "abandoned") or force
    if not dry_run and not yes and asks and not _agreed(plan):
        return 1
    if not dry_run:
        with fleet.explained(url):
            plan = recovery.recover(batch, strategy, reason=reason, force=force, store=url)
    return _shown(plan, json)


@app.command
def settle(
    batch: Id,
    key: Annotated[str, Parameter(help="The effect's key, as `batches show` writes it.")],
    answer: Annotated[
        Literal["done", "not-done", "undone", "kept"],
        Parameter(
            help="done: it took place. not-done: it did not, and may be done again. Of one that a rollback "
            "could not undo: undone: it is by now. kept: it stays done, and no rollback tries to undo it."
        ),
    ],
    /,
    *,
    result: Annotated[
        str | None, Parameter(help="With done: what its task returns from now on, as JSON; null if left out.")
    ] = None,
    external_id: Annotated[
        str | None, Parameter(help="With done: how the receiver calls it, as in msg-4711.")
    ] = None,
    reason: Reason = None,
    store: Store = None,
    json: Json = False,
) -> int:
    """Say what became of an effect that is in doubt, or could not be undone; the next run goes by it.

    Example: prefect-resilience batches settle invoices-2026-11 invoice:7 done --external-id msg-4711
    """
    url = dead_letters.store_url(store)
    value = _json(result)
    word: settling.Answer = "not_done" if answer == "not-done" else answer
    with fleet.explained(url):
        after = settling.settle(batch, key, word, value, external_id, reason=reason, store=url)
    if json:
        output.as_json(RootModel[Any](tables.effect_as_json(after)))
    else:
        output.show(f"{output.printable(key)} {_MEANS[word]}.")
    return 0


@app.command
def reopen(
    batch: Id, /, *, reason: Reason = None, yes: Yes = False, store: Store = None, json: Json = False
) -> int:
    """Go on with a batch of which the ledger lost records: what it has now is all that counts.

    Example: prefect-resilience batches reopen invoices-2026-11 --reason "the bank has none of the others"
    """
    url = dead_letters.store_url(store)
    with fleet.explained(url):
        number = len(batch_status(batch, store=url).effects)
    question = f"The ledger has {number} effects of this batch, and the next run may send any other. Go on?"
    if not yes and not _asked(question, f"batch {batch}"):
        return 1
    with fleet.explained(url):
        status = known.reopen(batch, reason=reason, store=url)
    if json:
        output.as_json(RootModel[Any](tables.batch_as_json(status, status.hint, status.audit)))
    else:
        output.show(f"Reopened {output.printable(batch)} with {number} effects.")
    return 0


@app.command
def rollback(
    batch: Id,
    /,
    *,
    to: Annotated[
        str | None,
        Parameter(help="What was done since this savepoint, or since the end of this other batch; else all."),
    ] = None,
    reason: Reason = None,
    dry_run: DryRun = False,
    force: Force = False,
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> int:
    """Undo what was done, the last first, by the compensations of the effects.

    Example: prefect-resilience batches rollback invoices-2026-11 --to before-payment
    """
    url = dead_letters.store_url(store)
    _look_here()
    with fleet.explained(url):
        plan = recovery.recover(batch, "compensate", dry_run=True, to=to, force=force, store=url)
    if not dry_run and plan.action == "compensated" and not yes and not _agreed(plan):
        return 1
    if not dry_run:
        with fleet.explained(url):
            plan = recovery.recover(batch, "compensate", reason=reason, to=to, force=force, store=url)
    return _shown(plan, json)


@app.command
def abandon(
    batch: Id,
    /,
    *,
    reason: Reason = None,
    forget_doubts: Annotated[
        bool,
        Parameter(
            negative="",
            show_default=False,
            help="Also what is in doubt: a later run of the batch may then do it a second time.",
        ),
    ] = False,
    dry_run: DryRun = False,
    force: Force = False,
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> int:
    """Give a batch up: its effects are archived, and what was never done leaves the ledger.

    Example: prefect-resilience batches abandon invoices-2026-11 --reason "sent by hand"
    """
    url = dead_letters.store_url(store)
    options: dict[str, Any] = {"forget_doubts": forget_doubts, "force": force, "store": url}
    with fleet.explained(url):
        plan = recovery.abandon(batch, dry_run=True, **options)
    if not dry_run and plan.action == "abandoned" and not yes and not _agreed(plan):
        return 1
    if not dry_run:
        with fleet.explained(url):
            plan = recovery.abandon(batch, reason=reason, **options)
    return _shown(plan, json)


@app.command
def prune(
    *,
    older_than: Annotated[str, Parameter(help="A span as in 180d, or a time as in 2026-11-20T18:00.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> int:
    """Archive batches in which nothing has happened for that long, and take them out of the ledger.

    Choose a span longer than any run is ever run again: what is not in the ledger would be done again.
    Example: prefect-resilience batches prune --older-than 180d --dry-run
    """
    url = dead_letters.store_url(store)
    before = dead_letters.when("--older-than", older_than)
    assert before is not None
    with fleet.explained(url):
        old = known.prune(before, dry_run=True, store=url)
    if old and not dry_run:
        if not yes and not _asked(f"Archive {_number(old)} and take them out of the ledger?", _number(old)):
            return 1
        with fleet.explained(url):
            old = known.prune(before, store=url)
    if json:
        output.as_json([tables.batch_row(one, None, {}) for one in old])
    else:
        output.show(
            f"{_number(old)} {'would be' if dry_run else 'were' if len(old) != 1 else 'was'} archived."
        )
    return 0


# -- what the commands share


def _existing(batch: str, url: str, archived: bool) -> BatchStatus:
    """As it stands in the ledger; what is there no more as it was archived."""
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


def _look_here() -> None:
    """A command that pip has installed does not look for modules where it is called."""
    sys.path.insert(0, os.getcwd())


def _shown(report: RecoveryReport, json: bool) -> int:
    if json:
        output.as_json(report)
    else:
        output.show(*tables.report_lines(report))
    if report.dry_run:
        return 0
    left = any(one.how != "skipped" for one in report.not_undone)
    return 0 if report.action in DONE and not left else 1


def _agreed(plan: RecoveryReport) -> bool:
    verb = {"compensated": "Undo what was done in", "abandoned": "Give up"}.get(plan.action, "Go on with")
    return _asked(f"{verb} the batch {output.printable(plan.batch_id)}?", f"batch {plan.batch_id}")


def _asked(question: str, what: str) -> bool:
    return asking.agreed(question, f"change {what}")


def _json(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json_text.loads(text)
    except ValueError:
        raise ConfigurationError(
            f"--result {text!r:.60} is no JSON: write texts in quotes, as in --result '\"m-1\"'"
        ) from None


def _number(found: list[BatchSummary]) -> str:
    return "1 batch" if len(found) == 1 else f"{len(found)} batches"
