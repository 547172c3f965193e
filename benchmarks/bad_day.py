"""Two bad minutes of five services, lived through four times: what each way to call them comes to.

    python -m benchmarks.bad_day [--short] [--seed 21] [--json] [--page docs/bad_day.md]

A Prefect flow of 2,000 calls in 4 processes, against 5 real services on loopback, which follow a script:
bursts of 503, rate limits with Retry-After, slow answers, cut connections, an outage of 20 s, and one that
flaps. The same seed, schedule and asking function for plain Prefect, for plain Prefect with its retries, for
interlock-cb with tenacity inside a task, and for prefect-resilience. The Prefect server is one of its own.

With `--page` the table is written with what its columns mean, and the pictures beside it. `--short` takes
seconds: it shows that everything works, and nothing else. The exit code is 1 when a full day broke a promise.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bad_day_script import FULL, RIVALS, SHORT

if TYPE_CHECKING:
    from benchmarks.bad_day_figures import Figures

# Every process that is started imports this file, so what is heavy is imported where it is used.


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="a day of seconds, to see that it works")
    parser.add_argument("--seed", type=int, default=21, help="of the script and the schedule")
    parser.add_argument("--only", choices=RIVALS, action="append", help="only this rival; may be repeated")
    parser.add_argument("--api", help="the address of a Prefect API, in place of a server of its own")
    parser.add_argument("--page", type=Path, help="write the page here, and its pictures beside it")
    parser.add_argument("--readme", type=Path, help="copy the page's table to its place in this file")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    from benchmarks.bad_day_columns import kept_promises
    from benchmarks.bad_day_figures import figures
    from benchmarks.bad_day_page import copy_table, machine, write
    from benchmarks.bad_day_rounds import live

    form = SHORT if options.short else FULL
    rounds = live(form, options.seed, options.only or RIVALS, options.api)
    rows = [figures(day, form) for day in rounds]
    about = machine(form, options.seed)
    if options.page is not None:
        write(options.page, rows, rounds, form, about)
        if options.readme is not None:
            copy_table(options.page, options.readme)
    if options.json:
        told = {"machine": about, "rows": [row.as_dict() for row in rows], "kept": kept_promises(rows)}
        json.dump(told, sys.stdout, indent=2)
        print()
    else:
        show(rows, about, promises=not options.short)
    return 0 if options.short or all(kept_promises(rows).values()) else 1


def show(rows: Sequence[Figures], about: Mapping[str, Any], promises: bool) -> None:
    """The table, and what of it was promised: a short day promises nothing."""
    from rich.console import Console

    from benchmarks.bad_day_columns import PROMISES, kept_promises
    from benchmarks.bad_day_page import table

    console = Console(width=190)
    console.print(table(rows))
    console.print(", ".join(f"{name} {value}" for name, value in about.items()))
    for name, well in kept_promises(rows).items() if promises else ():
        console.print(f"{'kept' if well else 'BROKEN'}: {PROMISES[name]}")


if __name__ == "__main__":
    raise SystemExit(main())
