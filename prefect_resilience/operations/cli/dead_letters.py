"""`prefect-resilience dead-letters ...`: show, replay and purge calls that failed for good."""

from __future__ import annotations

import json as json_text
import os
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.markup import escape
from rich.progress import Progress as ProgressBar

from prefect_resilience.base.text import plural
from prefect_resilience.durable.letters.edge import operations
from prefect_resilience.durable.letters.edge.known import check_task, queue_of
from prefect_resilience.durable.letters.edge.replay import Replaying
from prefect_resilience.durable.letters.model import DeadLetter, Status
from prefect_resilience.durable.letters.report import LetterOutcome, Progress
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations import letter_rows as rows
from prefect_resilience.operations.cli import look, options
from prefect_resilience.operations.cli.options import ANSWERING, ASKING, Answering, Asking, Flag
from prefect_resilience.operations.importing import import_from_here
from prefect_resilience.operations.letter_rows import COUNTED

Task = Annotated[
    str | None, Parameter(help="Only letters of this task or flow: its name, or module:function.")
]
Since = Annotated[
    str | None,
    Parameter(help="Only letters since then: a span as in 24h or 7d, or a time as in 2026-11-20T18:00."),
]
Statuses = Annotated[
    list[Status] | None, Parameter(help="Only letters with this status; repeat it for several.")
]

LEFT_TO_RUNS = (
    "skipped: the flow run is running or waits to run again, and may make the call itself. "
    "After it has ended, replay the letters that are still waiting."
)

app: App = options.group(
    "dead-letters", "Show the calls that failed for good, replay them, and purge old ones."
)


@app.command(name="list")
def list_letters(
    *,
    status: Statuses = None,
    task: Task = None,
    since: Since = None,
    limit: int = 100,
    after: str | None = None,
    how: Answering = ANSWERING,
) -> int:
    """Show the dead letters, the newest first.

    Example: prefect-resilience dead-letters list --status waiting --since 24h

    Args:
        limit: The largest number of letters to show, the newest first.
        after: Only letters older than this one: the id of the last letter of the page before.
    """
    options.check_limit(limit)
    with how.at_store() as url:
        queue = queue_of(url)
        matching = queue.matching(status, task, _since(since), after)
        shown = [*islice(matching, limit)]
        if not shown and after is None:
            check_task(queue, task)
        rest = islice(matching, max(0, COUNTED - limit))
        counts = Counter[str](letter.status for letter in chain(shown, rest))
        more = next(matching, None) is not None
        now = queue.store.now()
    if not shown:
        return how.answer([], f"No matching dead letters in {redact(url)}.")
    first = f"The {limit} newest of " if counts.total() > limit else ""
    table = look.table(rows.letter_columns(now), shown)
    return how.answer(shown, table, first + rows.counts_line(counts, url, more=more))


@app.command
def show(letter: str, /, *, how: Answering = ANSWERING) -> int:
    """Show all facts about one dead letter: its parameters, its error, its replays.

    Example: prefect-resilience dead-letters show 01a1febe-b96e-7be5-9158-1f14ad773e0c

    Args:
        letter: The letter's id, as `dead-letters list` prints it.
    """
    with how.at_store() as url:
        queue = queue_of(url)
        row, now = queue.get(letter), queue.store.now()
        document = {**row.model_dump(), **row.contents.model_dump()}
    return how.answer(document, look.card(rows.card_rows(row, now)))


@app.command
def replay(
    letters: list[str] | None = None,
    /,
    *,
    all: Flag = False,
    task: Task = None,
    since: Since = None,
    status: Statuses = None,
    limit: int | None = None,
    rate: float | None = None,
    set: list[str] | None = None,
    set_env: list[str] | None = None,
    force: Flag = False,
    how: Asking = ASKING,
) -> int:
    """Replay dead letters, the oldest first. A stopped replay can be continued.

    A letter is skipped while its flow run is running or waits to run again: that run may make the call.

    The flow replay-dead-letters does the work. Start it in your project's folder, so that the tasks can be
    imported.

    Example: prefect-resilience dead-letters replay --task send-invoice --since 24h --rate 5

    Args:
        letters: Ids of letters; or choose with --task, --since, --status or --all.
        all: Every waiting letter.
        limit: The largest number of letters to replay, the oldest first.
        rate: The largest number of letters per second.
        set: A value that was left out of the letters, as in --set order.note=hello.
        set_env: The same from an environment variable: --set-env api_key=API_KEY.
        force: Also letters in doubt, and a single named letter whose flow run is running.
            Their calls may happen twice unless they have an effect.
    """
    if not letters and not (all or task or since or status):
        raise ConfigurationError("choose the letters to replay: by ids, --task, --since, --status or --all")
    values = replay_values(set or [], set_env or [])
    import_from_here()
    with how.at_store() as url:
        queue = queue_of(url)
        chosen = operations.choose(queue, letters or None, status, task, _since(since), limit)
        if not chosen:
            return how.answer([], "No matching dead letters, so there is nothing to replay.")
        if len(chosen) > 1 and not _is_confirmed(how, "Replay", chosen, len(chosen)):
            return 1
        named = bool(letters) and len(chosen) == 1
        with _bar(how.json or how.dry_run) as progress:
            work = Replaying(queue, rate, force, values, progress=progress, despite_run=force and named)
            report = operations.replay_chosen(work, chosen, dry_run=how.dry_run, store=url)
    sentences = [f"{report.summary()}."]
    if report.left_to_runs:
        sentences.append(f"{plural(report.left_to_runs, 'letter was', 'letters were')} {LEFT_TO_RUNS}")
    how.answer(report, look.table(rows.OUTCOMES, report.outcomes), *sentences)
    return 0 if report.well else 1


@app.command
def purge(
    *,
    older_than: str,
    include_waiting: Flag = False,
    archive: Path | None = None,
    how: Asking = ASKING,
) -> int:
    """Purge letters that were replayed or settled that long ago.

    Example: prefect-resilience dead-letters purge --older-than 30d --archive letters.jsonl

    Args:
        older_than: A span as in 30d, or a time as in 2026-11-20T18:00.
        include_waiting: Also letters that were never replayed.
        archive: A file to which each letter is appended as a line of JSON before it is purged.
    """
    before = options.since("--older-than", older_than)
    sample = options.Sample[DeadLetter](how.json)
    with how.at_store() as url:
        queue = queue_of(url)
        sample.take(queue.purging(before, include_waiting=include_waiting, dry_run=True))
        if not sample.number:
            return how.answer([], "No letters are that old, so there is nothing to purge.")
        if not _is_confirmed(how, "Purge", sample.items, sample.number):
            return 1
        if not how.dry_run:
            sample = options.Sample[DeadLetter](how.json)
            try:
                sample.take(queue.purging(before, include_waiting=include_waiting, archive=archive))
            except OSError as error:
                done = f"{sample.number} of them were purged" if sample.number else "nothing was purged"
                raise ConfigurationError(
                    f"--archive {archive} cannot be written, so {done}: {error}"
                ) from None
    return how.answer(
        sample.items, f"{plural(sample.number, 'dead letter')} {how.was(sample.number)} purged."
    )


# -- helpers of several commands


def _since(text: str | None) -> datetime | timedelta | None:
    return None if text is None else options.since("--since", text)


def _is_confirmed(how: Asking, verb: str, letters: Sequence[DeadLetter], count: int) -> bool:
    number = plural(count, "dead letter")
    columns = rows.letter_columns(datetime.now().timestamp())
    preview = look.table(columns, letters[: look.ASKED_ABOUT])
    return how.is_confirmed(f"{verb} {number}?", f"{verb.lower()} {number}", preview, count)


def replay_values(pairs: Iterable[str], from_environment: Iterable[str]) -> dict[str, Any]:
    """The values of --set and --set-env by their paths. Valid JSON is parsed, anything else is text."""
    values: dict[str, Any] = {}
    for pair in pairs:
        path, sign, value = pair.partition("=")
        if not path or not sign:
            raise ConfigurationError("--set must be PATH=VALUE, as in --set order.note=hello")
        values[path] = _json_or_text(value)
    for pair in from_environment:
        path, _, name = pair.partition("=")
        if not path or not name:
            raise ConfigurationError("--set-env must be PATH=VARIABLE, as in --set-env api_key=API_KEY")
        if name not in os.environ:
            raise ConfigurationError(f"--set-env {pair}: there is no environment variable {name}")
        values[path] = os.environ[name]
    return values


def _json_or_text(value: str) -> Any:
    if value[:1] not in ("[", "{", '"') and value not in ("true", "false", "null"):
        return value
    try:
        return json_text.loads(value)
    except ValueError:
        return value


@contextmanager
def _bar(hidden: bool) -> Generator[Progress, None, None]:
    """A progress bar on stderr, only in a terminal."""
    console = look.stderr()
    hidden = hidden or not (console.is_terminal and console.is_interactive)
    with ProgressBar(console=console, transient=True, redirect_stdout=False, disable=hidden) as bar:
        row = bar.add_task("starting", total=None)

        def after_each(done: int, total: int, outcome: LetterOutcome) -> None:
            description = escape(f"{outcome.result} {look.printable(outcome.name)}"[:80])
            bar.update(row, completed=done, total=total, description=description)

        yield after_each
