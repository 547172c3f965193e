"""What a new process pays once: `python -m benchmarks.cold [--rounds 5] [--json]`.

Seconds of the processor (user and system), each in fresh processes with compiled bytecode, above what bare
Python takes; the median of the rounds. A first guarded call has a bar, beside stamina and tenacity. Steps
after `from prefect import flow, task` follow each other in one process, so that nothing counts twice. The
exit code is 1 if the bar is missed, or if a process without Prefect has imported it.
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

BARE, GUARDED, MOST = "bare Python", "a first guarded call, circuit on SQLite", 0.20

PROCESSES = {
    BARE: "",
    "import tenacity, a first retried call": """
import tenacity
assert tenacity.retry(stop=tenacity.stop_after_attempt(2))(int)() == 0
""",
    "import stamina, a first retried call": """
import stamina
assert stamina.retry(on=OSError, attempts=2)(int)() == 0
""",
    "import prefect_resilience": "import prefect_resilience\n",
    GUARDED: """
from prefect_resilience import resilient

@resilient(circuit="api")
def fetch(x):
    return x

assert fetch(1) == 1
""",
    "a first effect": """
from prefect_resilience import Effect, batch, resilient

@resilient(effect=Effect(kind="external", key="letter:{x}"))
def send(x):
    return x

with batch("night"):
    assert send(1) == 1
""",
    "a first request through a transport": """
import httpx
from prefect_resilience.http import ResilientTransport

answer = httpx.MockTransport(lambda request: httpx.Response(200))
assert httpx.Client(transport=ResilientTransport(transport=answer)).get("http://127.0.0.1/").is_success
""",
    "import httpx, a first request": """
import httpx
answer = httpx.MockTransport(lambda request: httpx.Response(200))
assert httpx.Client(transport=answer).get("http://127.0.0.1/").is_success
""",
}
WITHOUT_PREFECT = "\nimport sys\nassert 'prefect' not in sys.modules, 'Prefect was imported'\n"

STEPS = {
    "in Prefect: import prefect_resilience": "import prefect_resilience",
    "in Prefect: a first decorated task": """
from prefect_resilience import resilient_task

@resilient_task
def work(x):
    return x
""",
    "in Prefect: a first store operation": "prefect_resilience.open_store(url).load('nothing')",
}

CHILD = """
import json, os, sys
from time import process_time
from prefect import flow, task

here = {"url": sys.argv[2]}
took = []
for step in json.loads(sys.argv[1]):
    code = compile(step, "step", "exec")
    began = process_time()
    exec(code, here)
    took.append(process_time() - began)
print(json.dumps(took))
"""


def run(environment: Mapping[str, str], *arguments: str) -> tuple[float, str]:
    """The processor's seconds of a process that must succeed, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(
        [sys.executable, "-c", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise SystemExit(ended.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, ended.stdout


def measure(folder: Path) -> dict[str, float]:
    """One round: the seconds of each process and step."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONDONTWRITEBYTECODE" and not name.startswith(("PREFECT_", "RESILIENCE_"))
    }
    environment |= {"PYTHONPYCACHEPREFIX": str(folder / "compiled"), "PREFECT_HOME": str(folder / "home")}
    seconds = {name: run(environment, code + WITHOUT_PREFECT)[0] for name, code in PROCESSES.items()}
    url = f"sqlite:///{folder}/steps.db"
    steps = json.loads(run(environment, CHILD, json.dumps([*STEPS.values()]), url)[1])
    return {**seconds, **dict(zip(STEPS, steps, strict=True))}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What a new process pays once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))  # compiles, and makes the file of the store
        rounds = [measure(Path(folder)) for _ in range(options.rounds)]
    seconds = {name: median(found[name] for found in rounds) for name in rounds[0]}
    above = {name: took - (seconds[BARE] if name in PROCESSES else 0) for name, took in seconds.items()}
    del above[BARE]
    if options.json:
        print(json.dumps({"bare": seconds[BARE], "above": above, "bar": {GUARDED: MOST}}, indent=2))
    else:
        title = f"seconds of the processor above bare Python ({seconds[BARE]:.3f}), once per process"
        table = Table(title=title, title_justify="left")
        for heading in ("step", "median", "bar"):
            table.add_column(heading, justify="left" if heading == "step" else "right")
        for name, took in above.items():
            table.add_row(name, f"{took:.3f}", f"{MOST:.2f}" if name == GUARDED else "")
        Console(width=None if sys.stdout.isatty() else 110).print(table)
    return int(above[GUARDED] > MOST)


if __name__ == "__main__":
    raise SystemExit(main())
