"""`prefect-resilience dead-letters ...`: show, replay and purge calls that failed for good."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, islice
from typing import Annotated, Any

from cyclopts import App, Parameter

from prefect_resilience.base.text import plural, printable
from prefect_resilience.durable.letters.edge.known import check_task, choose, queue_of
from prefect_resilience.durable.letters.model import LetterOutcome, Status
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations import letter_rows as rows
from prefect_resilience.operations.cli import look, options
from prefect_resilience.operations.cli.options import ANSWERING, PLANNING, Answering, Flag, Limit, Planning
from prefect_resilience.operations.letter_rows import COUNTED
from prefect_resilience.operations.users_code import import_from_here

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

START = set('[{"tfn')
"""The first letters of JSON that is no number."""
LEFT_TO_RUNS = (
    "skipped: the flow run is running or waits to run again, and may make the call itself. "
    "After it has ended, replay the letters that are still waiting."
)

app: App = App(name="dead-letters", version_flags=[])


@app.command(name="list")
def list_letters(
    *,
    status: Statuses = None,
    task: Task = None,
    since: Since = None,
    limit: Limit = 100,
    after: str | None = None,
    how: Answering = ANSWERING,
) -> int:
    """Show the dead letters, the newest first.

    Example: prefect-resilience dead-letters list --status waiting --since 24h

    Args:
        limit: The largest number of letters to show, the newest first.
        after: Only letters older than this one: the id of the last letter of the page before.
    """
    with how.at_store() as url:
        queue = queue_of(url)
        matching = queue.letters(status, task, _since(since), after=after)
        shown = [*islice(matching, limit)]
        if not shown and after is None:
            check_task(queue, task)
        rest = islice(matching, max(0, COUNTED - limit))
        counts = Counter[str](letter.status for letter in chain(shown, rest))
        more = next(matching, None) is not None
    if not shown:
        return how.answer([], f"No matching dead letters in {redact(url)}.")
    first = f"The {limit} newest of " if counts.total() > limit else ""
    counts_line = first + rows.counts_line(counts, url, more=more)
    return how.answer(shown, look.table(rows.COLUMNS, shown), counts_line)


@app.command
def show(letter: str, /, *, how: Answering = ANSWERING) -> int:
    """Show all facts about one dead letter: its parameters, its error, its replays.

    Example: prefect-resilience dead-letters show 01a1febe-b96e-7be5-9158-1f14ad773e0c

    Args:
        letter: The letter's id, as `dead-letters list` prints it.
    """
    with how.at_store() as url:
        row = queue_of(url).get(letter)
        document = {**row.model_dump(), **row.contents.model_dump()}
    return how.answer(document, *rows.card_of(row))


@app.command
def replay(
    letters: list[str] | None = None,
    /,
    *,
    all: Flag = False,
    task: Task = None,
    since: Since = None,
    status: Statuses = None,
    limit: Limit | None = None,
    rate: float | None = None,
    set: list[str] | None = None,
    set_env: list[str] | None = None,
    force: Flag = False,
    how: Planning = PLANNING,
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
    from rich.markup import escape
    from rich.progress import Progress

    from prefect_resilience.durable.letters.edge import operations
    from prefect_resilience.durable.letters.edge.replay import Replaying

    values = replay_values(set or [], set_env or [])
    import_from_here()
    with how.at_store() as url:
        queue = queue_of(url)
        chosen = choose(queue, letters or None, status, task, _since(since), limit)
        if not chosen:
            return how.answer([], "No matching dead letters, so there is nothing to replay.")
        if len(chosen) > 1 and not how.dry_run:
            how.confirm(f"replay {plural(len(chosen), 'dead letter')}", rows.COLUMNS, chosen, len(chosen))
        named = bool(letters) and len(chosen) == 1
        console = look.stderr()
        hidden = how.json or how.dry_run or not (console.is_terminal and console.is_interactive)
        with Progress(console=console, transient=True, redirect_stdout=False, disable=hidden) as bar:
            row = bar.add_task("starting", total=None)

            def show_progress(done: int, total: int, outcome: LetterOutcome) -> None:
                last = escape(f"{outcome.result} {printable(outcome.name)}"[:80])
                bar.update(row, completed=done, total=total, description=last)

            work = Replaying(queue, rate, force, values, progress=show_progress, despite_run=force and named)
            report = operations.replay_chosen(work, chosen, dry_run=how.dry_run)
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
    how: Planning = PLANNING,
) -> int:
    """Purge letters that were replayed or settled that long ago.

    Example: prefect-resilience dead-letters purge --older-than 30d

    Args:
        older_than: A span as in 30d, or a time as in 2026-11-20T18:00.
        include_waiting: Also letters that were never replayed.
    """
    before = options.since("--older-than", older_than)
    with how.at_store() as url:
        work = partial(queue_of(url).purge, before, include_waiting=include_waiting)
        letters, sentence = how.sweep("purge", "dead letter", "dead letters", rows.COLUMNS, work)
    return how.answer(letters, sentence)


# -- helpers of several commands


def _since(text: str | None) -> datetime | timedelta | None:
    return None if text is None else options.since("--since", text)


def replay_values(texts: Iterable[str], from_environment: Iterable[str]) -> dict[str, Any]:
    """The values of --set and --set-env by their paths. JSON is parsed, but a number stays text."""
    values: dict[str, Any] = options.pairs("--set", texts, "PATH=VALUE, as in --set order.note=hello")
    values = {
        path: options.json_or_text(text) if text[:1] in START else text for path, text in values.items()
    }
    example = "PATH=VARIABLE, as in --set-env api_key=API_KEY"
    for path, name in options.pairs("--set-env", from_environment, example).items():
        if name not in os.environ:
            raise ConfigurationError(f"--set-env {path}={name}: there is no environment variable {name}")
        values[path] = os.environ[name]
    return values
