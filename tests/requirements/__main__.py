"""The table of requirements.

    python -m tests.requirements [--write]

prints it, and fails for a row without a test.

    python -m tests.requirements --break [ROW ...] [--jobs 2] [--all] [--again]

takes the feature of each row out, in a copy of the tree, and runs the row's tests there. It prints what was
broken and which tests went red, and fails for a row whose tests stay green. It goes on where it was stopped,
and runs only what was not red before: `--again` begins anew, after the code has changed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.requirements.breaking import problems, read_breaks
from tests.requirements.table import PAGE, ROOT, page, rows, unknown

if TYPE_CHECKING:
    from tests.requirements.running import Outcome, Work

JOURNAL = ROOT / ".pytest_cache" / "requirements.jsonl"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.requirements",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}, too")
    parser.add_argument("--break", action="store_true", dest="breaking", help="take each row's feature out")
    parser.add_argument("rows", nargs="*", help='with --break: these rows, as "003.24" or "003"; else all')
    parser.add_argument("--jobs", type=int, default=1, help="with --break: how many run at a time")
    parser.add_argument("--all", action="store_true", help="with --break: tests with an API, too")
    parser.add_argument("--again", action="store_true", help="with --break: forget what was run before")
    asked = parser.parse_args()
    if asked.breaking:
        return run_breaks(asked.rows, asked.jobs, everything=asked.all, again=asked.again)
    return print_table(write=asked.write)


def print_table(*, write: bool) -> int:
    written = page()
    if write:
        PAGE.write_text(written)
    print(written)
    empty = [row.id for row in rows() if not row.tests]
    wrong = [one.test for one in unknown()]
    print(
        f"{len(rows())} rows; without a test: {', '.join(empty) or 'none'}; unknown rows named by: "
        f"{', '.join(wrong) or 'none'}",
        file=sys.stderr,
    )
    return 1 if empty or wrong else 0


def run_breaks(asked: list[str], jobs: int, *, everything: bool, again: bool) -> int:
    wanted = {row.id: row for row in rows() if not asked or any(map(row.id.startswith, asked))}
    if wrong := [text for text in problems() if not asked or any(f"row {id}" in text for id in wanted)]:
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    # Imported late: it needs Prefect.
    from tests.requirements.running import Outcome, Work, outcomes

    signal.signal(signal.SIGTERM, _stop)
    if again:
        JOURNAL.unlink(missing_ok=True)
    lines = JOURNAL.read_text().splitlines() if JOURNAL.exists() else []
    done = {digest: Outcome(**outcome) for digest, outcome in map(json.loads, lines)}
    work = [Work(wanted[each.row], each, everything) for each in read_breaks() if each.row in wanted]
    waiting = [each for each in work if each.digest not in done or not done[each.digest].is_red]
    for number, (each, outcome) in enumerate(outcomes(waiting, jobs), 1):
        done[each.digest] = outcome
        JOURNAL.parent.mkdir(exist_ok=True)
        with JOURNAL.open("a") as journal:
            journal.write(json.dumps([each.digest, vars(outcome)]) + "\n")
        found = f"{number}/{len(waiting)} {each.row.id} {each.broken.takes_out}: {outcome.word}"
        print(found, *map(str, outcome.red.items()), sep="\n    ", file=sys.stderr, flush=True)
    return report([(each, done[each.digest]) for each in work])


def _stop(number: int, frame: object) -> None:
    sys.exit(1)


def report(done: Sequence[tuple[Work, Outcome]]) -> int:
    """Print the table. 1 if a break leaves the tests of its row green, or a test is red under none."""
    table = Table("row", "taken out", "file", "tests", "result", title="Requirements, each taken out once")
    for work, outcome in done:
        red, ran = len(outcome.red), len(outcome.red) + len(outcome.green)
        word = outcome.word if outcome.is_red else f"[bold red]{escape(outcome.word)}[/]"
        file = work.broken.replacements[0].file
        table.add_row(work.row.id, escape(work.broken.takes_out), file, f"{red} of {ran}", word)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    red_somewhere = {(work.row.id, test) for work, outcome in done for test in outcome.red}
    green = {
        (work.row.id, test) for work, outcome in done for test in outcome.green if not outcome.problem
    } - red_somewhere
    for id, test in sorted(green):
        console.print(f"{id}: stays green: {test}", markup=False, soft_wrap=True)
    failed = [work.row.id for work, outcome in done if not outcome.is_red]
    console.print(f"{len(done)} breaks of {len({work.row.id for work, _ in done})} rows")
    console.print(f"green: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
