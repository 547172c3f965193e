"""A pytest plugin for Prefect's own suite: our decorators in place of Prefect's, and outcomes as a file.

Prefect's suite has a package `tests` of its own, so this file is loaded by its bare name and imports
nothing of ours but the package. It reads two variables: PREFECT_SUITE_DECORATORS ("plain" or "ours"), and
PREFECT_SUITE_OUTCOMES, the file that gets one line of JSON for each test.

Test modules import `task` and `flow` by name, and so do the flow files that tests write and load: they all
get ours. Prefect itself does not call its decorators through these names. Processes that a test starts are
not changed.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path
from typing import Any

import anyio
import prefect
import prefect.flows
import prefect.main
import prefect.tasks
import pytest
from prefect.testing import fixtures

ORDER = ("passed", "skipped", "failed")
"""From the best outcome of a test's phases to the worst, which counts."""


USES_PREFECTS = re.compile(r"^from prefect(\.\w+)? import (.*\W)?(flow|task)\b", re.MULTILINE)


def import_users() -> None:
    """Our own operational flows use Prefect's decorators: import them while the names still mean those."""
    # Only now: a plain run is one without this package.
    import prefect_resilience

    folder = Path(*prefect_resilience.__path__)
    for file in folder.rglob("*.py"):
        if USES_PREFECTS.search(file.read_text(encoding="utf-8")):
            importlib.import_module(".".join(file.relative_to(folder.parent).with_suffix("").parts))


def substitute() -> None:
    import_users()
    from prefect_resilience import resilient_flow, resilient_task

    for module in (prefect, prefect.main, prefect.tasks):
        vars(module)["task"] = resilient_task
    for module in (prefect, prefect.main, prefect.flows):
        vars(module)["flow"] = resilient_flow


class Outcomes:
    """Writes what became of each test, when its last phase has ended."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.outcome: dict[str, str] = {}
        self.error: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        outcome = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "passed"
        self.outcome[name] = max(self.outcome.get(name, "passed"), outcome, key=ORDER.index)
        if report.failed and name not in self.error:
            self.error[name] = last_line(report)
        if report.when == "teardown":
            self.write(name)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.outcome[report.nodeid] = "failed"
            self.error[report.nodeid] = last_line(report)
            self.write(report.nodeid)

    def write(self, name: str) -> None:
        line = {"test": name, "outcome": self.outcome[name], "error": self.error.get(name, "")}
        with self.file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")


class Patience:
    """The module anyio with more time for the suite's server: it has 20 s to start, too little for a busy
    machine, and the suite hangs when they are over."""

    def __getattr__(self, name: str) -> Any:
        return getattr(anyio, name)

    def move_on_after(self, seconds: float) -> anyio.CancelScope:
        return anyio.move_on_after(12 * seconds)


def last_line(report: Any) -> str:
    """The error in one line, as pytest's own summary has it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    return lines[0 if crash is not None else -1]


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("PREFECT_SUITE_DECORATORS") == "ours":
        substitute()
    fixtures.__dict__["anyio"] = Patience()
    config.pluginmanager.register(Outcomes(Path(os.environ["PREFECT_SUITE_OUTCOMES"])))
