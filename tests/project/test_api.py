"""The public API does not change by accident."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import api

pytestmark = pytest.mark.docs

OLD = """# module prefect_resilience
class Retry(Policy):
    def __init__(self, *, attempts: int = 3, budget: RetryBudget | None = None): ...
    def decide(self, error: ErrorInfo, attempt: int, *, elapsed: float = 0.0) -> Verdict: ...

def redact(text: str) -> str: ...
LIMIT: int = 3
# module prefect_resilience.testing
def no_wait() -> None: ...
"""


def test_the_api_is_the_one_that_was_written_down() -> None:
    # In a process of its own: a test that provokes a RecursionError can leave Python's parser in a bad state.
    command = [sys.executable, "-c", "from tests.project import api; print(api.current(), end='')"]
    new = subprocess.run(command, cwd=api.ROOT, capture_output=True, text=True, check=True).stdout
    old = api.SNAPSHOT.read_text()
    assert api.unnamed(api.breaking(old, new)) == {}, "breaks callers: CHANGELOG.md must name it"
    assert old == new, "the API has changed: python -m tests.project.api --write"


def test_every_public_module_and_name_stands_in_it() -> None:
    written = api.modules_of(api.SNAPSHOT.read_text())
    assert set(written) == set(api.MODULES)
    assert {"Retry", "CircuitBreaker", "resilient_task", "run_plan"} <= set(written[api.PACKAGE].members)


@pytest.mark.parametrize(
    ("was", "now", "broken"),
    [
        ("attempt: int, *", "attempt: int, retries: int, *", {"Retry.decide"}),
        ("elapsed: float = 0.0", "elapsed: float = 1.0", {"Retry.decide"}),
        ("elapsed: float = 0.0", "elapsed: float = 0.0, random: float = 0.5", set[str]()),
        ("attempts: int = 3", "attempts: int", {"Retry.__init__"}),
        (", budget: RetryBudget | None = None", "", {"Retry.__init__"}),
        ("def redact(text: str) -> str: ...\n", "", {"redact"}),
        ("def redact", "def redacted", {"redact"}),
        ("LIMIT: int = 3", "", {"LIMIT"}),
        ("def no_wait() -> None: ...", "def no_wait(really: bool) -> None: ...", {"no_wait"}),
        (
            "# module prefect_resilience.testing",
            "# module prefect_resilience.tests",
            {"prefect_resilience.testing"},
        ),
        ("def redact", "def also() -> None: ...\n\ndef redact", set[str]()),
    ],
)
def test_what_breaks_a_caller_is_found(was: str, now: str, broken: set[str]) -> None:
    assert was in OLD
    assert set(api.breaking(OLD, OLD.replace(was, now))) == broken


def test_the_changelog_excuses_what_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"Retry.decide": "a parameter is gone", "redact": "gone"}
    text = "# Log\n\n## [Unreleased]\n\n- `Retry.decide(error)` is new.\n\n## [0.1.0]\n\n- `redact`\n"
    page = tmp_path / "CHANGELOG.md"
    page.write_text(text)
    monkeypatch.setattr(api, "CHANGELOG", page)
    assert api.unnamed(broken) == {"redact": "gone"}
