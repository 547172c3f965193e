"""These tests run flows against a real Prefect API, and read what they leave behind."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client

from tests.prefect_runs import until


class Left:
    """The artifacts that flow runs left behind."""

    def by(self, flow_run_id: UUID | str) -> dict[str, dict[str, Any]]:
        """The newest of each key that this flow run wrote."""
        body = {"artifacts": {"flow_run_id": {"any_": [str(flow_run_id)]}}, "sort": "CREATED_DESC"}
        with get_client(sync_client=True) as client:
            found = client.request("POST", "/artifacts/filter", json=body).json()
        named: dict[str, dict[str, Any]] = {}
        for one in found:
            if one["key"]:
                named.setdefault(one["key"], one)
        return named

    def summary(self, flow_run_id: UUID | str) -> str:
        """The summary's markdown. A slow API may get it after the run has ended."""

        def written() -> str | None:
            artifacts = self.by(flow_run_id).items()
            return next((one["data"] for key, one in artifacts if key.startswith("run-summary-")), None)

        return until(written, 60)


@pytest.fixture
def left(prefect_api: None) -> Left:
    return Left()
