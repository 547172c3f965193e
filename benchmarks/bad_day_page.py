"""The page of `benchmarks.bad_day`: its tables, texts and pictures, and the table for a terminal."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks import bad_day_plot
from benchmarks.bad_day_calls import MOST_AT_ONCE, POLLS_EACH
from benchmarks.bad_day_columns import COLUMNS, PROMISES, kept_promises, not_better, ours
from benchmarks.bad_day_figures import Figures, Round
from benchmarks.bad_day_script import HANGING, JITTER, LIMIT, RETRIES, TROUBLES, Form, Trouble

LIBRARIES = ("prefect", "httpx", "interlock-cb", "tenacity", "redis")


HEAD = """
# A bad day

Four ways to make the same calls, while the services fail. `make bad-day` measures them on your machine and
writes this page: a Prefect flow of {calls:,} calls in {processes} processes, five real HTTP services, and
{seconds:g} seconds of failures by a script. The script, the schedule and the function that sends a request
are the same for each way.

![The columns as bars]({picture})
"""

DAY = """
## The script

The seed, the number of the call and the number of the attempt decide how a request fails, so that all four
ways get the same failures. A second provider always answers, but more slowly.

{script}

![Requests that arrived at each service]({picture})
"""

FOUR = """
## The four ways

All ways with retries use delays of {delays} s with {jitter:.0%} jitter. Requests time out after
{timeout:g} s. Each flow has a thread pool of {threads}. The code is in `benchmarks/bad_day_calls.py`.

- **no retries**: a plain task.
- **retries**: a plain task with `retries={retries}`,
  `retry_delay_seconds=exponential_backoff({first_delay:g})` and `retry_jitter_factor={jitter:g}`. With the
  factor of 10 from Prefect's documentation, the delays would be longer than the outage, and each recovery
  would take at least ten seconds.
- **interlock + tenacity**: tenacity outside and the breaker inside, as interlock's documentation composes
  them, with `retry_unless_open`, and delays as long as `Retry-After` asks. The breakers are shared through
  Redis, which each process reads every {polls:g} s (the default is 1 s). They stay open for {open_for:g} s,
  close after 2 probes, and open when half of at least 5 calls in {window} s failed; each process counts its
  own calls. The second provider answers rejected and failed calls.
- **prefect-resilience**: `Retry(attempts={attempts}, by_category={{"rate_limit": 2, "timeout": 2}})`: a 429
  or a timeout gets one retry; tenacity has one number for all errors, unless you write your own `stop`. These
  numbers were chosen on runs with another seed (8).
  `CircuitBreaker("{{service}}", open_for={open_for:g}, sync_interval=0.001)`, `fallback=ask_second`. All
  other options have their defaults. The circuits are in the default SQLite file.

Plain Prefect has no fallback. Calling a second provider there needs your own code.
"""


def machine(form: Form, seed: int) -> dict[str, str]:
    """Where and with what this was measured."""
    return {
        "form": form.name,
        "seed": str(seed),
        "cores": str(os.cpu_count()),
        "Python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
    }


def table(rows: Sequence[Figures]) -> Table:
    """The table for a terminal."""
    shown = Table(title="A bad day")
    for heading in ("", *(column.title for column in COLUMNS), "calls/s", "late p95", "load"):
        shown.add_column(heading, justify="right" if heading else "left")
    for row in rows:
        shown.add_row(row.rival, *(column.shown(row) for column in COLUMNS), *_kept(row))
    return shown


def _kept(row: Figures) -> tuple[str, str, str]:
    return f"{row.rate:.1f}", f"{row.late_p95:.2f} s", f"{row.machine_load:.1f}"


def write(
    page: Path, rows: Sequence[Figures], rounds: Sequence[Round], form: Form, about: Mapping[str, Any]
) -> None:
    """The page and its pictures, which are named after it."""
    columns, courses = page.with_suffix(".png"), page.with_name(f"{page.stem}_services.png")
    bad_day_plot.draw_columns(rows, columns)
    bad_day_plot.draw_courses(rounds, form, courses)
    sections = (
        _head(form, columns),
        _markdown(("", *(column.title for column in COLUMNS)), _cells(rows)),
        _promises(rows),
        _comparison(rows),
        _definitions(form),
        _script(form, courses),
        _configurations(form),
        _run(rows, about),
    )
    page.write_text("\n\n".join(section for section in sections if section) + "\n", encoding="utf-8")


def copy_table(page: Path, readme: Path) -> None:
    """Put the page's first table between the two marks in the README. SystemExit where there are none."""
    begins, ends = "<!-- bad day -->\n", "<!-- /bad day -->"
    table = next(part for part in page.read_text(encoding="utf-8").split("\n\n") if part.startswith("|"))
    before, marked, rest = readme.read_text(encoding="utf-8").partition(begins)
    _, closed, after = rest.partition(ends)
    if not (marked and closed):
        raise SystemExit(f"{readme} has no place for the table: write {begins.strip()} and {ends} into it")
    readme.write_text(f"{before}{begins}\n{table}\n\n{ends}{after}", encoding="utf-8")


def _cells(rows: Sequence[Figures]) -> list[list[str]]:
    return [[row.rival, *(column.shown(row) for column in COLUMNS)] for row in rows]


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = True) -> str:
    lines = [head, ["---", *["---:" if numbers else "---"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _head(form: Form, picture: Path) -> str:
    return HEAD.format(
        calls=form.calls, processes=form.processes, seconds=form.seconds, picture=picture.name
    ).strip()


def _promises(rows: Sequence[Figures]) -> str:
    own = ours(rows)
    if own is None:
        return ""
    kept = kept_promises(rows)
    words = {True: "Kept", False: "**Not kept**"}
    lines = [
        f"- {words[kept[column.figure]]}, {column.shown(own)}: {PROMISES[column.figure]}."
        for column in COLUMNS
        if column.figure in kept
    ]
    return "\n".join(["The limits that prefect-resilience must keep, and this run:", "", *lines])


def _comparison(rows: Sequence[Figures]) -> str:
    sentences = not_better(rows)
    if not sentences:
        return "In this run it is better than each of the others in every column."
    told = "\n".join(f"- {sentence}" for sentence in sentences)
    return f"It is better than each of the others in every column except these:\n\n{told}"


def _definitions(form: Form) -> str:
    told = "\n".join(f"- **{column.title}**: {column.meaning.format(peak=form.peak)}" for column in COLUMNS)
    return f"## What the columns mean\n\n{told}"


MEANINGS: Mapping[str, str] = {
    "503": "{share:.0%} of the requests get a 503 at once",
    "limit": "{limit:.0%} of the usual load is accepted; the rest gets a 429 with Retry-After: {retry_after}",
    "slow": "{share:.0%} of the answers take {slow:g} s; the timeout is {timeout:g} s",
    "cut": "{share:.0%} of the connections are dropped in the middle of the answer",
    "outage": "{hanging:.0%} of the requests get no answer at all, the others a 503",
    "down": "every request gets a 503 at once",
}


def _script(form: Form, picture: Path) -> str:
    rows = [[t.service, _span(t, form), _meaning(t, form)] for t in TROUBLES]
    body = _markdown(("service", "seconds", "what happens"), rows, numbers=False)
    return DAY.format(script=body, picture=picture.name).strip()


def _span(trouble: Trouble, form: Form) -> str:
    return f"{trouble.begins * form.stretch:g} to {trouble.ends * form.stretch:g}"


def _meaning(trouble: Trouble, form: Form) -> str:
    return MEANINGS[trouble.kind].format(
        share=trouble.share,
        limit=LIMIT,
        retry_after=form.retry_after,
        slow=2 * form.timeout,
        timeout=form.timeout,
        hanging=HANGING,
    )


def _configurations(form: Form) -> str:
    return FOUR.format(
        delays=", ".join(f"{form.first_delay * 2**n:g}" for n in range(RETRIES)),
        jitter=JITTER,
        timeout=form.timeout,
        threads=MOST_AT_ONCE,
        retries=RETRIES,
        attempts=RETRIES + 1,
        first_delay=form.first_delay,
        polls=POLLS_EACH,
        open_for=form.open_for,
        window=form.peer_window,
    ).strip()


def _run(rows: Sequence[Figures], about: Mapping[str, Any]) -> str:
    told = ", ".join(f"{name} {value}" for name, value in about.items())
    body = _markdown(
        ("", "calls per second", "delay of a call's start (p95)", "load average", "circuit openings"),
        [[row.rival, *_kept(row), str(row.openings)] for row in rows],
    )
    day = datetime.datetime.now(datetime.UTC).date()
    return f"## The run\n\n{day}: {told}.\n\n{body}"
