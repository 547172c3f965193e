"""`prefect-resilience dead-letters ...`: see the calls that finally failed, replay them, remove them."""

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
from prefect_resilience.operations.cli import look, options, output
from prefect_resilience.operations.cli.options import (
    DryRun,
    Flag,
    Json,
    Store,
    Yes,
    check_limit,
    explained,
    store_url,
)

Task = Annotated[str | None, Parameter(help="Only those of this task or flow: its name, or module:function.")]
Since = Annotated[
    str | None, Parameter(help="Only those since then: a span as in 24h or 7d, or 2026-11-20T18:00.")
]
Statuses = Annotated[list[Status] | None, Parameter(help="Only those of this status; repeat it for several.")]

app: App = App(
    name="dead-letters",
    help="See the calls that finally failed, replay them, and remove what is done with.",
    help_format="plaintext",
    version_flags=[],
)


@app.command(name="list")
def list_letters(
    *,
    status: Statuses = None,
    task: Task = None,
    since: Since = None,
    limit: int = 100,
    store: Store = None,
    json: Json = False,
) -> int:
    """Show the dead letters, the newest first.

    Example: prefect-resilience dead-letters list --status waiting --since 24h

    Args:
        limit: Show at most so many, the newest first.
    """
    check_limit(limit)
    url = store_url(store)
    with explained(url):
        queue = queue_of(url)
        found = queue.list(status, task, _since(since))
        if not found:
            check_task(queue, task)
        now = queue.store.now()
    shown = found[:limit]
    more = f"The {limit} newest of " if len(found) > limit else ""
    parts = [tables.letters_table(shown, now), more + tables.summary(found, redact(url))]
    nothing = [f"There are no such dead letters in {redact(url)}."]
    return output.answer(shown, *(parts if found else nothing), json=json)


@app.command
def show(letter: str, /, *, store: Store = None, json: Json = False) -> int:
    """Show everything that is known of one dead letter: its parameters, its error, its replays.

    Example: prefect-resilience dead-letters show 01a1febe-b96e-7be5-9158-1f14ad773e0c

    Args:
        letter: The letter's id, as `dead-letters list` writes it.
    """
    url = store_url(store)
    with explained(url):
        queue = queue_of(url)
        found = queue.get(letter)
        now = queue.store.now()
    document = {**found.model_dump(), **found.contents.model_dump()}
    return output.answer(document, look.card(tables.card_rows(found, now)), json=json)


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
    dry_run: DryRun = False,
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> int:
    """Make their calls again, the oldest first. Stopped and started again, it goes on where it stopped.

    A letter whose flow run goes on, or waits to run again, is left to that run, which may make the call.

    It runs as the flow replay-dead-letters; work in the folder of your project, so that the tasks are found.
    Example: prefect-resilience dead-letters replay --task send-invoice --since 24h --rate 5

    Args:
        letters: Their ids; or choose with --task, --since, --status or --all.
        all: Every letter that waits.
        limit: Replay at most so many, the oldest first.
        rate: At most so many letters a second.
        set: A value that was left out of letters, as in --set order.note=hello.
        set_env: The same from an environment variable: --set-env api_key=API_KEY.
        force: Also letters in doubt, and a single one that is named although its flow run goes on:
            unless they have an effect, their calls may happen twice.
    """
    if not letters and not (all or task or since or status):
        raise ConfigurationError(
            "say which letters to replay: their ids, --task, --since, --status, or --all"
        )
    url = store_url(store)
    values = _values(set or [], set_env or [])
    options.import_from_here()
    with explained(url):
        queue = queue_of(url)
        chosen = operations.choose(queue, letters or None, status, task, _since(since), limit)
    if not chosen:
        return output.answer([], "There are no such dead letters, and so nothing to replay.", json=json)
    if not dry_run and len(chosen) > 1 and not yes and not _agreed("Replay", chosen):
        return 1
    with explained(url), _bar(json or dry_run) as progress:
        named = bool(letters) and len(chosen) == 1
        how = Replaying(queue, rate, force, values, progress=progress, despite_run=force and named)
        report = operations.replay_chosen(how, chosen, dry_run=dry_run, store=url)
    sentences = [f"{report.summary()}.", *([tables.left_to_runs(report)] if report.left_to_runs else [])]
    output.answer(report, tables.outcomes_table(report.outcomes), *sentences, json=json)
    return 0 if dry_run or report.well else 1


@app.command
def purge(
    *,
    older_than: str,
    include_waiting: Flag = False,
    archive: Path | None = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> int:
    """Remove letters that were replayed or settled that long ago.

    Example: prefect-resilience dead-letters purge --older-than 30d --archive letters.jsonl

    Args:
        older_than: A span as in 30d, or a time as in 2026-11-20T18:00.
        include_waiting: Also those that were never replayed.
        archive: A file to which each is added, as a line of JSON, before any is removed.
    """
    url = store_url(store)
    before = options.since("--older-than", older_than)
    with explained(url):
        queue = queue_of(url)
        chosen = queue.purge(before, include_waiting=include_waiting, dry_run=True)
    if not chosen:
        return output.answer([], "There are no letters that old, and so nothing to remove.", json=json)
    if not dry_run:
        if not yes and not _agreed("Remove", chosen):
            return 1
        try:
            with explained(url):
                chosen = queue.purge(before, include_waiting=include_waiting, archive=archive)
        except OSError as error:
            raise ConfigurationError(
                f"--archive {archive} cannot be written, so nothing was removed: {error}"
            ) from None
    done = f"{plural(len(chosen), 'dead letter')} {options.was(len(chosen), dry_run)} removed."
    return output.answer(chosen, done, json=json)


# -- what the commands share


def _since(text: str | None) -> datetime | timedelta | None:
    return None if text is None else options.since("--since", text)


def _agreed(verb: str, letters: Sequence[DeadLetter]) -> bool:
    """Show which letters are meant and ask; ConfigurationError where there is nobody to answer."""
    number = plural(len(letters), "dead letter")
    preview = tables.letters_table(letters[: output.ASKED_ABOUT], datetime.now().timestamp())
    return output.agreed(f"{verb} {number}?", f"{verb.lower()} {number}", preview, len(letters))


def _values(given: Sequence[str], from_environment: Sequence[str]) -> dict[str, Any]:
    """The values of --set and --set-env by their paths. JSON is read as JSON, everything else is a text."""
    values: dict[str, Any] = {}
    for text in given:
        path, sign, value = text.partition("=")
        if not sign or not path:
            raise ConfigurationError("--set must be PATH=VALUE, as in --set order.note=hello")
        values[path] = _json_or_text(value)
    for text in from_environment:
        path, sign, name = text.partition("=")
        if not sign or not path or not name:
            raise ConfigurationError("--set-env must be PATH=VARIABLE, as in --set-env api_key=API_KEY")
        if name not in os.environ:
            raise ConfigurationError(f"--set-env {text}: there is no environment variable {name}")
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
def _bar(hidden: bool) -> Generator[Progress | None, None, None]:
    """A bar on stderr, in a terminal only."""
    console = output.stderr()
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
