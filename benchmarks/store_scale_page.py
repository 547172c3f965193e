"""docs/store_scale.md and its picture, from what `benchmarks.store_scale` measured."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from benchmarks.store_scale import Line

COLORS = {"sqlite": "#0072B2", "postgresql": "#D55E00", "redis": "#009E73"}
NAMES = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "redis": "Redis"}
COLUMNS = 4

HEAD = """# The ledger and dead letters at scale

What lists, recoveries, purges and counts cost as a store fills. `make store-scale` measures it on your
machine and writes this page. The stores are filled with documents of the true form: letters of a year, of
which one in ten waits; one batch with all of the effects; as many batches of one effect; documents that
have expired and were not removed yet. Of the letters and of the effects, 20 are in doubt.

An exponent of 0 means that the cost does not depend on the number of documents, 1 that it is linear. It is
fitted to the two largest decades of sizes, where fixed costs no longer matter; times below 5 ms and memory
below 8 MB count as constant. Memory is that by which a process grew. Each operation ran in a process of its
own, on a machine that other work shared; of one that takes less than half a second, the fastest of five runs
counts. Each line has the largest size that was tried: not one at which the operation would take minutes, and
Redis keeps its letters in memory. The purge is of a thousandth of the letters, at most 1,000.
"""

TAIL = """
![Seconds over the number of documents: a panel for each operation, a line for each store, on logarithmic
scales](store_scale.png)

## What grows, and what does not

- **A page of letters, one letter, one batch, the claim of an effect**: independent of everything else in
  the store.
- **What is open**: every store lists open effects and letters without the others. So `batches list --open`
  without a Prefect API and `dead-letters list --status waiting` cost as much as is open. Letters
  in doubt are found among those that are open. A SQL store has a partial index; Redis has a sorted set, which
  the script that changes a document keeps.
- **Screens**: the dashboard counts what is open, and stops at 10,000 letters or effects: then it shows
  "10,000+". `dead-letters list` stops after 10,000 letters and says "more than". `batches list` reads up to
  10,000 effects; of a larger ledger, it lists the open batches, and of a batch with more than 1,000 effects
  it counts those that are done up to there. `--all` reads and counts everything.
- **The report** reads the letters of its period, and 10,000 older ones for replays in the period. If there
  are more, it says that the numbers of replays are lower bounds.
- **Reading everything**: `batches list --all`, `list_batches()` and `batches prune` read all effects. `prune`
  keeps one batch in memory, `list_batches(limit=)` so many.
- **A purge of letters** reads from its date on, and removes page by page. Its archive is written before
  each page. The time is that of its writes.
- **A batch of a million effects** is read as a whole by `batches show`, by a recovery, and by the first
  effect of a later pass. They keep a small part of each effect.
- **Expired and deleted documents** are removed 50 at a time by later writes. Until then a list passes them
  in statements of at most 50,000 rows, or in 1,000 names of Redis.

## Stores of an older version

What version 0.2 wrote counts as open until it is written again, and is passed over when it is listed. So what
is open costs as much as is open and as 0.2 has left; `batches prune` and a purge of letters take that away.

**Redis**: once a process of version 0.2 has written to a store, all documents are read to find those that are
open, as 0.2 does.

**SQL**: the first process that opens the store adds a column, and an index if there are up to about 50,000
letters or effects. A larger store works without the index, as before. Create it once, while nothing waits for
it:

```text
{statements}
```

In SQLite, leave out `CONCURRENTLY`.
"""


def write(lines: list[Line], docs: Path) -> None:
    draw(lines, docs / "store_scale.png")
    (docs / "store_scale.md").write_text(f"{HEAD}\n{_table(lines)}\n{TAIL.format(statements=_statements())}")


def _statements() -> str:
    from prefect_resilience.stores.sql import CREATE_INDEX

    concurrently = CREATE_INDEX.replace("INDEX IF NOT EXISTS", "INDEX CONCURRENTLY")
    return f"{concurrently.replace(' WHERE ', chr(10) + '  WHERE ')};"


def _table(lines: list[Line]) -> str:
    head = "| operation | store | documents | seconds | exponent | MB | exponent of the memory |"
    return "\n".join([head, "|---|---|---|---|---|---|---|", *map(_row, sorted(lines, key=_place(lines)))])


def _place(lines: list[Line]):
    order = list(dict.fromkeys(one.operation for one in lines))
    return lambda one: (order.index(one.operation), list(NAMES).index(one.store))


def _row(one: Line) -> str:
    if not one.sizes:
        return f"| {one.operation} | {NAMES[one.store]} | | {one.failed} | | | |"
    cells = [f"{one.sizes[-1]:,}", f"{one.seconds[-1]:.3f}", _number(one.exponent)]
    memory = [f"{one.megabytes[-1]:,.0f}", _number(one.exponent_of_memory)]
    return f"| {one.operation} | {NAMES[one.store]} | {' | '.join([*cells, *memory])} |"


def _number(exponent: float) -> str:
    return "" if math.isnan(exponent) else f"{abs(exponent) if abs(exponent) < 0.005 else exponent:.2f}"


def draw(lines: list[Line], path: Path) -> None:
    operations = list(dict.fromkeys(one.operation for one in lines))
    rows = -(-len(operations) // COLUMNS)
    figure, panels = plt.subplots(
        rows, COLUMNS, figsize=(16, 2.7 * rows), sharex=True, sharey=True, layout="constrained"
    )
    for panel, operation in zip(panels.flat, operations, strict=False):
        for one in (one for one in lines if one.operation == operation and one.sizes):
            label = f"{NAMES[one.store]} ({_number(one.exponent)})"
            panel.plot(one.sizes, one.seconds, color=COLORS[one.store], marker="o", ms=3, label=label)
        panel.set(xscale="log", yscale="log", title=operation.replace("`", ""))
        panel.title.set_fontsize(9)
        panel.grid(True, which="major", alpha=0.3)
        panel.legend(fontsize=7)
    for panel in panels.flat[len(operations) :]:
        panel.set_visible(False)
    figure.supxlabel("documents")
    figure.supylabel("seconds")
    figure.savefig(path, dpi=90)
    plt.close(figure)
