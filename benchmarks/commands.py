"""What the operator's commands cost: `python -m benchmarks.commands [--rounds 5] [--json]`.

Seconds of the processor (user and system), each in a fresh process with compiled bytecode: the median of the
rounds, and the bar below which it must stay. The lists read a SQLite store with 1,000 circuits. `report` is
compared with `prefect flow-run ls`, both on one server with an empty database, round by round in turn. The
exit code is 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.report import serving
from prefect_resilience.guards.circuits.breaker import get_circuit

OURS, PREFECT = ("-m", "prefect_resilience"), ("-m", "prefect", "flow-run", "ls")
BARS = {"--help": 0.4, "circuits list": 0.5, "batches list": 0.5, "dead-letters list": 0.5}
CIRCUITS, MOST_OF_PREFECT = 1_000, 1.3


def seconds_of(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """The processor's seconds of a command that must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run([sys.executable, *command], env=environment, capture_output=True, check=False)
    if ended.returncode:
        raise SystemExit(ended.stderr.decode())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(folder: Path, rounds: int) -> dict[str, tuple[float, float]]:
    """The seconds of each command, and its bar."""
    store = f"sqlite:///{folder}/fleet.db"
    for number in range(CIRCUITS):
        get_circuit(f"service-{number}", store).reset("it is new")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONDONTWRITEBYTECODE" and not name.startswith(("PREFECT_", "RESILIENCE_"))
    }
    environment |= {"PYTHONPYCACHEPREFIX": str(folder / "compiled"), "PREFECT_HOME": str(folder / "home")}
    environment |= {"PREFECT_RESILIENCE_STORE_URL": store}

    def median_of(*commands: Sequence[str]) -> list[float]:
        # The first round compiles.
        runs = [[seconds_of(command, environment) for command in commands] for _ in range(rounds + 1)][1:]
        return [median(times) for times in zip(*runs, strict=True)]

    figures = {name: (median_of([*OURS, *name.split()])[0], bar) for name, bar in BARS.items()}
    with serving(folder / "server") as (url, _):
        environment["PREFECT_API_URL"] = url
        report, listing = median_of([*OURS, "report"], PREFECT)
    return {**figures, "report": (report, MOST_OF_PREFECT * listing)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What the operator's commands cost")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), options.rounds)
    if options.json:
        print(json.dumps({name: {"seconds": took, "bar": bar} for name, (took, bar) in figures.items()}))
    else:
        table = Table(title="seconds of the processor", title_justify="left")
        for heading in ("command", "median", "bar", ""):
            table.add_column(heading, justify="right" if heading in ("median", "bar") else "left")
        for name, (took, bar) in figures.items():
            table.add_row(name, f"{took:.2f}", f"{bar:.2f}", "" if took <= bar else "missed")
        Console(width=None if sys.stdout.isatty() else 110).print(table)
    return int(any(took > bar for took, bar in figures.values()))


if __name__ == "__main__":
    raise SystemExit(main())
