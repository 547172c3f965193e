"""The summary of a flow run as markdown for both of Prefect's UIs. Pure, and without secrets."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from prefect_resilience.errors.secrets.redact import redact, redact_data
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.tasks.summaries.rows import Table, passes_table, span, tables_of
from prefect_resilience.tasks.summaries.story import Story
from prefect_resilience.tasks.summaries.timeline import draw
from prefect_resilience.telemetry.model import REPLACED, REPLAYED, Advice

OUTPUTS_SHOWN = 20
OUTPUT_LENGTH = 300
MESSAGE_LENGTH = 600
LARGEST = 300_000
"""The most bytes of a summary. The tables of a larger one are shortened."""
ROWS_WHERE_LARGE = (20, 5)


def markdown(
    story: Story,
    advice: Advice | None = None,
    links: Sequence[tuple[str, str | None]] = (),
    letters: str = "prefect-resilience dead-letters replay",
) -> str:
    """The whole summary. `links` are other artifacts of the run: pairs of a key and an address, if known."""
    whole = tables_of(story)
    written = _written(story, advice, links, letters, whole)
    for most in ROWS_WHERE_LARGE:
        if len(written.encode()) <= LARGEST:
            break
        shorter = [table.cut(most) for table in whole]
        written = _written(story, advice, links, letters, shorter)
    return written


def _written(
    story: Story,
    advice: Advice | None,
    links: Sequence[tuple[str, str | None]],
    letters: str,
    tables: Iterable[Table],
) -> str:
    facts = story.facts
    lines = [f"# {text(facts.name)}", "", headline(story), ""]
    if facts.message and facts.state_type in ("FAILED", "CRASHED", "CANCELLED", "CANCELLING"):
        lines += [f"> {text(bounded(facts.message, MESSAGE_LENGTH))}", ""]
    lines += _advice(advice)
    passes = passes_table(story)
    lines += [] if passes is None else _table(passes)
    lines += _picture(story)
    for table in tables:
        lines += _table(table)
        if table.title == "Dead letters":
            ids = [row[0] for row in table.rows]
            lines += [f"Once the cause is fixed: {code(f'{letters} {ids[0]}')}", ""]
    lines += _outputs(story)
    lines += _links(links)
    lines += [line for what in story.missing for line in (f"*{text(what)}*", "")]
    return "\n".join(lines).rstrip() + "\n"


def hint_markdown(run: str, flow: str, state: str, advice: Advice) -> str:
    """Only the recovery hint: for a run, its flow, and the state in which it ended."""
    lines = [f"# {text(run)}", "", f"The run of {code(flow)} ended **{text(state)}**.", ""]
    return "\n".join([*lines, *_advice(advice)]).rstrip() + "\n"


def headline(story: Story) -> str:
    """One sentence: the outcomes of the task runs of the last pass, and the dead letters of the run."""
    facts, seen = story.facts, story.last
    took = ""
    several = len(story.passes) > 1
    if facts.began is not None and facts.ended is not None:
        since = " after it first began" if several else ""
        took = f"{',' if several else ' after'} {span(facts.ended - facts.began)}{since}"
    again = ""
    if several:
        again = f" in its {_ordinal(len(story.passes))} pass"
    elif facts.times_run > 1:
        again = f", when it was run for the {_ordinal(facts.times_run)} time"
    parts = [_many(seen.total, "task run")]
    outcomes = seen.outcomes
    failed = outcomes["failed"] + outcomes["crashed"]
    replaced = max(sum(seen.states[name] for name in REPLACED), seen.counts["fallback.used"])
    inside: Counter[str] = Counter()
    for (_, name), count in seen.calls.items():
        inside[name] += int(count)
    told = [
        (seen.retried, f"{seen.retried:,} retried ({_many(seen.retries, 'retry', 'retries')})"),
        (replaced, f"{replaced:,} answered by a fallback"),
        (seen.states[REPLAYED], f"{seen.states[REPLAYED]:,} replayed"),
        (failed, f"{failed:,} failed"),
        (inside["attempts"] + inside["rejected"], _inside(inside)),
        (seen.counts["effect.in-doubt"], f"{seen.counts['effect.in-doubt']:,} in doubt"),
        (1, _circuits(story)),
        (len(story.letters), _many(len(story.letters), "dead letter")),
    ]
    parts += [words for count, words in told if count and words]
    inner = f", in {_many(seen.inner_runs + 1, 'flow run')}" if seen.inner_runs else ""
    ended = f"The run of {code(facts.flow)} ended **{text(facts.state)}**"
    how = f"{again}{took}" if several else f"{took}{again}"
    return f"{ended}{how}: {', '.join(parts)}{inner}."


def _inside(inside: Mapping[str, int]) -> str:
    """The guarded calls inside tasks."""
    failed = f", {inside['failures']:,} failed" if inside["failures"] else ""
    return f"{_many(inside['calls'], 'call')} inside ({_many(inside['attempts'], 'attempt')}{failed})"


def _circuits(story: Story) -> str:
    """How many circuits opened, and how often."""
    opened = [one.opened for one in story.circuits if one.opened]
    times = sum(opened)
    if not opened:
        return ""
    often = "" if times == len(opened) else f" {times:,} times"
    return f"{_many(len(opened), 'circuit')} opened{often}"


def code(said: str) -> str:
    """Any text, escaped as code in a line or a table's cell."""
    return "`" + " ".join(redact(said).replace("`", "'").replace("|", "¦").split()) + "`"


def text(said: str) -> str:
    """Any text, escaped as plain words."""
    line = " ".join(redact(said).replace("|", "¦").split())
    return re.sub(r"([\\`*_{}\[\]<>#!~&$])", r"\\\1", line)


def _many(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


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


def _picture(story: Story) -> list[str]:
    svg = draw(story)
    if svg is None:
        return []
    data = base64.b64encode(svg.encode()).decode()
    return [f"![the task runs over time](data:image/svg+xml;base64,{data})", ""]


def _table(table: Table) -> list[str]:
    first, *others = table.columns
    lines = [
        f"## {table.title}",
        "",
        f"| {first} | {' | '.join(others)} |",
        "|---" * len(table.columns) + "|",
    ]
    numbers = {
        "attempts",
        "times",
        "pass",
        "task runs",
        "retries",
        "calls",
        "rejected",
        "fallbacks",
        "failed",
    }
    for row in table.rows:
        cells = [
            cell if name in numbers else code(cell) if place == 0 and cell else text(cell)
            for place, (name, cell) in enumerate(zip(table.columns, row, strict=True))
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if table.more:
        lines += ["", f"and {table.more:,} more."]
    return [*lines, ""]


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
