"""What the pages' code meets: a Prefect API, a store and a folder of its own, and no pauses."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_resilience.errors.classify import classify
from prefect_resilience.errors.secrets import redact
from prefect_resilience.graphs.agents.edge.registry import AGENTS
from prefect_resilience.graphs.plans.actions import REGISTERED
from prefect_resilience.guards.budgets.policy import forget_budgets
from prefect_resilience.testing import no_wait


@pytest.fixture
def as_a_reader(
    prefect_api: None, own_store: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The folder in which somebody tries a page out; what its code registers is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for registered in (AGENTS, REGISTERED):
        monkeypatch.setattr(registered, "_known", dict(registered._known))
    monkeypatch.setattr(classify, "registered", classify.registered.copy())
    monkeypatch.setattr(redact.registered, "values", redact.registered.values.copy())
    monkeypatch.setattr(redact.registered, "patterns", redact.registered.patterns)
    forget_budgets()
    before = set(sys.modules)
    with no_wait():
        yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
