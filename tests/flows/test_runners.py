"""The same promises on threads, processes, Dask and Ray; the example's service counts."""

from __future__ import annotations

import pytest

from flows.runners import COLUMNS, RUNNERS, tried


@pytest.mark.api
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("runner", RUNNERS)
def test_every_promise_holds_on(runner: str, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"sqlite:///{tmp_path}/resilience.db")
    cells = tried(runner)
    assert tuple(cells) == COLUMNS
    assert {name: text for name, (text, held) in cells.items() if not held} == {}
