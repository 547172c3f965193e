"""`prefect-resilience dead-letters ...`: show, replay and purge calls that failed for good."""

from __future__ import annotations

import json as json_text
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.progress import Progress as ProgressBar
from rich.progress import TimeRemainingColumn

from prefect_resilience.base.text import plural
from prefect_resilience.durable.letters.edge import operations
from prefect_resilience.durable.letters.edge.known import check_task, queue_of
from prefect_resilience.durable.letters.edge.replay import Replaying
from prefect_resilience.durable.letters.model import DeadLetter, Status
from prefect_resilience.durable.letters.report import LetterOutcome, Progress
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.cli import dead_letters_tables as tables
from prefect_resilience.operations.cli import look, options
from prefect_resilience.operations.cli.options import Flag
from prefect_resilience.operations.importing import import_from_here

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

_EXAMPLES = {
    "--set": "PATH=VALUE, as in --set order.note=hello",
    "--set-env": "PATH=VARIABLE, as in --set-env api_key=API_KEY",
}

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
    how: options.Answering = options.ANSWERING,
) -> int:
    """Show the dead letters, the newest first.

    Example: prefect-resilience dead-letters list --status waiting --since 24h

    Args:
        limit: The largest number of letters to show, the newest first.
    """
    options.check_limit(limit)
    url = options.store_url(how.store)
    with options.explained(url):
        queue = queue_of(url)
        found = queue.list(status, task, _since(since))
        if not found:
            check_task(queue, task)
        now = queue.store.now()
    shown = found[:limit]
    more = f"The {limit} newest of " if len(found) > limit else ""
    parts = [tables.letters_table(shown, now), more + tables.summary(found, redact(url))]
    nothing = [f"No matching dead letters in {redact(url)}."]
    return look.answer(shown, *(parts if found else nothing), json=how.json)


@app.command
def show(letter: str, /, *, how: options.Answering = options.ANSWERING) -> int:
    """Show all facts about one dead letter: its parameters, its error, its replays.

    Example: prefect-resilience dead-letters show 01a1febe-b96e-7be5-9158-1f14ad773e0c

    Args:
        letter: The letter's id, as `dead-letters list` prints it.
    """
    url = options.store_url(how.store)
    with options.explained(url):
        queue = queue_of(url)
        found = queue.get(letter)
        now = queue.store.now()
    document = {**found.model_dump(), **found.contents.model_dump()}
    return look.answer(document, look.card(tables.card_rows(found, now)), json=how.json)


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
    how: options.Asking = options.ASKING,
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
    url = options.store_url(how.store)
    values = _values(set or [], set_env or [])
    import_from_here()
    with options.explained(url):
        queue = queue_of(url)
        chosen = operations.choose(queue, letters or None, status, task, _since(since), limit)
    if not chosen:
        return look.answer([], "No matching dead letters, so there is nothing to replay.", json=how.json)
    if not how.dry_run and len(chosen) > 1 and not how.yes and not _agreed("Replay", chosen):
        return 1
    with options.explained(url), _bar(how.json or how.dry_run) as progress:
        named = bool(letters) and len(chosen) == 1
        work = Replaying(queue, rate, force, values, progress=progress, despite_run=force and named)
        report = operations.replay_chosen(work, chosen, dry_run=how.dry_run, store=url)
    sentences = [f"{report.summary()}.", *([tables.left_to_runs(report)] if report.left_to_runs else [])]
    look.answer(report, tables.outcomes_table(report.outcomes), *sentences, json=how.json)
    return 0 if how.dry_run or report.well else 1


@app.command
def purge(
    *,
    older_than: str,
    include_waiting: Flag = False,
    archive: Path | None = None,
    how: options.Asking = options.ASKING,
) -> int:
    """Purge letters that were replayed or settled that long ago.

    Example: prefect-resilience dead-letters purge --older-than 30d --archive letters.jsonl

    Args:
        older_than: A span as in 30d, or a time as in 2026-11-20T18:00.
        include_waiting: Also letters that were never replayed.
        archive: A file to which each letter is appended as a line of JSON before any is purged.
    """
    url = options.store_url(how.store)
    before = options.since("--older-than", older_than)
    with options.explained(url):
        queue = queue_of(url)
        chosen = queue.purge(before, include_waiting=include_waiting, dry_run=True)
    if not chosen:
        return look.answer([], "No letters are that old, so there is nothing to purge.", json=how.json)
    if not how.dry_run:
        if not how.yes and not _agreed("Purge", chosen):
            return 1
        try:
            with options.explained(url):
                chosen = queue.purge(before, include_waiting=include_waiting, archive=archive)
        except OSError as error:
            raise ConfigurationError(
                f"--archive {archive} cannot be written, so nothing was purged: {error}"
            ) from None
    done = f"{plural(len(chosen), 'dead letter')} {options.was(len(chosen), how.dry_run)} purged."
    return look.answer(chosen, done, json=how.json)


# -- helpers of several commands


def _since(text: str | None) -> datetime | timedelta | None:
    return None if text is None else options.since("--since", text)


def _agreed(verb: str, letters: Sequence[DeadLetter]) -> bool:
    """Show the letters and ask. Raises ConfigurationError if there is no terminal."""
    number = plural(len(letters), "dead letter")
    preview = tables.letters_table(letters[: look.ASKED_ABOUT], datetime.now().timestamp())
    return look.agreed(f"{verb} {number}?", f"{verb.lower()} {number}", preview, len(letters))


def _values(given: Sequence[str], from_environment: Sequence[str]) -> dict[str, Any]:
    """The values of --set and --set-env by their paths. Valid JSON is parsed, anything else is text."""
    values = {path: _json_or_text(value) for path, value in _pairs("--set", given)}
    for path, name in _pairs("--set-env", from_environment):
        if name not in os.environ:
            raise ConfigurationError(f"--set-env {path}={name}: there is no environment variable {name}")
        values[path] = os.environ[name]
    return values


def _pairs(option: str, texts: Sequence[str]) -> Generator[tuple[str, str], None, None]:
    for text in texts:
        path, sign, value = text.partition("=")
        if not path or not sign or not (value or option == "--set"):
            raise ConfigurationError(f"{option} must be {_EXAMPLES[option]}")
        yield path, value


def _json_or_text(value: str) -> Any:
    if value[:1] not in ("[", "{", '"') and value not in ("true", "false", "null"):
        return value
    try:
        return json_text.loads(value)
    except ValueError:
        return value


@contextmanager
def _bar(hidden: bool) -> Generator[Progress | None, None, None]:
    """A progress bar on stderr, only in a terminal."""
    console = look.stderr()
    if hidden or not (console.is_terminal and console.is_interactive):
        yield None
        return
    columns = (*look.bar_columns(), TimeRemainingColumn())
    with ProgressBar(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        row = bar.add_task("starting", total=None)

        def after_each(done: int, total: int, outcome: LetterOutcome) -> None:
            description = f"{outcome.result} {look.printable(outcome.name)}"
            bar.update(row, completed=done, total=total, description=description[:80])

        yield after_each
