"""Prefect's own test suite, with our decorators in place of Prefect's.

    python -m tests.prefect_suite CHECKOUT [--environment DIR] [--results DIR] [FILE ...] [pytest options]

CHECKOUT is a clone of github.com/PrefectHQ/prefect at the tag nearest to the version in constraints.txt.
Each file runs twice, in a process of its own: as it is, and with `resilient_task` and `resilient_flow`
under the names `task` and `flow`. A test that passes as it is and fails with ours is a difference;
docs/differences.md lists the intended ones. A differing test runs a second time with ours, and is shown as
unsteady if it passes then. The exit code is 1 when a difference is not listed, a listed one no longer
exists, or a file did not run.

Without --environment, the suite's packages are installed into a temporary folder. With --results, outcomes
are kept, and a file with kept plain outcomes does not run plain again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.prefect_suite.differences import PAGE, Comparison, Reason, compared, read_reasons, stale
from tests.prefect_suite.environment import make_environment
from tests.prefect_suite.running import Suite

_NAMES = """
    test_tasks.py test_task_engine.py test_flows.py test_flow_engine.py test_states.py
    test_futures.py test_task_runners.py test_task_worker.py test_transactions.py
    test_background_tasks.py test_cache_policies.py test_assets.py test_context.py
    test_flow_runs.py test_flows_compat.py test_infrastructure_bound_flow.py test_log_prints.py
    test_logging.py test_task_runs.py test_waiters.py assets concurrency deployment engine input
    public results runner runtime telemetry
"""
FILES = tuple(f"tests/{name}" for name in _NAMES.split())
"""What uses tasks and flows."""


def main() -> None:
    words = argparse.ArgumentParser(
        prog="python -m tests.prefect_suite",
        description="Prefect's own tests, with our decorators in place of Prefect's.",
    )
    words.add_argument("checkout", type=Path, help="a clone of Prefect, at the tag to test")
    words.add_argument("--environment", type=Path, help="a virtual environment to keep; made if missing")
    words.add_argument("--results", type=Path, help="where to keep outcomes; plain ones there are used again")
    asked, rest = words.parse_known_args()
    files = [word for word in rest if word.startswith("tests/")] or list(FILES)
    options = [word for word in rest if not word.startswith("tests/")]
    if not (asked.checkout / "tests" / "conftest.py").is_file():
        words.error(f"{asked.checkout} has no tests/conftest.py: name the folder of a clone of Prefect")
    with ExitStack() as folders:

        def kept(folder: Path | None) -> Path:
            made = folder or Path(folders.enter_context(tempfile.TemporaryDirectory()))
            return made.absolute()

        checkout = asked.checkout.absolute()
        python = make_environment(kept(asked.environment), checkout)
        suite = Suite(checkout, python, kept(asked.results), options)
        raise SystemExit(1 if report(suite, files, read_reasons(PAGE)) else 0)


def report(suite: Suite, files: list[str], reasons: list[Reason]) -> bool:
    """Run the files and print the table. True if something is not as listed."""
    done: list[Comparison] = []
    for file in files:
        print(f"{file} ...", file=sys.stderr, flush=True)
        plain, ours = suite.plain(file), suite.ours(file)
        found = compared(file, plain, ours, reasons)
        done.append(found.after(suite.again(file, found.differing)) if found.differing else found)
    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table("file", title="Prefect's suite")
    for title in (
        "tests",
        "passed plain",
        "passed with ours",
        "differ, listed",
        "differ, not listed",
        "unsteady",
    ):
        table.add_column(title, justify="right")
    for one in [*done, Comparison.total(done)]:
        table.add_row(one.file, *(str(number) for number in one.numbers))
    console.print(table)
    wrong = False
    for one in done:
        for test, reason in one.listed.items():
            console.print(f"listed: {test}: {reason}", markup=False, soft_wrap=True)
        for test, error in one.unlisted.items():
            wrong = True
            console.print(f"NOT LISTED: {test}: {error}", markup=False, soft_wrap=True)
        for test in one.unsteady:
            console.print(f"unsteady: {test} failed once with ours", markup=False, soft_wrap=True)
        if not one.ran:
            wrong = True
            console.print(f"DID NOT RUN: {one.file}; the logs are in {suite.results}", markup=False)
    for reason in stale(reasons, done):
        wrong = True
        console.print(f"NO DIFFERENCE ANY MORE: {reason.pattern}", markup=False, soft_wrap=True)
    return wrong


if __name__ == "__main__":
    main()
