"""Letters of real runs, replayed by the page's button: one at a time, with progress, and to be stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.sorting import FlowRunSort
from starlette.applications import Starlette

from prefect_resilience import dead_letters
from tests.operations.dashboard.conftest import Page, listening
from tests.operations.dashboard.shop import invoices

pytestmark = pytest.mark.api


async def failed_letters(monkeypatch: pytest.MonkeyPatch, numbers: list[int]) -> list[str]:
    monkeypatch.setenv("SHOP", "closed")
    await asyncio.to_thread(invoices, numbers, return_state=True)
    found = dead_letters.list(status="waiting")
    assert len(found) == len(numbers)
    return [letter.id for letter in found]


def ended(page: Page) -> dict[str, Any] | None:
    row = page.row("summary", "replay")
    return row if row.get("ended") else None


def waiting(page: Page) -> int:
    return sum(group["waiting"] for group in page.parts.get("letters", {}).values())


async def test_a_letter_and_then_the_others_of_its_task(
    app: Starlette, browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, *_ = await failed_letters(monkeypatch, [1, 2, 3])
    monkeypatch.setenv("SHOP", str(tmp_path / "sent"))
    async with listening(app) as page:
        await page.until(lambda p: waiting(p) == 3)
        (group,) = page.parts["letters"].values()
        assert first in [call["id"] for call in group["calls"]]
        assert group["error"].endswith("the shop is closed")
        # The names of runs, and the minutes, come from the Prefect API.
        await page.until(lambda p: "retries" in p.row("summary", "minutes"))
        assert (await browser.post("/letters/replay", json={"letter": first})).status_code == 200
        await page.until(ended)
        assert ended(page) == {
            **{"letter": first, "task": None, "ended": True},
            **{"said": "1 letter: 1 replayed", "well": True},
        }
        await page.until(lambda p: waiting(p) == 2)
        other = {"task": "send_invoice", "error": "of another kind"}
        assert (await browser.post("/letters/replay", json=other)).status_code == 200
        await page.until(lambda p: (ended(p) or {}).get("said", "").startswith("no letters"))
        this = {"task": "send_invoice", "error": group["kind"]}
        assert (await browser.post("/letters/replay", json=this)).status_code == 200
        busy = await browser.post("/letters/replay", json={"task": "send_invoice"})
        assert busy.json()["error"].startswith("A replay is already running")
        await page.until(lambda p: (ended(p) or {}).get("said") == "2 letters: 2 replayed")
        await page.until(lambda p: not p.parts["letters"])
    assert (tmp_path / "sent").read_text().splitlines() == ["3", "1", "2"]
    letter = dead_letters.get(first)
    assert letter.status == "replayed"
    with get_client(sync_client=True) as client:
        replays = FlowFilter(name=FlowFilterName(any_=["replay-dead-letters"]))
        runs = client.read_flow_runs(flow_filter=replays, sort=FlowRunSort.START_TIME_DESC)
    assert any(run.parameters["letters"] == [first] for run in runs)


async def test_a_replay_that_fails_says_why_and_one_that_is_stopped_goes_on_later(
    app: Starlette, browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await failed_letters(monkeypatch, list(range(5)))
    async with listening(app) as page:
        await browser.post("/letters/replay", json={"task": "send_invoice"})
        await page.until(ended)
        said = page.row("summary", "replay")["said"]
        assert said.startswith("5 letters: 5 failed; ")
        assert said.endswith("the shop is closed")
        monkeypatch.setenv("SHOP", str(tmp_path / "sent"))
        await browser.post("/letters/replay", json={"task": "send_invoice"})
        assert (await browser.post("/letters/stop", json={})).json()["said"].startswith("The replay stops")
        await page.until(lambda p: (ended(p) or {}).get("said") == "Stopped after 1 of 5 letters")
        await page.until(lambda p: waiting(p) == 4)
    assert (tmp_path / "sent").read_text().splitlines() == ["0"]
