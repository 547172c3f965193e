"""The summary of a flow run as markdown for both of Prefect's UIs. Pure, and without secrets."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from prefect_resilience.base.text import code_cell, lasting, plural
from prefect_resilience.errors.secrets.redact import redact, redact_data
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.tasks.summaries.calls import SHORT, WELL, CallRow, list_calls, text_in
from prefect_resilience.tasks.summaries.story import COLUMNS, OPENED, Story, clock, pass_rows, state_after
from prefect_resilience.tasks.summaries.timeline import draw
from prefect_resilience.telemetry.model import CALL_COUNTS, ENDED_BADLY, REPLACED, REPLAYED, Advice

OUTPUT_LENGTH = 300
MESSAGE_LENGTH = 600
LARGEST = 300_000
"""The most bytes of a summary. The tables of a larger one are shortened."""
MOST_ROWS = (50, 20, 5)
REPLAY = "prefect-resilience dead-letters replay"
URL = re.compile(r"(https?://[^\s`'\"<>;,)]+)")


def markdown(story: Story, advice: Advice | None = None, links: Sequence[tuple[str, str | None]] = ()) -> str:
    """The whole summary. `links` are other artifacts of the run: pairs of a key and an address, if known."""
    calls = list_calls(story)
    head = [f"# {text(story.name)}", "", headline(story), ""]
    end = story.passes[-1].run_pass
    if end.message and end.end_type in ENDED_BADLY:
        head += [f"> {text(bounded(end.message, MESSAGE_LENGTH))}", ""]
    head += _advice(advice)
    svg = draw(story, calls)
    picture = "" if svg is None else base64.b64encode(svg.encode()).decode()
    shown = [f"[{text(key)}]({url})" if url else code(key) for key, url in links]
    tail = [f"Other artifacts of this run: {', '.join(shown)}.", ""] if shown else []
    if story.missing:
        tail += [f"*Not read in time: {text(', '.join(dict.fromkeys(story.missing)))}.*", ""]
    written = ""
    for most in MOST_ROWS:
        passes = pass_rows(story)
        parts = [*head, *table("Passes", COLUMNS, passes[-most:], most, len(passes))]
        parts += [f"![the calls over time](data:image/svg+xml;base64,{picture})", ""] if picture else []
        written = "\n".join([*parts, *_tables(story, calls, most), *tail]).rstrip() + "\n"
        if len(written.encode()) <= LARGEST:
            break
    return written


def hint_markdown(run: str, flow: str, state: str, advice: Advice) -> str:
    """Only the recovery hint: for a run, its flow, and the state in which it ended."""
    lines = [f"# {text(run)}", "", f"The run of {code(flow)} ended **{text(state)}**.", ""]
    return "\n".join([*lines, *_advice(advice)]).rstrip() + "\n"


def headline(story: Story) -> str:
    """One sentence: the outcomes of the task runs of the last pass, and the dead letters of the run."""
    seen, end, passes = story.last, story.passes[-1].run_pass, len(story.passes)
    how = f" in pass {passes}" if passes > 1 else ""
    if end.ended is not None:
        took = lasting(end.ended - story.passes[0].run_pass.began)
        how += f", {took} after it first began" if passes > 1 else f" after {took}"
    outcomes, counts = seen.outcomes, seen.counts
    inside = Counter[str]()
    for (_, name), times in seen.calls.items():
        inside[name] += int(times)
    failed_inside = f", {inside['failures']:,} failed" if inside["failures"] else ""
    replaced = max(sum(seen.states[name] for name in REPLACED), counts["fallback.used"])
    opened = Counter(move.subject for move in story.moves if state_after(move) in OPENED)
    often = "" if opened.total() == len(opened) else f" {opened.total():,} times"
    parts = [
        (1, plural(seen.total, "task run")),
        (outcomes["running"], f"{outcomes['running']:,} did not end"),
        (seen.retried, f"{seen.retried:,} retried ({plural(seen.retries, 'retry', 'retries')})"),
        (replaced, f"{replaced:,} answered by a fallback"),
        (seen.states[REPLAYED], f"{seen.states[REPLAYED]:,} replayed"),
        (outcomes["crashed"], f"{outcomes['crashed']:,} crashed"),
        (outcomes["failed"], f"{outcomes['failed']:,} failed"),
        (counts["attempt.refused"], plural(counts["attempt.refused"], "rejected call")),
        (
            inside["attempts"] + inside["rejected"],
            f"{plural(inside['calls'], 'call')} inside "
            f"({plural(inside['attempts'], 'attempt')}{failed_inside})",
        ),
        (counts["effect.in-doubt"], f"{counts['effect.in-doubt']:,} in doubt"),
        (len(opened), f"{plural(len(opened), 'circuit')} opened{often}"),
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


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], most: int, total: int = 0
) -> list[str]:
    """A table with a title, of the first `most` rows of `total` ones; nothing without rows."""
    if not rows:
        return []
    lines = [f"## {title}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for first, *cells in rows[:most]:
        shown = [first if first.isdigit() or not first else code(first), *map(text, cells)]
        lines.append(f"| {' | '.join(shown)} |")
    more = max(total, len(rows)) - min(most, len(rows))
    return [*lines, *(["", f"and {more:,} more."] if more > 0 else []), ""]


def _tables(story: Story, calls: Iterable[CallRow], most: int) -> list[str]:
    """The calls with anything of note, the functions inside them, the circuits, the stores, the letters."""
    columns = ("call", "pass", "ended", "attempts", "rejected", "waited, s", "what happened")
    rows = [_call_cells(call) for call in calls if call.rank != WELL]
    if len(story.passes) == 1:
        columns, rows = (columns[0], *columns[2:]), [(row[0], *row[2:]) for row in rows]
    # Also those without a row.
    notable = sum(part.seen.total - part.seen.outcomes["ok"] for part in story.passes)
    lines = table("Calls", columns, rows, most, notable)
    seen = story.last
    rows = [
        (
            name,
            *(f"{seen.calls[name, count]:,.{int(count == 'waited')}f}" for count in CALL_COUNTS),
            bounded(seen.call_errors.get(name, ""), SHORT),
        )
        for name in sorted({name for name, _ in seen.calls}, key=lambda name: -seen.calls[name, "attempts"])
    ]
    columns = ("function", "calls", "attempts", "rejected", "fallbacks", "failed", "waited, s", "last error")
    lines += table("Calls inside tasks", columns, rows, most)
    rows = [
        (
            f"{clock(move.at)} UTC",
            move.subject,
            f"{text_in(move.payload, 'before')} → {text_in(move.payload, 'after')}",
            bounded(text_in(move.payload, "reason"), SHORT),
        )
        for move in story.moves
    ]
    lines += table("Circuit changes", ("at", "circuit", "state", "why"), rows, most)
    rows = [
        (f"{clock(event.at)} UTC", event.subject, bounded(text_in(event.payload, "reason"), SHORT))
        for event in story.happenings
        if event.name == "store.unavailable"
    ]
    total = sum(part.seen.counts["store.unavailable"] for part in story.passes)
    lines += table("Unavailable stores", ("at", "store", "why"), rows, most, total)
    lines += table("Dead letters", ("letter", "task", "error"), story.letters, most)
    if story.letters:
        lines += [f"Once the cause is fixed: {code(f'{REPLAY} {story.letters[0][0]}')}", ""]
    return lines + _outputs(story, most)


def _call_cells(call: CallRow) -> tuple[str, ...]:
    waited = f"{call.waited:.1f}" if call.waited else ""
    rejected = str(call.rejected or "")
    return (call.name, str(call.number), call.ended, str(call.attempts), rejected, waited, call.what)


def _outputs(story: Story, most: int) -> list[str]:
    """The outputs of completed task runs, if the run ended badly."""
    seen = story.last
    if story.passes[-1].run_pass.end_type == "COMPLETED" or not seen.outputs:
        return []
    lines = ["## Completed task runs", "", "| task run | result |", "|---|---|"]
    for name, output in [*seen.outputs.items()][:most]:
        written = json.dumps(redact_data(output), ensure_ascii=False, default=str)
        lines.append(f"| {code(name)} | {code(bounded(written, OUTPUT_LENGTH))} |")
    more = max(len(seen.outputs) - most, 0) + seen.outputs_left_out
    return [*lines, *(["", f"and {more:,} more."] if more else []), ""]
