"""Letters of real runs, replayed by the page's button: one at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.sorting import FlowRunSort

from prefect_resilience import dead_letters
from prefect_resilience.errors.exceptions import ResilienceError
from prefect_resilience.operations.dashboard.desk import Desk
from tests.operations.dashboard.conftest import Page
from tests.operations.dashboard.shop import invoices

pytestmark = pytest.mark.api


async def failed_letters(monkeypatch: pytest.MonkeyPatch, numbers: list[int]) -> list[str]:
    monkeypatch.setenv("SHOP", "closed")
    await asyncio.to_thread(invoices, numbers, return_state=True)
    found = dead_letters.list(status="waiting")
    assert len(found) == len(numbers)
    return [letter.id for letter in found]


def waiting(page: Page) -> int:
    return sum(group["waiting"] for group in page.parts.get("letters", {}).values())


async def test_a_letter_and_then_the_others_of_its_task(
    page: Page, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, *_ = await failed_letters(monkeypatch, [1, 2, 3])
    monkeypatch.setenv("SHOP", str(tmp_path / "sent"))

    async def replay(**order: str) -> Any:
        return (await page.browser.post("/letters/replay", json=order)).json()

    await page.until(lambda p: waiting(p) == 3)
    (group,) = page.parts["letters"].values()
    assert first in [call["id"] for call in group["calls"]]
    assert group["error"].endswith("the shop is closed")
    assert await replay(letter=first) == {"said": "1 letter: 1 replayed", "well": True}
    await page.until(lambda p: waiting(p) == 2)
    assert (await replay(task="send_invoice", error="of another kind"))["said"].startswith("no letters")
    answers = await asyncio.gather(
        replay(task="send_invoice", error=group["kind"]), replay(task="send_invoice", error=group["kind"])
    )
    assert {"said": "2 letters: 2 replayed", "well": True} in answers
    assert {"error": "A replay is already running: wait for its end"} in answers
    await page.until(lambda p: not p.parts["letters"])
    assert (tmp_path / "sent").read_text().splitlines() == ["3", "1", "2"]
    letter = dead_letters.get(first)
    assert letter.status == "replayed"
    with get_client(sync_client=True) as client:
        replays = FlowFilter(name=FlowFilterName(any_=["replay-dead-letters"]))
        runs = client.read_flow_runs(flow_filter=replays, sort=FlowRunSort.START_TIME_DESC)
    assert any(run.parameters["letters"] == [first] for run in runs)


async def test_a_replay_that_fails_says_why_and_one_that_the_end_stops_goes_on_later(
    url: str, browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await failed_letters(monkeypatch, list(range(5)))
    answer = (await browser.post("/letters/replay", json={"task": "send_invoice"})).json()
    assert answer["said"].startswith("5 letters: 5 failed; ")
    assert answer["said"].endswith("the shop is closed")
    monkeypatch.setenv("SHOP", str(tmp_path / "sent"))
    desk = Desk(url, url)
    desk.closing.set()
    with pytest.raises(ResilienceError, match="Stopped after 1 of 5 letters"):
        await asyncio.to_thread(desk.replay, task="send_invoice")
    assert len(dead_letters.list(status="waiting")) == 4
    assert (tmp_path / "sent").read_text().splitlines() == ["0"]
