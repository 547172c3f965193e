"""Runs the tests of a row while a break takes its feature out, in a copy of the tree.

Prefect and pytest are imported once: each run is a fork of this process, with the copy's modules.
"""

import hashlib
import importlib
import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from tests.prefect_server import end_server
from tests.requirements.breaking import PACKAGE, Break
from tests.requirements.table import ROOT, Row

AT_MOST = 1200
"""Seconds for the tests of one row."""
IMPORTED_BEFORE = (
    *("hypothesis", "httpx", "prefect.server.api.server", "prefect.events.worker", "prefect.main"),
    *("prefect.testing.utilities", "sqlalchemy"),
)
OF_THE_TREE = {"tests", "prefect_resilience", "flows", "docs", "benchmarks", "conftest"}
NO_REAL_FAILURE = (ImportError, SyntaxError, NameError)
"""What a break that is written wrongly raises, rather than a test that sees the feature missing."""


@dataclass
class Outcome:
    """What became of a row's tests under one break."""

    red: dict[str, str] = field(default_factory=dict[str, str])
    """The test functions that failed, each with its error in one line."""
    green: list[str] = field(default_factory=list[str])
    problem: str = ""

    @property
    def is_red(self) -> bool:
        return bool(self.red) and not self.problem

    @property
    def word(self) -> str:
        return self.problem or ("red" if self.red else "STAYS GREEN")


@dataclass(frozen=True)
class Work:
    """A break, its row, and the tests to run."""

    row: Row
    broken: Break
    everything: bool = False

    @property
    def digest(self) -> str:
        """Another one when the break or the row's tests are others."""
        return hashlib.sha256(repr(self).encode()).hexdigest()


@dataclass
class _Run:
    """A forked run; `originals` are the files that its break has changed."""

    work: Work
    copy: Path
    originals: dict[Path, bytes]
    process: BaseProcess
    began: float = field(default_factory=time.monotonic)

    @property
    def is_overdue(self) -> bool:
        return time.monotonic() - self.began > AT_MOST


def outcomes(work: Sequence[Work], jobs: int) -> Iterator[tuple[Work, Outcome]]:
    """The outcomes, as they come. At most `jobs` run at a time, each in a copy of its own."""
    for name in IMPORTED_BEFORE:
        importlib.import_module(name)
    waiting, running = list(reversed(work)), list[_Run]()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place, shared_folder() as shared:
        free = [copied(Path(place) / str(number)) for number in range(min(jobs, len(work)))]
        try:
            while waiting or running:
                while waiting and free:
                    running.append(_begun(waiting.pop(), free.pop(), shared))
                wait([run.process.sentinel for run in running], timeout=1)
                for run in [run for run in running if not run.process.is_alive() or run.is_overdue]:
                    running.remove(run)
                    overdue = run.process.is_alive()
                    _end(run)
                    free.append(run.copy)
                    yield run.work, Outcome(problem="the tests hung") if overdue else _read(run.copy)
        finally:
            for run in running:
                _end(run)


def _begun(work: Work, copy: Path, shared: Path) -> _Run:
    """Break the copy, and run the row's tests there in a fork of this process."""
    paths = {copy / PACKAGE / replacement.file for replacement in work.broken.replacements}
    originals = {path: path.read_bytes() for path in paths}
    for replacement in work.broken.replacements:
        replacement.apply(copy)
    _forget_compiled(paths)
    process = multiprocessing.get_context("fork").Process(target=_run, args=(work, copy, shared))
    process.start()
    return _Run(work, copy, originals, process)


def _end(run: _Run) -> None:
    """End a run and the processes that its tests left, and mend the copy."""
    with suppress(ProcessLookupError):
        os.killpg(run.process.pid or 0, signal.SIGKILL)
    run.process.join()
    for path, content in run.originals.items():
        path.write_bytes(content)
    _forget_compiled(run.originals)


def _forget_compiled(paths: Iterable[Path]) -> None:
    for path in paths:
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


@contextmanager
def shared_folder() -> Generator[Path]:
    """The folder of the Prefect server that all runs share; the first run with an API starts it."""
    folder = Path(tempfile.mkdtemp(prefix="prefect-api-"))
    try:
        yield folder
    finally:
        end_server(folder)
        shutil.rmtree(folder, ignore_errors=True)


def copied(folder: Path) -> Path:
    """A copy of the files that git knows, and of new ones that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    for cache in [
        path for top in ("prefect_resilience", "tests") for path in (ROOT / top).rglob("__pycache__")
    ]:
        shutil.copytree(cache, folder / cache.relative_to(ROOT), dirs_exist_ok=True)
    return folder


def _read(copy: Path) -> Outcome:
    file = copy / "outcome.json"
    if not file.exists():
        return Outcome(problem=f"pytest broke off: {_last_line(copy / 'output.txt')}")
    return Outcome(**json.loads(file.read_text()))


def _last_line(file: Path) -> str:
    return next(iter(reversed(file.read_text(errors="replace").split("\n")[:-1])), "no output")


def _run(work: Work, copy: Path, shared: Path) -> None:
    """In the forked process: run the row's tests in the copy."""
    os.setpgid(0, 0)
    result = copy / "outcome.json"
    result.unlink(missing_ok=True)
    output = os.open(copy / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy)
    sys.path[:] = [str(copy), *(path for path in sys.path if Path(path or ".").absolute() != ROOT)]
    for name in list(sys.modules):
        if name.partition(".")[0] in OF_THE_TREE:
            del sys.modules[name]
    plugin = _Plugin(work, shared)
    options = [
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "-q",
        "--no-header",
        "-m",
        "not long",
        "-o",
        "timeout=400",
    ]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        os.environ |= {"PREFECT_HOME": home, "HYPOTHESIS_PROFILE": "ci"}
        files = sorted({test.partition("::")[0] for test in work.row.tests})
        code = pytest.main([*options, *files], plugins=[plugin])
    found = plugin.outcome
    if not found.problem and code not in (0, 1):
        found.problem = plugin.broken or f"pytest ended with {int(code)}"
    result.with_suffix(".part").write_text(json.dumps(vars(found)))
    result.with_suffix(".part").replace(result)
    sys.stdout.flush()
    os._exit(0)


class _Plugin:
    """Runs the row's tests and collects what became of each test function.

    A function's other parameters are left out once it is red, and so are tests that need an API once another
    test is, unless all are asked for.

    Where a row has tests without an API, those with one are left out.
    """

    def __init__(self, work: Work, shared: Path) -> None:
        self.work = work
        self.shared = shared
        self.outcome = Outcome()
        self.broken = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: Any) -> None:
        # As a worker of pytest-xdist has it: the server is the session's, which the first one starts.
        config.workerinput = {"prefect_server": (str(self.shared), os.getppid())}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        wanted = [item for item in items if _function(item) in self.work.row.tests]
        items[:] = sorted(wanted, key=_needs_api)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.broken = f"{report.nodeid} was not collected: {_error(report)}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        needed = self.work.everything or not self.outcome.red or not _needs_api(item)
        if not needed or _function(item) in self.outcome.red:
            pytest.skip("a test of the row is red already")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
        report: Any = yield
        name = _function(item)
        if report.failed and call.excinfo is not None:
            error = call.excinfo.value
            if isinstance(error, NO_REAL_FAILURE) or "from pytest-timeout" in str(error):
                self.outcome.problem = f"{name}: {_error(report)}"
            elif report.when == "call":
                self.outcome.red[name] = _error(report)
                if name in self.outcome.green:
                    self.outcome.green.remove(name)
        elif report.passed and report.when == "call" and name not in (*self.outcome.red, *self.outcome.green):
            self.outcome.green.append(name)
        return report


def _needs_api(item: pytest.Item) -> bool:
    return item.get_closest_marker("api") is not None


def _function(item: pytest.Item) -> str:
    """As a row names its tests: without the class and the parameters."""
    return f"{item.nodeid.partition('::')[0]}::{getattr(item, 'originalname', item.name)}"


def _error(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash is not None else report.longreprtext).strip().splitlines()
    return (lines[0] if crash is not None else lines[-1])[:200] if lines else "an error"
