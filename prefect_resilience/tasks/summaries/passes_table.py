"""The passes of a run in words: what started each, how it ended, what its task runs came to. Pure."""

from __future__ import annotations

from prefect_resilience.durable.batches.run_passes import RunPass, Start
from prefect_resilience.errors.info import bounded
from prefect_resilience.tasks.summaries.rows import Table, clock
from prefect_resilience.tasks.summaries.story import PassSeen, Story

MOST_PASSES = 30
SHORT = 200
STATES_SHOWN = 8

_STARTED = {
    "schedule": "a schedule",
    "automation": "an automation",
    "recovery": "a recovery",
    "flow retry": "Prefect's own retry of the flow",
    "retry button": "the Retry button of Prefect's UI",
    "retry command": "the command prefect flow-run retry",
    "worker": "its worker, which gave it back to be run by another process",
    "resumed": "somebody who resumed it after it was suspended",
    "person": "a person",
    "program": "a Python program that called the flow",
    "parent": "the flow run around it",
    "unknown": "unknown",
}


def passes_table(story: Story) -> Table | None:
    """A row for each pass; None where there is but one."""
    if len(story.passes) < 2:
        return None
    columns = ("pass", "began", "started by", "ended", "took", "task runs", "retries", "came to")
    rows = [_row(part, story.passes[place - 1] if place else None) for place, part in enumerate(story.passes)]
    return Table(
        "Passes", columns, tuple(rows[:1] + rows[1:][-(MOST_PASSES - 1) :]), max(len(rows) - MOST_PASSES, 0)
    )


def _row(part: PassSeen, before: PassSeen | None) -> tuple[str, ...]:
    one, seen = part.run_pass, part.seen
    return (
        str(one.number),
        began(one, None if before is None else before.run_pass),
        bounded(started_by(one.start), SHORT),
        bounded(ended(one), SHORT),
        "" if one.seconds is None else span(one.seconds),
        f"{seen.total:,}",
        f"{seen.retries:,}",
        came_to(part),
    )


def started_by(start: Start) -> str:
    """What started a pass, who, and why, as far as it is known."""
    who = _STARTED[start.cause]
    if start.cause == "recovery" and start.who:
        who = f"a recovery by {start.who}"
    elif start.who:
        who = start.who if start.cause == "person" else f"{who}, {start.who}"
    return f"{who}: {' '.join(start.why.split())}" if start.why else who


def ended(one: RunPass) -> str:
    """How a pass ended, with the message of its last state."""
    if one.ended is None:
        return "unknown: nobody reported its end" if one.over else "it goes on"
    message = " ".join(one.message.split())
    return f"{one.end}: {message}" if message else one.end


def began(one: RunPass, before: RunPass | None) -> str:
    """When a pass began, and how long after the end of the one before."""
    at = f"{clock(one.began)} UTC"
    if before is None or before.ended is None:
        return at
    return f"{at}, {span(max(one.began - before.ended, 0.0))} later"


def came_to(part: PassSeen) -> str:
    """How many task runs of a pass came to which state."""
    ordered = sorted((+part.seen.states).items(), key=lambda it: (-it[1], it[0]))
    shown = [f"{count:,} {name}" for name, count in ordered[:STATES_SHOWN]]
    rest = sum(count for _, count in ordered[STATES_SHOWN:])
    return ", ".join([*shown, *([f"{rest:,} others"] if rest else [])])


def span(seconds: float) -> str:
    """A span of time as a person says it."""
    if seconds < 90:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
