"""`prefect-resilience dead-letters ...`: show, replay and purge calls that failed for good."""

from __future__ import annotations

import json as json_text
import os
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

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

COUNTED = 10_000
"""Of more letters than this, `list` shows the first ones, and says "more than"."""

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
    after: str | None = None,
    how: options.Answering = options.ANSWERING,
) -> int:
    """Show the dead letters, the newest first.

    Example: prefect-resilience dead-letters list --status waiting --since 24h

    Args:
        limit: The largest number of letters to show, the newest first.
        after: Only letters older than this one: the id of the last letter of the page before.
    """
    options.check_limit(limit)
    url = options.store_url(how.store)
    with options.explained(url):
        queue = queue_of(url)
        found = queue.matching(status, task, _since(since), after)
        shown = [*islice(found, limit)]
        if not shown and after is None:
            check_task(queue, task)
        counts = Counter[str](one.status for one in chain(shown, islice(found, max(0, COUNTED - limit))))
        uncounted = next(found, None) is not None
        now = queue.store.now()
    more = f"The {limit} newest of " if counts.total() > limit else ""
    summary = tables.summary(counts, redact(url), more=uncounted)
    nothing = [f"No matching dead letters in {redact(url)}."]
    parts = [tables.letters_table(shown, now), more + summary] if shown else nothing
    return look.answer(shown, *parts, json=how.json)


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
    if not how.dry_run and len(chosen) > 1 and not how.yes and not _agreed("Replay", chosen, len(chosen)):
        return 1
    with options.explained(url), _bar(how.json or how.dry_run) as progress:
        named = bool(letters) and len(chosen) == 1
        work = Replaying(queue, rate, force, values, progress=progress, despite_run=force and named)
        report = operations.replay_chosen(work, chosen, dry_run=how.dry_run, store=url)
    sentences = [f"{report.summary()}.", *([tables.left_to_runs(report)] if report.left_to_runs else [])]
    look.answer(report, tables.outcomes_table(report.outcomes), *sentences, json=how.json)
    return 0 if report.well else 1


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
        archive: A file to which each letter is appended as a line of JSON before it is purged.
    """
    url = options.store_url(how.store)
    before = options.since("--older-than", older_than)
    with options.explained(url):
        queue = queue_of(url)
        chosen = _Taken(how.json).all(queue.purging(before, include_waiting=include_waiting, dry_run=True))
    if not chosen.number:
        return look.answer([], "No letters are that old, so there is nothing to purge.", json=how.json)
    if not how.dry_run:
        if not how.yes and not _agreed("Purge", chosen.letters, chosen.number):
            return 1
        chosen = _Taken(how.json)
        try:
            with options.explained(url):
                chosen.all(queue.purging(before, include_waiting=include_waiting, archive=archive))
        except OSError as error:
            done = f"{chosen.number} of them were purged" if chosen.number else "nothing was purged"
            raise ConfigurationError(f"--archive {archive} cannot be written, so {done}: {error}") from None
    done = f"{plural(chosen.number, 'dead letter')} {options.was(chosen.number, how.dry_run)} purged."
    return look.answer(chosen.letters, done, json=how.json)


# -- helpers of several commands


def _since(text: str | None) -> datetime | timedelta | None:
    return None if text is None else options.since("--since", text)


@dataclass
class _Taken:
    """The number of letters that were purged, and the letters: all, or the first few."""

    keep_all: bool
    number: int = 0
    letters: list[DeadLetter] = field(default_factory=list[DeadLetter])

    def all(self, letters: Iterable[DeadLetter]) -> _Taken:
        for letter in letters:
            self.number += 1
            if self.keep_all or self.number <= look.ASKED_ABOUT:
                self.letters.append(letter)
        return self


def _agreed(verb: str, letters: Sequence[DeadLetter], count: int) -> bool:
    """Show the first letters and ask. Raises ConfigurationError if there is no terminal."""
    number = plural(count, "dead letter")
    preview = tables.letters_table(letters[: look.ASKED_ABOUT], datetime.now().timestamp())
    return look.agreed(f"{verb} {number}?", f"{verb.lower()} {number}", preview, count)


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
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    with ProgressBar(
        *columns, TimeRemainingColumn(), console=console, transient=True, redirect_stdout=False
    ) as bar:
        row = bar.add_task("starting", total=None)

        def after_each(done: int, total: int, outcome: LetterOutcome) -> None:
            description = f"{outcome.result} {look.printable(outcome.name)}"
            bar.update(row, completed=done, total=total, description=description[:80])

        yield after_each
