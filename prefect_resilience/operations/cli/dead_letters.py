"""`prefect-resilience dead-letters ...`: see what was given up on, replay it, remove it."""

from __future__ import annotations

import json as json_text
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from pydantic import RootModel, ValidationError
from pydantic_settings import SettingsError
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from prefect_resilience.base.edge.settings import current_settings
from prefect_resilience.durable.letters.edge import operations
from prefect_resilience.durable.letters.edge.configured import check_task, queue_of
from prefect_resilience.durable.letters.edge.replay import Replaying
from prefect_resilience.durable.letters.model import DeadLetter, Status
from prefect_resilience.durable.letters.report import LetterOutcome, Progress
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.cli import asking, fleet, output
from prefect_resilience.operations.cli import dead_letters_tables as tables
from prefect_resilience.operations.cli.options import DryRun, Json, Store, Yes
from prefect_resilience.stores import parse_url

Id = Annotated[str, Parameter(help="The letter's id, as `dead-letters list` writes it.")]
Ids = Annotated[
    list[str] | None, Parameter(help="Their ids; or choose with --task, --since, --status or --all.")
]
Task = Annotated[str | None, Parameter(help="Only those of this task or flow: its name, or module:function.")]
Since = Annotated[
    str | None, Parameter(help="Only those since then: a span as in 24h or 7d, or 2026-11-20T18:00.")
]
Statuses = Annotated[
    list[Status] | None, Parameter(negative="", help="Only those of this status; repeat it for several.")
]

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
    limit: Annotated[int, Parameter(help="Show at most so many, the newest first.")] = 100,
    store: Store = None,
    json: Json = False,
) -> int:
    """Show the dead letters, the newest first.

    Example: prefect-resilience dead-letters list --status waiting --since 24h
    """
    if limit < 1:
        raise ConfigurationError(f"--limit {limit} must be 1 or more")
    url = store_url(store)
    with fleet.explained(url):
        queue = queue_of(url)
        found = queue.list(status, task, when("--since", since))
        if not found:
            check_task(queue, task)
        now = queue.store.now()
    shown = found[:limit]
    if json:
        output.as_json(shown)
    elif not found:
        output.show(f"There are no such dead letters in {redact(url)}.")
    else:
        more = f"The {limit} newest of " if len(found) > limit else ""
        output.show(tables.letters_table(shown, now), more + tables.summary(found, redact(url)))
    return 0


@app.command
def show(letter: Id, /, *, store: Store = None, json: Json = False) -> int:
    """Show everything that is known of one dead letter: its parameters, its error, its replays.

    Example: prefect-resilience dead-letters show 01a1febe-b96e-7be5-9158-1f14ad773e0c
    """
    url = store_url(store)
    with fleet.explained(url):
        queue = queue_of(url)
        found = queue.get(letter)
        now = queue.store.now()
    if json:
        output.as_json(RootModel({**found.model_dump(), **found.contents.model_dump()}))
    else:
        output.show(tables.letter_card(found, now))
    return 0


@app.command
def replay(
    letters: Ids = None,
    /,
    *,
    all: Annotated[bool, Parameter(negative="", show_default=False, help="Every letter that waits.")] = False,
    task: Task = None,
    since: Since = None,
    status: Statuses = None,
    limit: Annotated[int | None, Parameter(help="Replay at most so many, the oldest first.")] = None,
    rate: Annotated[float | None, Parameter(help="At most so many letters a second.")] = None,
    set: Annotated[
        list[str] | None,
        Parameter(negative="", help="A value that was left out of letters, as in --set order.note=hello."),
    ] = None,
    set_env: Annotated[
        list[str] | None,
        Parameter(negative="", help="The same from an environment variable: --set-env api_key=API_KEY."),
    ] = None,
    force: Annotated[
        bool,
        Parameter(
            negative="",
            show_default=False,
            help="Also letters in doubt, and a single one that is named although its flow run goes on: "
            "unless they have an effect, their calls may happen twice.",
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> int:
    """Make their calls again, the oldest first. Stopped and started again, it goes on where it stopped.

    A letter whose flow run goes on, or waits to run again, is left to that run, which may make the call.

    It runs as the flow replay-dead-letters; work in the folder of your project, so that the tasks are found.
    Example: prefect-resilience dead-letters replay --task send-invoice --since 24h --rate 5
    """
    if not letters and not (all or task or since or status):
        raise ConfigurationError(
            "say which letters to replay: their ids, --task, --since, --status, or --all"
        )
    url = store_url(store)
    values = _values(set or [], set_env or [])
    # A command that pip has installed does not look for modules where it is called.
    sys.path.insert(0, os.getcwd())
    with fleet.explained(url):
        queue = queue_of(url)
        chosen = operations.choose(queue, letters or None, status, task, when("--since", since), limit)
    if not chosen:
        return _nothing("There are no such dead letters, and so nothing to replay.", json)
    if not dry_run and len(chosen) > 1 and not yes and not agreed("Replay", chosen):
        return 1
    with fleet.explained(url), _bar(json or dry_run) as progress:
        named = bool(letters) and len(chosen) == 1
        how = Replaying(queue, rate, force, values, progress=progress, despite_run=force and named)
        report = operations.replay_chosen(how, chosen, dry_run=dry_run, store=url)
    if json:
        output.as_json(report)
    else:
        said = [f"{report.summary()}.", *([tables.left_to_runs(report)] if report.left_to_runs else [])]
        output.show(tables.outcomes_table(report.outcomes), *said)
    return 0 if dry_run or report.well else 1


@app.command
def purge(
    *,
    older_than: Annotated[str, Parameter(help="A span as in 30d, or a time as in 2026-11-20T18:00.")],
    include_waiting: Annotated[
        bool, Parameter(negative="", show_default=False, help="Also those that were never replayed.")
    ] = False,
    archive: Annotated[
        Path | None,
        Parameter(help="A file to which each is added, as a line of JSON, before any is removed."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> int:
    """Remove letters that were replayed or settled that long ago.

    Example: prefect-resilience dead-letters purge --older-than 30d --archive letters.jsonl
    """
    url = store_url(store)
    before = when("--older-than", older_than)
    assert before is not None
    with fleet.explained(url):
        queue = queue_of(url)
        chosen = queue.purge(before, include_waiting=include_waiting, dry_run=True)
    if not chosen:
        return _nothing("There are no letters that old, and so nothing to remove.", json)
    if not dry_run:
        if not yes and not agreed("Remove", chosen):
            return 1
        try:
            with fleet.explained(url):
                chosen = queue.purge(before, include_waiting=include_waiting, archive=archive)
        except OSError as error:
            raise ConfigurationError(
                f"--archive {archive} cannot be written, so nothing was removed: {error}"
            ) from None
    if json:
        output.as_json(chosen)
    else:
        number = "1 dead letter" if len(chosen) == 1 else f"{len(chosen)} dead letters"
        output.show(f"{number} {'would be' if dry_run else 'were' if len(chosen) > 1 else 'was'} removed.")
    return 0


# -- what the commands share


def store_url(given: str | None) -> str:
    """The URL of `--store`, else the configured one; ConfigurationError when no command can use it."""
    try:
        url = current_settings().store_url if given is None else given
    except (SettingsError, ValidationError) as error:
        first = " ".join(str(error).split())
        raise ConfigurationError(
            f"the settings cannot be read, check PREFECT_RESILIENCE_*: {first}"
        ) from None
    return fleet.store_url(parse_url(url).canonical)


def when(option: str, text: str | None) -> datetime | timedelta | None:
    """A span before now ("24h") or a time in the past, of this host's zone where it has no offset."""
    if text is None:
        return None
    now = datetime.now().astimezone()
    try:
        # `until` reads times to come; mirrored at a far day, those in the past are such.
        read = output.until(text, datetime.min.replace(year=1970, tzinfo=now.tzinfo))
    except ConfigurationError:
        raise ConfigurationError(
            f"{option} {text!r} is no time: write a span as in 24h or 7d, or a time as in "
            f"{now - timedelta(days=1):%Y-%m-%dT%H:%M}"
        ) from None
    return read


def agreed(verb: str, letters: Sequence[DeadLetter]) -> bool:
    """Show which letters are meant and ask; ConfigurationError where there is nobody to answer."""
    number = "1 dead letter" if len(letters) == 1 else f"{len(letters)} dead letters"
    preview = tables.letters_table(letters[: asking.SHOWN], datetime.now().timestamp())
    more = len(letters) - asking.SHOWN
    return asking.agreed(f"{verb} {number}?", f"{verb.lower()} {number}", preview, more)


def _values(given: Sequence[str], from_environment: Sequence[str]) -> dict[str, Any]:
    """What --set and --set-env say, by path. JSON is read as JSON, everything else is a text."""
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


def _nothing(sentence: str, json: bool) -> int:
    if json:
        output.as_json([])
    else:
        output.show(sentence)
    return 0


@contextmanager
def _bar(hidden: bool) -> Generator[Progress | None, None, None]:
    """A bar on stderr, in a terminal only."""
    console = output.stderr()
    if hidden or not (console.is_terminal and console.is_interactive):
        yield None
        return
    columns = (
        BarColumn(complete_style="#56b4e9", finished_style="#56b4e9"),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Bar(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        row = bar.add_task("starting", total=None)

        def told(done: int, total: int, outcome: LetterOutcome) -> None:
            said = f"{outcome.result} {output.printable(outcome.name)}"
            bar.update(row, completed=done, total=total, description=said[:80])

        yield told
