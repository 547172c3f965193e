"""One file of Prefect's suite, run in a process of its own."""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.prefect_suite.differences import Outcome, passed

PLUGIN = Path(__file__).with_name("prefect_suite_plugin.py")
OPTIONS = (
    *("-q", "-p", "no:cacheprovider", "-p", PLUGIN.stem),
    *("--exclude-services", "--continue-on-collection-errors"),
    # Prefect's own limit is 90 s, in which a busy machine may not have started the suite's server.
    *("-o", "timeout=300"),
    # A warning is an error there; this one comes of Prefect's server with SQLAlchemy 2.1.
    *("-W", "ignore::sqlalchemy.exc.SADeprecationWarning"),
)
AT_MOST = 7200
"""Seconds for one file."""


@dataclass(frozen=True)
class Suite:
    """A checkout, the Python that runs it, where outcomes go, and pytest's options."""

    checkout: Path
    python: Path
    results: Path
    options: Sequence[str]

    def plain(self, file: str) -> dict[str, Outcome]:
        """The outcomes as Prefect ships the file; those of an earlier run if they were kept."""
        kept = self._place("plain", file)
        outcomes = read(kept) if kept.exists() else {}
        return outcomes if passed(outcomes) else self._run("plain", file, [file])

    def ours(self, file: str) -> dict[str, Outcome]:
        return self._run("ours", file, [file])

    def again(self, file: str, tests: Sequence[str]) -> dict[str, Outcome]:
        """These tests once more with ours."""
        return self._run("ours", f"{file}.again", tests)

    def _place(self, decorators: str, file: str) -> Path:
        return self.results / decorators / f"{file.replace('/', '.')}.jsonl"

    def _run(self, decorators: str, file: str, tests: Sequence[str]) -> dict[str, Outcome]:
        """The outcomes, none if pytest broke off."""
        place = self._place(decorators, file)
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = place.with_suffix(".part")
        unfinished.unlink(missing_ok=True)
        variables = {"PREFECT_SUITE_DECORATORS": decorators, "PREFECT_SUITE_OUTCOMES": str(unfinished)}
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,
            place.with_suffix(".log").open("w") as log,
        ):
            done = subprocess.run(
                [self.python, "-m", "pytest", *OPTIONS, *self.options, *tests],
                cwd=self.checkout,
                env=self._environment(home) | variables,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=AT_MOST,
            )
        if done.returncode not in (0, 1) or not unfinished.exists():
            return {}
        unfinished.replace(place)
        return read(place)

    def _environment(self, home: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        return kept | {
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(PLUGIN.parent),
            "PREFECT_HOME": home,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        }


def read(file: Path) -> dict[str, Outcome]:
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {line["test"]: Outcome(line["outcome"], line["error"]) for line in lines}
