"""The summary of a flow run as markdown, as both of Prefect's UIs show it. Pure, and without secrets."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Sequence

from prefect_resilience.errors.info import bounded
from prefect_resilience.errors.redact import redact, redact_data
from prefect_resilience.summaries.model import REPLACED, REPLAYED, Advice, RunFacts, Seen
from prefect_resilience.summaries.rows import Table, tables_of
from prefect_resilience.summaries.timeline import draw

OUTPUTS_SHOWN = 20
OUTPUT_LENGTH = 300
MESSAGE_LENGTH = 600
LARGEST = 300_000
"""Bytes of a summary. Where it would be larger, its tables are cut further."""
ROWS_WHERE_LARGE = (20, 5)


def markdown(
    facts: RunFacts,
    seen: Seen,
    advice: Advice | None = None,
    links: Sequence[tuple[str, str | None]] = (),
    letters: str = "prefect-resilience dead-letters replay",
) -> str:
    """The whole summary. `links` are other artifacts of the run: a key, and an address where it is known."""
    whole = tables_of(seen)
    written = _written(facts, seen, advice, links, letters, whole)
    for most in ROWS_WHERE_LARGE:
        if len(written.encode()) <= LARGEST:
            break
        shorter = [table.cut(most) for table in whole]
        written = _written(facts, seen, advice, links, letters, shorter)
    return written


def _written(
    facts: RunFacts,
    seen: Seen,
    advice: Advice | None,
    links: Sequence[tuple[str, str | None]],
    letters: str,
    tables: Iterable[Table],
) -> str:
    lines = [f"# {text(facts.name)}", "", headline(facts, seen), ""]
    if facts.message and facts.state_type in ("FAILED", "CRASHED", "CANCELLED", "CANCELLING"):
        lines += [f"> {text(bounded(facts.message, MESSAGE_LENGTH))}", ""]
    lines += _advice(advice)
    lines += _picture(facts, seen)
    for table in tables:
        lines += _table(table)
        if table.title == "Dead letters":
            ids = [row[0] for row in table.rows]
            lines += [f"Once the cause is mended: {code(f'{letters} {ids[0]}')}", ""]
    lines += _outputs(facts, seen)
    lines += _links(links)
    lines += [line for what in seen.missing for line in (f"*{text(what)}*", "")]
    return "\n".join(lines).rstrip() + "\n"


def hint_markdown(facts: RunFacts, advice: Advice) -> str:
    """The recovery hint alone."""
    lines = [f"# {text(facts.name)}", "", f"The run of {code(facts.flow)} ended **{text(facts.state)}**.", ""]
    return "\n".join([*lines, *_advice(advice)]).rstrip() + "\n"


def headline(facts: RunFacts, seen: Seen) -> str:
    """One sentence on how it went."""
    took = ""
    if facts.began is not None and facts.ended is not None:
        took = f" after {span(facts.ended - facts.began)}"
    again = f", when it was run for the {_ordinal(facts.times_run)} time" if facts.times_run > 1 else ""
    parts = [_many(seen.total, "task run")]
    failed = sum(seen.states[name] for name in ("Failed", "TimedOut", "Crashed", "InDoubt"))
    replaced = max(sum(seen.states[name] for name in REPLACED), seen.counts["fallback.used"])
    told = [
        (seen.retried, f"{seen.retried:,} retried ({_many(seen.retries, 'retry', 'retries')})"),
        (replaced, f"{replaced:,} answered by a fallback"),
        (seen.states[REPLAYED], f"{seen.states[REPLAYED]:,} replayed"),
        (failed, f"{failed:,} failed"),
        (seen.counts["effect.in-doubt"], f"{seen.counts['effect.in-doubt']:,} in doubt"),
        (seen.counts["circuit.opened"], _many(seen.counts["circuit.opened"], "circuit") + " opened"),
        (seen.counts["dead-letter.created"], _many(seen.counts["dead-letter.created"], "dead letter")),
    ]
    parts += [words for count, words in told if count]
    inner = f", in {_many(seen.inner_runs + 1, 'flow run')}" if seen.inner_runs else ""
    ended = f"The run of {code(facts.flow)} ended **{text(facts.state)}**{took}{again}"
    return f"{ended}: {', '.join(parts)}{inner}."


def span(seconds: float) -> str:
    """A span of time as a person says it."""
    if seconds < 90:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def code(said: str) -> str:
    """Text as code in a line or a table's cell, whatever it contains."""
    return "`" + " ".join(redact(said).replace("`", "'").replace("|", "¦").split()) + "`"


def text(said: str) -> str:
    """Text as words, whatever it contains."""
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
    lines = ["## How to go on", "", f"**{text(advice.strategy)}**: {text(advice.why)}.", ""]
    if advice.by_itself:
        lines += [f"{text(advice.by_itself)}", ""]
    for what, command in advice.commands:
        lines += [f"{text(what)}:", "", "```", redact(command).replace("```", "'''"), "```", ""]
    return lines


def _picture(facts: RunFacts, seen: Seen) -> list[str]:
    svg = draw(facts, seen)
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
    numbers = {"attempts", "times"}
    for row in table.rows:
        cells = [
            code(cell) if place == 0 and cell else cell if name in numbers else text(cell)
            for place, (name, cell) in enumerate(zip(table.columns, row, strict=True))
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if table.more:
        lines += ["", f"and {table.more:,} more."]
    return [*lines, ""]


def _outputs(facts: RunFacts, seen: Seen) -> list[str]:
    """What task runs had given before the run ended badly."""
    if facts.state_type == "COMPLETED" or not seen.outputs:
        return []
    lines = ["## What had been completed", "", "| task run | gave |", "|---|---|"]
    for name, output in [*seen.outputs.items()][:OUTPUTS_SHOWN]:
        written = json.dumps(redact_data(output), ensure_ascii=False, default=str)
        lines.append(f"| {code(name)} | {code(bounded(written, OUTPUT_LENGTH))} |")
    more = max(len(seen.outputs) - OUTPUTS_SHOWN, 0) + seen.outputs_left_out
    return [*lines, *(["", f"and {more:,} more."] if more else []), ""]


def _links(links: Iterable[tuple[str, str | None]]) -> list[str]:
    told = [code(key) if url is None else f"[{text(key)}]({url})" for key, url in links]
    return [f"Other artifacts of this run: {', '.join(told)}.", ""] if told else []
