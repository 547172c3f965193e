"""Blocks on a real Prefect API; each test begins as a new process would."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from prefect_resilience.tasks.edge import live_policy as live


@pytest.fixture(autouse=True)
def policies_forgotten() -> Iterator[None]:
    live.forget_policies()
    yield
    live.forget_policies()
