"""What a new process pays once: `python -m benchmarks.cold [--rounds 11] [--json]`.

Milliseconds of the processor, each in fresh processes after `from prefect import flow, task`, with compiled
bytecode: the import of the package, a first decorated task, and the first operation on a SQLite store, whose
file is new or exists already. The steps of one process follow each other, so that nothing counts twice.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

STEPS = {
    "import prefect_resilience": "import prefect_resilience",
    "a first decorated task": """
from prefect_resilience import resilient_task

@resilient_task
def work(x):
    return x
""",
    "a first store operation, new file": "prefect_resilience.open_store(new).load('nothing')",
    "a first store operation, known file": "prefect_resilience.open_store(known).load('nothing')",
}

CHILD = """
import json, sys
from time import process_time
from prefect import flow, task

here = dict(zip(("new", "known"), sys.argv[2:]))
took = []
for step in json.loads(sys.argv[1]):
    code = compile(step, "step", "exec")
    began = process_time()
    exec(code, here)
    took.append((process_time() - began) * 1000)
print(json.dumps(took))
"""


def measured(folder: Path, number: int) -> dict[str, float]:
    """The steps of two processes: one that meets a new file, and one that finds it."""
    url = f"sqlite:///{folder / str(number)}.db"
    names = list(STEPS)
    first = took(folder, names[:3], url)
    return {**first, names[3]: took(folder, [*names[:2], names[3]], url)[names[3]]}


def took(folder: Path, names: Sequence[str], url: str) -> dict[str, float]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPYCACHEPREFIX": str(folder / "compiled"), "PREFECT_HOME": str(folder / "home")}
    command = [sys.executable, "-c", CHILD, json.dumps([STEPS[name] for name in names]), url, url]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    return dict(zip(names, json.loads(ended.stdout), strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What a new process pays once")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        measured(Path(folder), 0)  # compiles
        rounds = [measured(Path(folder), number) for number in range(1, options.rounds + 1)]
    results = {
        name: {"median": median(one[name] for one in rounds), "least": min(one[name] for one in rounds)}
        for name in STEPS
    }
    if options.json:
        print(json.dumps(results, indent=2))
        return
    table = Table(title="milliseconds of the processor, once per process", title_justify="left")
    for heading in ("step", "median", "least"):
        table.add_column(heading, justify="left" if heading == "step" else "right")
    for name, figures in results.items():
        table.add_row(name, f"{figures['median']:.1f}", f"{figures['least']:.1f}")
    Console(width=None if sys.stdout.isatty() else 110).print(table)


if __name__ == "__main__":
    main()
