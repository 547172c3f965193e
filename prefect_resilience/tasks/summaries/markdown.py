"""The summary of a flow run as markdown for both of Prefect's UIs. Pure, and without secrets."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Iterable, Sequence

from prefect_resilience.base.text import code_cell, lasting, plural
from prefect_resilience.durable.batches.parked import PARKED
from prefect_resilience.durable.batches.run_passes import Start
from prefect_resilience.durable.batches.strategies import RESTARTS, RecoveryHint
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.tasks.summaries.story import (
    MOVES,
    WELL,
    CallRow,
    PassSeen,
    Story,
    clock,
    list_calls,
    text_in,
)
from prefect_resilience.tasks.summaries.timeline import draw
from prefect_resilience.telemetry.model import CALL_COUNTS, ENDED_BADLY, REPLACED, REPLAYED, Advice, Happening

MOST_ROWS = 50
LONGEST_CELL = 400
"""With these bounds, and those of the picture, a summary has at most 300 kB."""
REPLAY = "prefect-resilience dead-letters replay"
COMMAND = "prefect-resilience batches"
DOUBTS_SHOWN = 3
URL = re.compile(r"(https?://[^\s`'\"<>;,)]+)")
CHANGES = (MOVES, "store.")
SILENT = 2.0
"""Seconds from the last sign of life to the report of a crash, from which on both are shown."""

STARTED = {
    "automation": "an automation",
    "flow retry": "Prefect's own retry of the flow",
    "retry button": "the Retry button of Prefect's UI",
    "retry command": "the command prefect flow-run retry",
    "worker": "its worker, which rescheduled it for another process",
    "resumed": "a person who resumed it after it was suspended",
    "program": "a Python program that called the flow",
    "parent": "its parent flow run",
    "unknown": "unknown",
}


def markdown(story: Story, advice: Advice | None = None) -> str:
    """The whole summary."""
    calls = list_calls(story)
    lines = [f"# {text(story.name)}", "", headline(story), ""]
    end = story.passes[-1].run_pass
    if end.message and end.end_type in ENDED_BADLY:
        lines += [f"> {text(bounded(end.message, LONGEST_CELL))}", ""]
    lines += [*_advice(advice), *_passes(story)]
    if svg := draw(story, calls):
        picture = base64.b64encode(svg.encode()).decode()
        lines += [f"![the calls over time](data:image/svg+xml;base64,{picture})", ""]
    lines += _tables(story, calls)
    if story.missing:
        lines += [f"*Not read in time: {text(', '.join(dict.fromkeys(story.missing)))}.*", ""]
    return "\n".join(lines).rstrip() + "\n"


def commands(hint: RecoveryHint, batch_id: str, *, deployed: bool) -> tuple[tuple[str, str], ...]:
    """How to continue a batch. Pairs: the purpose of a command, and the command."""
    batch = shlex.quote(batch_id)
    is_manual = not hint.waiting and hint.strategy not in RESTARTS
    again = f"{COMMAND} recover {batch}{' --strategy restart' if is_manual else ''}"
    how = ""
    if not deployed:
        how = ". It has no deployment, so start your program inside the batch; done effects are not repeated"
        again = f"with batch({batch_id!r}):\n    ..."
    if hint.waiting:
        settle = "Check the receiver, then record the outcome of {key!r} (done, or not-done)"
        outcomes = [
            (settle.format(key=key), f"{COMMAND} settle {batch} {shlex.quote(key)} done")
            for key in hint.waiting[:DOUBTS_SHOWN]
        ]
        return (*outcomes, (f"Then run it again{how}", again))
    if hint.strategy in RESTARTS:
        return ((f"Run the same flow run again{how}", again),)
    if hint.strategy == "compensate":
        return (("Compensate the effects that are done", f"{COMMAND} rollback {batch}"),)
    if hint.strategy == "abandon":
        return (("Abandon the batch", f"{COMMAND} abandon {batch}"),)
    look = ("Show which effects are done", f"{COMMAND} show {batch}")
    return (look, (f"When the cause is fixed, run it again{how}", again))


def headline(story: Story) -> str:
    """One sentence: the outcomes of the task runs of the last pass, and the dead letters of the run."""
    facts, end, passes = story.last, story.passes[-1].run_pass, _number_of(story.passes)
    how = f" in pass {passes}" if passes > 1 else ""
    if end.ended is not None:
        took = lasting(end.ended - story.passes[0].run_pass.began - story.seconds_parked)
        how += f", {took} after it first began" if passes > 1 else f" after {took}"
    how += f", without {lasting(story.seconds_parked)} parked" if story.seconds_parked else ""
    outcomes, counts = facts.outcomes, facts.counts
    replaced = max(sum(facts.states[name] for name in REPLACED), counts["fallback.used"])
    parts = [
        (1, plural(facts.total, "task run")),
        (outcomes["running"], f"{outcomes['running']:,} did not end"),
        (facts.retried, f"{facts.retried:,} retried ({plural(facts.retries, 'retry', 'retries')})"),
        (replaced, f"{replaced:,} answered by a fallback"),
        (facts.states[REPLAYED], f"{facts.states[REPLAYED]:,} replayed"),
        (outcomes["crashed"], f"{outcomes['crashed']:,} crashed"),
        (outcomes["failed"], f"{outcomes['failed']:,} failed"),
        (counts["attempt.refused"], plural(counts["attempt.refused"], "rejected call")),
        (counts["effect.in-doubt"], f"{counts['effect.in-doubt']:,} in doubt"),
        (len(story.letters), plural(len(story.letters), "dead letter")),
    ]
    inner = f", in {plural(story.inner_runs + 1, 'flow run')}" if story.inner_runs else ""
    words = ", ".join(part for number, part in parts if number)
    return f"The run of {code(story.flow)} ended **{text(end.end)}**{how}: {words}{inner}."


def code(words: str) -> str:
    """Any text, escaped as code in a line or a table's cell."""
    return code_cell(redact(words))


def text(words: str) -> str:
    """Any text, escaped as plain words. A URL becomes code: the UIs would show its escapes."""
    parts = URL.split(" ".join(redact(words).replace("|", "¦").split()))
    parts[::2] = [re.sub(r"([\\`*_{}\[\]<>#!~$])", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [f"`{url}`" for url in parts[1::2]]
    return "".join(parts)


def _advice(advice: Advice | None) -> list[str]:
    if advice is None:
        return []
    lines = ["## How to continue", "", f"**{text(advice.strategy)}**: {text(advice.why)}.", ""]
    if advice.by_itself:
        lines += [f"{text(advice.by_itself)}", ""]
    for purpose, command in advice.commands:
        lines += [f"{text(purpose)}:", "", "```", redact(command).replace("```", "'''"), "```", ""]
    return lines


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], total: int = 0) -> list[str]:
    """A table with a title, of the first MOST_ROWS rows of `total` ones; nothing without rows.

    Columns without a value are left out: on a phone, the UI cuts a wide table.
    """
    if not rows:
        return []
    rows, total = rows[:MOST_ROWS], max(total, len(rows))
    places = [place for place in range(len(columns)) if not place or any(row[place] for row in rows)]
    heads = [columns[place] for place in places]
    lines = [f"## {title}", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        first, *cells = [bounded(row[place], LONGEST_CELL) for place in places]
        shown = [first if first.isdigit() or not first else code(first), *map(text, cells)]
        lines.append(f"| {' | '.join(shown)} |")
    more = total - len(rows)
    return [*lines, *(["", f"and {more:,} more."] if more > 0 else []), ""]


def _passes(story: Story) -> list[str]:
    """The last passes of several as a table, and for each what started it and how it ended."""
    if len(story.passes) == 1:
        return []
    numbered = [(part, _number_of(story.passes[:place])) for place, part in enumerate(story.passes, 1)]
    rows = [pass_row(part, number) for part, number in numbered[-MOST_ROWS:]]
    columns = ("pass", "began", "took", "task runs", "retries", "outcomes")
    lines = table("Passes", columns, rows, len(story.passes))
    for part, number in numbered[-MOST_ROWS:]:
        start, end = describe_start(part.run_pass.start), describe_end(part)
        words = f"{bounded(start, LONGEST_CELL)}; ended: {bounded(end, LONGEST_CELL)}"
        if part.run_pass.start.cause == "parked":
            since = story.passes[part.run_pass.number - 2].ended
            words = f"parked {clock(since)} to {clock(part.run_pass.began)} UTC, {words}"
        else:
            words = f"started by {words}"
        lines.append(f"- Pass {number}: {text(words)}")
    return [*lines, ""]


def _number_of(passes: Sequence[PassSeen]) -> int:
    """The number of the last pass. A pass goes on after it was parked."""
    return sum(part.run_pass.start.cause != "parked" for part in passes)


def pass_row(part: PassSeen, number: int) -> tuple[str, ...]:
    """A pass, or a part of it between two parkings, as a row of the table."""
    run_pass, facts = part.run_pass, part.facts
    return (
        str(number),
        f"{clock(run_pass.began)} UTC",
        lasting(part.ended - run_pass.began) if run_pass.over else "",
        f"{facts.total:,}",
        f"{facts.retries:,}",
        ", ".join(f"{count:,} {name}" for name, count in facts.states.most_common() if count),
    )


def describe_start(start: Start) -> str:
    """The cause of a pass, with the person and the reason, if known."""
    if start.cause == "parked":
        return " ".join(start.why.split())
    cause = STARTED.get(start.cause, f"a {start.cause}")
    if start.cause == "recovery" and start.who:
        cause = f"a recovery by {start.who}"
    elif start.who:
        cause = start.who if start.cause == "person" else f"{cause}, {start.who}"
    return f"{cause}: {' '.join(start.why.split())}" if start.why else cause


def describe_end(part: PassSeen) -> str:
    """The end of a pass, with its message; of a process that died, also its last sign of life."""
    run_pass, sign = part.run_pass, f"last sign of life {clock(part.ended)} UTC"
    if run_pass.ended is None:
        return f"unknown: its end was not reported, {sign}" if run_pass.over else "still running"
    if run_pass.crashed and run_pass.end_type != "CRASHED":
        return f"its process died without a report ({sign})"  # the message is that of the recovery
    if run_pass.end == PARKED:
        return PARKED  # the next part has the message
    message = " ".join(run_pass.message.split())
    end = f"{run_pass.end}: {message}" if message else run_pass.end
    is_late = run_pass.ended - part.ended >= SILENT
    return f"{end} ({sign}, reported {clock(run_pass.ended)} UTC)" if is_late else end


def _tables(story: Story, calls: Iterable[CallRow]) -> list[str]:
    """The calls with anything of note, the functions inside them, the circuits and stores, the letters."""
    several, shown = len(story.passes) > 1, [call for call in calls if call.rank != WELL]
    columns = ("call", "pass", "ended", "attempts", "rejected")
    rows = [
        (
            call.name,
            str(call.number) if several else "",
            call.ended,
            str(call.attempts),
            str(call.rejected or ""),
        )
        for call in shown
    ]
    # Also those without a row.
    notable = sum(part.facts.total - part.facts.outcomes["ok"] for part in story.passes)
    lines = table("Calls", columns, rows, notable)
    # Sentences are no column: neither of the UIs wraps them in a table on a phone.
    for call in (call for call in shown[:MOST_ROWS] if call.description):
        name = f"{code(call.name)} in pass {call.number}" if several else code(call.name)
        lines.append(f"- {name}: {text(bounded(call.description, LONGEST_CELL))}")
    lines.append("")
    facts = story.last
    rows = [
        (
            name,
            *(_number(facts.calls[name, count]) for count in CALL_COUNTS),
            facts.call_errors.get(name, ""),
        )
        for name in sorted({name for name, _ in facts.calls}, key=lambda name: -facts.calls[name, "attempts"])
    ]
    columns = ("function", "calls", "attempts", "rejected", "fallbacks", "failed", "waited, s", "last error")
    lines += table("Calls inside tasks", columns, rows)
    rows = [_change_cells(event) for event in story.happenings if event.name.startswith(CHANGES)]
    lines += table("Circuits and stores", ("at", "circuit or store", "change", "why"), rows)
    lines += table("Dead letters", ("letter", "task", "error"), story.letters)
    if story.letters:
        lines += [f"Once the cause is fixed: {code(f'{REPLAY} {story.letters[0][0]}')}", ""]
    return lines


def _number(value: float) -> str:
    return f"{round(value, 1):,}" if round(value, 1) else ""


def _change_cells(event: Happening) -> tuple[str, ...]:
    before, after = text_in(event.payload, "before"), text_in(event.payload, "after")
    change = f"{before} → {after}" if event.name.startswith(MOVES) else "unavailable"
    return f"{clock(event.at)} UTC", event.subject, change, text_in(event.payload, "reason")
