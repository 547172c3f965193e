"""Dead letters as tables. A status is told by a word and a sign; everybody can tell its colour apart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from prefect_resilience.durable.letters.codec import KIND, LEFT_OUT
from prefect_resilience.durable.letters.model import DeadLetter, Pass
from prefect_resilience.durable.letters.report import LetterOutcome, ReplayReport
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.cli import output
from prefect_resilience.operations.cli.output import printable

SIGNS = {"waiting": "…", "replaying": "»", "in_doubt": "?", "replayed": "✓", "settled": "="}
COLOURS = {
    "waiting": "#e69f00",
    "replaying": "#f0e442",
    "in_doubt": "bold #d55e00",
    "replayed": "#56b4e9",
    "settled": "#56b4e9",
}
MEANINGS = {
    "waiting": "nobody has replayed it yet",
    "replaying": "somebody is replaying it",
    "in_doubt": "a replay was cut off; look how far it had come, then `replay ID --force`",
    "replayed": "its call was made again, with success",
    "settled": "its call succeeded when its flow run was run again; it needs no replay",
}
RESULTS = {
    "replayed": ("✓", "#56b4e9"),
    "failed": ("✗", "bold #d55e00"),
    "skipped": ("-", "#cc79a7"),
    "would_replay": ("…", "#e69f00"),
}
VALUE_SHOWN = 2_000


def letters_table(letters: Sequence[DeadLetter], now: float) -> Table:
    """The letters, a row each."""
    table = _table()
    table.add_column("status", no_wrap=True)
    table.add_column("id", no_wrap=True)
    table.add_column("of", overflow="fold", min_width=8)
    table.add_column("age", justify="right", no_wrap=True)
    table.add_column("passes", justify="right", no_wrap=True)
    table.add_column("error", overflow="fold", min_width=12)
    for letter in letters:
        table.add_row(
            status_text(letter.status),
            letter.id,
            Text(printable(letter.name)),
            output.rough(now - letter.created_at.timestamp()),
            str(max(letter.failures, len(letter.passes))),
            Text(printable(redact(letter.summary()))),
        )
    return table


def status_text(status: str) -> Text:
    """The status in words, with its sign and colour."""
    return Text(f"{SIGNS.get(status, ' ')} {status.replace('_', ' ')}", style=COLOURS.get(status, ""))


def summary(letters: Iterable[DeadLetter], url: str) -> str:
    """How many there are of each status, in a line."""
    counts = Counter(letter.status for letter in letters)
    total = sum(counts.values())
    told = [f"{counts[status]} {status.replace('_', ' ')}" for status in SIGNS if counts[status]]  # pyright: ignore[reportArgumentType]
    number = "1 dead letter" if total == 1 else f"{total} dead letters"
    return f"{number}{': ' if told else ''}{', '.join(told)}, in {url}"


def letter_card(letter: DeadLetter, now: float) -> Table:
    """Everything that is known of one letter."""
    card = Table.grid(padding=(0, 2))
    card.add_column(style="bold", no_wrap=True)
    card.add_column(overflow="fold")
    for label, text in _told(letter, now):
        card.add_row(label, text)
    return card


def _told(letter: DeadLetter, now: float) -> Iterator[tuple[str, RenderableType]]:
    yield "dead letter", letter.id
    meaning = MEANINGS[letter.status]
    yield "status", status_text(letter.status).append(f"  {meaning}", style="not bold default")
    yield letter.kind, Text(printable(letter.name))
    yield "code", Text(printable(str(letter.source or "not to be found again")))
    yield "failed", output.local(letter.created_at.timestamp(), now)
    if len(letter.passes) > 1:
        for place, one in enumerate(letter.passes):
            when = output.local(one.at.timestamp(), now)
            yield "" if place else "passes", Text(f"{when}  {_pass(one)}")
    else:
        yield "attempts", str(letter.attempts)
    yield "error", Text(printable(redact(letter.summary())))
    for label, value in (
        ("deployment", letter.deployment_id),
        ("batch", letter.batch_id),
        ("flow run", letter.flow_run_id),
        ("task run", letter.task_run_id),
    ):
        if value:
            yield label, Text(printable(value))
    for place, (name, value) in enumerate(letter.contents.parameters.items()):
        yield "" if place else "parameters", Text(f"{printable(name)} = {_value(value)}")
    if letter.claim is not None:
        yield "replaying", Text(f"{printable(letter.claim.owner)}, since {letter.claim.since:%H:%M:%S} UTC")
    for place, replay in enumerate(letter.replays):
        when = output.local(replay.finished_at.timestamp(), now)
        outcome = replay.outcome.replace("_", " ")
        yield "" if place else "replays", Text(f"{outcome} {when}  {printable(redact(replay.message))}")
    if (error := letter.error) is not None and error.stack_trace:
        yield "stack trace", Text(redact(error.stack_trace.rstrip()))


def _pass(one: Pass) -> str:
    """What became of the call in one pass of its flow run."""
    start = f"start {one.starts[-1][1]}: " if one.starts else ""
    if one.outcome == "succeeded":
        return f"{start}succeeded"
    attempts = "1 attempt" if one.attempts == 1 else f"{one.attempts} attempts"
    return f"{start}failed after {attempts}, {printable(redact(one.code or one.category))}"


def left_to_runs(report: ReplayReport) -> str:
    """What a replay says of the letters that it left to their flow runs."""
    number = report.left_to_runs
    letters = "1 letter was" if number == 1 else f"{number} letters were"
    return (
        f"{letters} left to a flow run that goes on, or waits to run again, and may make the call itself. "
        "Once it has ended, replay what still waits."
    )


def _value(encoded: Any) -> str:
    """A parameter as JSON, without what the codec adds to it."""
    text = json.dumps(plain(encoded), ensure_ascii=True)
    return text if len(text) <= VALUE_SHOWN else f"{text[:VALUE_SHOWN]}... ({len(text):,} characters)"


def plain(encoded: Any) -> Any:
    """A value of a letter's JSON as a person reads it; no class is looked up for it."""
    if isinstance(encoded, list):
        return [plain(item) for item in cast("list[Any]", encoded)]
    if not isinstance(encoded, dict):
        return encoded
    members = cast("dict[str, Any]", encoded)
    kind = members.get(KIND)
    if kind is None:
        return {name: plain(member) for name, member in members.items()}
    if kind == LEFT_OUT:
        return f"<left out: {members['why']}>"
    for part in ("fields", "value", "name"):
        if part in members:
            return plain(members[part])
    return None


def outcomes_table(outcomes: Iterable[LetterOutcome]) -> Table:
    """What became of each letter."""
    table = _table()
    table.add_column("result", no_wrap=True)
    table.add_column("id", no_wrap=True)
    table.add_column("of", overflow="fold", min_width=8)
    table.add_column("message", overflow="fold")
    for one in outcomes:
        sign, colour = RESULTS[one.result]
        table.add_row(
            Text(f"{sign} {one.result.replace('_', ' ')}", style=colour),
            one.id,
            Text(printable(one.name)),
            Text(printable(redact(one.message))),
        )
    return table


def _table() -> Table:
    return Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False, header_style="bold")
