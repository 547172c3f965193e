"""The summary of a flow run as markdown for both of Prefect's UIs. Pure, and without secrets."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from prefect_resilience.base.text import plural
from prefect_resilience.errors.secrets.redact import redact, redact_data
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.tasks.summaries.calls import SHORT, WELL, CallRow, describe_error, list_calls, text_in
from prefect_resilience.tasks.summaries.story import COLUMNS, Story, clock, pass_rows, span_text
from prefect_resilience.tasks.summaries.timeline import draw
from prefect_resilience.telemetry.model import CALL_COUNTS, REPLACED, REPLAYED, Advice, Happening

OUTPUTS_SHOWN = 20
OUTPUT_LENGTH = 300
MESSAGE_LENGTH = 600
LARGEST = 300_000
"""The most bytes of a summary. The tables of a larger one are shortened."""
MOST_ROWS = (50, 20, 5)
BAD = ("FAILED", "CRASHED", "CANCELLED", "CANCELLING")
URL = re.compile(r"(https?://[^\s`'\"<>;,)]+)")

Rows = Sequence[tuple[str, ...]]


def markdown(
    story: Story,
    advice: Advice | None = None,
    links: Sequence[tuple[str, str | None]] = (),
    letters: str = "prefect-resilience dead-letters replay",
) -> str:
    """The whole summary. `links` are other artifacts of the run: pairs of a key and an address, if known."""
    facts, calls = story.facts, list_calls(story)
    lines = [f"# {text(facts.name)}", "", headline(story), ""]
    if facts.message and facts.state_type in BAD:
        lines += [f"> {text(bounded(facts.message, MESSAGE_LENGTH))}", ""]
    lines += _advice(advice)
    svg = draw(story, calls)
    picture = "" if svg is None else base64.b64encode(svg.encode()).decode()
    written = ""
    for most in MOST_ROWS:
        parts = [*lines, *table("Passes", COLUMNS, _ends(pass_rows(story), most))]
        parts += [f"![the calls over time](data:image/svg+xml;base64,{picture})", ""] if picture else []
        parts += [*_tables(story, calls, most), *_letters(story, letters, most), *_outputs(story)]
        parts += [*_links(links), *(line for what in story.missing for line in (f"*{text(what)}*", ""))]
        written = "\n".join(parts).rstrip() + "\n"
        if len(written.encode()) <= LARGEST:
            break
    return written


def hint_markdown(run: str, flow: str, state: str, advice: Advice) -> str:
    """Only the recovery hint: for a run, its flow, and the state in which it ended."""
    lines = [f"# {text(run)}", "", f"The run of {code(flow)} ended **{text(state)}**.", ""]
    return "\n".join([*lines, *_advice(advice)]).rstrip() + "\n"


def headline(story: Story) -> str:
    """One sentence: the outcomes of the task runs of the last pass, and the dead letters of the run."""
    facts, seen, count = story.facts, story.last, len(story.passes)
    how = f" in its {_ordinal(count)} pass" if count > 1 else ""
    if facts.began is not None and facts.ended is not None:
        took = span_text(facts.ended - facts.began)
        how += f", {took} after it first began" if count > 1 else f" after {took}"
    if count == 1 and facts.times_run > 1:
        how += f", when it was run for the {_ordinal(facts.times_run)} time"
    outcomes = seen.outcomes
    inside = Counter[str]()
    for (_, name), times in seen.calls.items():
        inside[name] += int(times)
    opened = [one.opened for one in story.circuits if one.opened]
    often = "" if sum(opened) == len(opened) else f" {sum(opened):,} times"
    told = [
        (1, plural(seen.total, "task run")),
        (outcomes["running"], f"{outcomes['running']:,} did not end"),
        (seen.retried, f"{seen.retried:,} retried ({plural(seen.retries, 'retry', 'retries')})"),
        (replaced := _count_replaced(seen.states, seen.counts), f"{replaced:,} answered by a fallback"),
        (seen.states[REPLAYED], f"{seen.states[REPLAYED]:,} replayed"),
        (outcomes["crashed"], f"{outcomes['crashed']:,} crashed"),
        (outcomes["failed"], f"{outcomes['failed']:,} failed"),
        (seen.counts["attempt.refused"], plural(seen.counts["attempt.refused"], "rejected call")),
        (inside["attempts"] + inside["rejected"], _inside(inside)),
        (seen.counts["effect.in-doubt"], f"{seen.counts['effect.in-doubt']:,} in doubt"),
        (len(opened), f"{plural(len(opened), 'circuit')} opened{often}"),
        (len(story.letters), plural(len(story.letters), "dead letter")),
    ]
    inner = f", in {plural(story.inner_runs + 1, 'flow run')}" if story.inner_runs else ""
    parts = ", ".join(words for number, words in told if number)
    return f"The run of {code(facts.flow)} ended **{text(facts.state)}**{how}: {parts}{inner}."


def _inside(inside: Counter[str]) -> str:
    """The guarded calls inside tasks."""
    failed = f", {inside['failures']:,} failed" if inside["failures"] else ""
    return f"{plural(inside['calls'], 'call')} inside ({plural(inside['attempts'], 'attempt')}{failed})"


def _count_replaced(states: Counter[str], counts: Counter[str]) -> int:
    return max(sum(states[name] for name in REPLACED), counts["fallback.used"])


def code(said: str) -> str:
    """Any text, escaped as code in a line or a table's cell."""
    return "`" + " ".join(redact(said).replace("`", "'").replace("|", "¦").split()) + "`"


def text(said: str) -> str:
    """Any text, escaped as plain words. A URL becomes code: the UIs would show its escapes."""
    parts = URL.split(" ".join(redact(said).replace("|", "¦").split()))
    words = (re.sub(r"([\\`*_{}\[\]<>#!~$])", r"\\\1", part) for part in parts[::2])
    urls = [f"`{part}`" for part in parts[1::2]]
    return "".join(word + url for word, url in zip(words, [*urls, ""], strict=True))


def _ordinal(number: int) -> str:
    end = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, "th")
    return f"{number}{end}"


def _advice(advice: Advice | None) -> list[str]:
    if advice is None:
        return []
    lines = ["## How to continue", "", f"**{text(advice.strategy)}**: {text(advice.why)}.", ""]
    if advice.by_itself:
        lines += [f"{text(advice.by_itself)}", ""]
    for what, command in advice.commands:
        lines += [f"{text(what)}:", "", "```", redact(command).replace("```", "'''"), "```", ""]
    return lines


def table(title: str, columns: Sequence[str], shown: tuple[Rows, int]) -> list[str]:
    """A table with a title: the shown rows, and the number of all; nothing without rows."""
    rows, total = shown
    if not rows:
        return []
    lines = [f"## {title}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in rows:
        first = row[0] if row[0].isdigit() or not row[0] else code(row[0])
        cells = [first, *map(text, row[1:])]
        lines.append(f"| {' | '.join(cells)} |")
    more = total - len(rows)
    return [*lines, *(["", f"and {more:,} more."] if more > 0 else []), ""]


def _first(rows: Rows, most: int, total: int = 0) -> tuple[Rows, int]:
    return rows[:most], max(total, len(rows))


def _ends(rows: Rows, most: int) -> tuple[Rows, int]:
    """The first row and the last ones."""
    return (rows if len(rows) <= most else [rows[0], *rows[1 - most :]]), len(rows)


def _tables(story: Story, calls: Iterable[CallRow], most: int) -> list[str]:
    """The calls with anything of note, the functions inside them, the circuits, and the stores."""
    several, seen = len(story.passes) > 1, story.last
    notable = [call for call in calls if call.rank != WELL]
    columns = ["call", "pass", "ended", "attempts", "rejected", "waited, s", "what happened"]
    rows = [_call_cells(call) for call in notable]
    if not several:
        columns.remove("pass")
        rows = [(name, *cells) for name, _, *cells in rows]
    lines = table("Calls", columns, _first(rows, most, _notable_calls(story)))
    functions = sorted({name for name, _ in seen.calls}, key=lambda name: -seen.calls[name, "attempts"])
    rows = [
        (
            name,
            *(f"{seen.calls[name, count]:,.{int(count == 'waited')}f}" for count in CALL_COUNTS),
            bounded(seen.call_errors.get(name, ""), SHORT),
        )
        for name in functions
    ]
    columns = ["function", "calls", "attempts", "rejected", "fallbacks", "failed", "waited, s", "last error"]
    lines += table("Calls inside tasks", columns, _first(rows, most))
    moves = sorted((move for one in story.circuits for move in one.moves), key=lambda move: move.at)
    rows = [
        (
            f"{clock(one.at)} UTC",
            one.subject,
            f"{text_in(one.payload, 'before')} → {text_in(one.payload, 'after')}",
            bounded(text_in(one.payload, "reason"), SHORT),
        )
        for one in moves
    ]
    lines += table("Circuit changes", ("at", "circuit", "state", "why"), _first(rows, most))
    lost = [one for one in story.happenings if one.name == "store.unavailable"]
    rows = [
        (f"{clock(one.at)} UTC", one.subject, bounded(text_in(one.payload, "reason"), SHORT)) for one in lost
    ]
    total = sum(part.seen.counts["store.unavailable"] for part in story.passes)
    return lines + table("Unavailable stores", ("at", "store", "why"), _first(rows, most, total))


def _call_cells(call: CallRow) -> tuple[str, ...]:
    waited = f"{call.waited:.1f}" if call.waited else ""
    attempts, rejected = str(call.attempts), str(call.rejected or "")
    return (call.name, str(call.number), call.ended, attempts, rejected, waited, call.what)


def _notable_calls(story: Story) -> int:
    """A lower bound of the number of calls with anything of note, also of those without a row."""
    total = 0
    for part in story.passes:
        outcomes = part.seen.outcomes
        total += outcomes.total() - outcomes["ok"]
    return total


def _letters(story: Story, command: str, most: int) -> list[str]:
    left = story.letters
    created = {one.subject: one for one in story.happenings if one.name == "dead-letter.created"}
    rows = [(one.subject, _name_of(one), describe_error(one)) for key, one in created.items() if key in left]
    # Of some letters only the id is known.
    rows += [(letter, "", "") for letter in sorted(left - created.keys())]
    lines = table("Dead letters", ("letter", "task", "error"), _first(rows, most))
    return [*lines, f"Once the cause is fixed: {code(f'{command} {rows[0][0]}')}", ""] if lines else []


def _name_of(one: Happening) -> str:
    return text_in(one.payload, "name") or text_in(one.payload, "node_id")


def _outputs(story: Story) -> list[str]:
    """The outputs of completed task runs, if the run ended badly."""
    facts, seen = story.facts, story.last
    if facts.state_type == "COMPLETED" or not seen.outputs:
        return []
    lines = ["## Completed task runs", "", "| task run | result |", "|---|---|"]
    for name, output in [*seen.outputs.items()][:OUTPUTS_SHOWN]:
        written = json.dumps(redact_data(output), ensure_ascii=False, default=str)
        lines.append(f"| {code(name)} | {code(bounded(written, OUTPUT_LENGTH))} |")
    more = max(len(seen.outputs) - OUTPUTS_SHOWN, 0) + seen.outputs_left_out
    return [*lines, *(["", f"and {more:,} more."] if more else []), ""]


def _links(links: Iterable[tuple[str, str | None]]) -> list[str]:
    told = [code(key) if url is None else f"[{text(key)}]({url})" for key, url in links]
    return [f"Other artifacts of this run: {', '.join(told)}.", ""] if told else []
