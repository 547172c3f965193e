"""Dead letters as tables. Each status has a word and a sign as well as a colour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rich.table import Table
from rich.text import Text

from prefect_resilience.base.text import lasting, plural
from prefect_resilience.durable.letters.model import DeadLetter, Pass, Replay
from prefect_resilience.durable.letters.report import LetterOutcome, ReplayReport
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.cli import look
from prefect_resilience.operations.cli.look import NUMBER, TEXT, WORD, printable, safe
from prefect_resilience.operations.letter_rows import argument_text

MEANINGS = {
    "waiting": "not replayed yet",
    "replaying": "a replay is running",
    "in_doubt": "a replay was interrupted; check its outcome at the receiver, then run `replay ID --force`",
    "replayed": "its call was replayed successfully",
    "settled": "its call succeeded in a later pass of its flow run; it needs no replay",
}
VALUE_SHOWN = 2_000


def letters_table(letters: Iterable[DeadLetter], now: float) -> Table:
    """A row for each letter."""
    columns = {"status": WORD, "id": WORD, "task": 8, "age": NUMBER, "passes": NUMBER, "error": 12}
    rows = (
        (
            look.state(letter.status),
            letter.id,
            letter.name,
            lasting(round(now - letter.created_at.timestamp())),
            str(max(letter.failures, len(letter.passes))),
            safe(letter.summary()),
        )
        for letter in letters
    )
    return look.table(columns, rows)


def summary(counts: Counter[str], url: str, *, more: bool = False) -> str:
    """One line: the number of letters by status. `more`: there are others, which were not counted."""
    each = [f"{counts[status]} {status.replace('_', ' ')}" for status in MEANINGS if counts[status]]
    number = f"{'more than ' if more else ''}{plural(counts.total(), 'dead letter')}"
    return f"{number}{': ' if each else ''}{', '.join(each)}, in {url}"


def card_rows(letter: DeadLetter, now: float) -> Iterator[tuple[str, look.Cell]]:
    """All facts about one letter."""
    yield "dead letter", letter.id
    meaning = MEANINGS[letter.status]
    yield "status", look.state(letter.status).append(f"  {meaning}", style="not bold default")
    yield letter.kind, letter.name
    yield "code", str(letter.source or "not found")
    yield "failed", look.local(letter.created_at.timestamp(), now)
    if len(letter.passes) > 1:
        yield from _labelled("passes", (_pass(one, now) for one in letter.passes))
    else:
        yield "attempts", str(letter.attempts)
    yield "error", safe(letter.summary())
    for label, value in (
        ("deployment", letter.deployment_id),
        ("batch", letter.batch_id),
        ("flow run", letter.flow_run_id),
        ("task run", letter.task_run_id),
    ):
        if value:
            yield label, value
    parameters = (
        Text(printable(argument_text(name, value, VALUE_SHOWN)))
        for name, value in letter.contents.parameters.items()
    )
    yield from _labelled("parameters", parameters)
    if letter.claim is not None:
        yield "replaying", f"{letter.claim.owner}, since {letter.claim.since:%H:%M:%S} UTC"
    yield from _labelled("replays", (_replay(one, now) for one in letter.replays))
    if (error := letter.error) is not None and error.stack_trace:
        yield "stack trace", Text(redact(error.stack_trace.rstrip()))


def _labelled(label: str, texts: Iterable[look.Cell]) -> Iterator[tuple[str, look.Cell]]:
    """Rows of a card; only the first has the label."""
    for place, text in enumerate(texts):
        yield "" if place else label, text


def _replay(one: Replay, now: float) -> str:
    outcome = one.outcome.replace("_", " ")
    return f"{outcome} {look.local(one.finished_at.timestamp(), now)}, {safe(one.message)}"


def _pass(one: Pass, now: float) -> str:
    """The outcome of the call in one pass of its flow run."""
    start = look.local(one.at.timestamp(), now) + (f", start {one.starts[-1][1]}: " if one.starts else ", ")
    if one.outcome == "succeeded":
        return f"{start}succeeded"
    return f"{start}failed after {plural(one.attempts, 'attempt')}, {safe(one.code or one.category)}"


def left_to_runs(report: ReplayReport) -> str:
    """The sentence about letters that a replay left to their flow runs."""
    letters = plural(report.left_to_runs, "letter was", "letters were")
    return (
        f"{letters} skipped: the flow run is running or waits to run again, and may make the call itself. "
        "After it has ended, replay the letters that are still waiting."
    )


def outcomes_table(outcomes: Iterable[LetterOutcome]) -> Table:
    """A row for the outcome of each letter."""
    columns = {"result": WORD, "id": WORD, "task": 8, "message": TEXT}
    rows = ((look.state(one.result), one.id, one.name, safe(one.message)) for one in outcomes)
    return look.table(columns, rows)
