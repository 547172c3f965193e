"""The page, its stream and its buttons over HTTP: the store is shown as it is, and nobody forges an order."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from prefect_resilience import CircuitBreaker, get_circuits
from prefect_resilience.durable.effects.ledger import open_ledger, place_of
from prefect_resilience.durable.effects.model import Doubted
from prefect_resilience.effects import batch_status
from prefect_resilience.operations.dashboard import Gate, make_app
from tests.operations.dashboard.conftest import Page, browsing, call
from tests.stores_servers import RedisServer

FILES = ("/", "/dashboard.css", "/dashboard.js", "/ask.js", "/nodes.js", "/rows.js")


def state_of(url: str, name: str) -> str:
    return next(one.state for one in get_circuits(url) if one.name == name)


def put_in_doubt(url: str, batch: str, key: str) -> None:
    ledger = open_ledger(url)
    ledger.intend(place_of(batch, key), "c", "external", {"key": key, "batch": batch})
    ledger.report(place_of(batch, key), Doubted("c", {"code": "TIMEOUT", "message": "no answer"}))


# -- the page


async def test_the_page_and_its_files(browser: httpx.AsyncClient) -> None:
    for path in FILES:
        answer = await browser.get(path)
        assert answer.status_code == 200
        assert answer.headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "://" not in answer.text, "something is loaded from elsewhere"
        assert "{{" not in answer.text
    page = (await browser.get("/")).text
    assert 'name="token" content="right"' in page
    assert "the store of the tests" in page
    assert (await browser.get("/../pyproject.toml")).status_code == 404


async def test_what_the_page_says_of_stores_is_text(url: str) -> None:
    async with browsing(make_app(Gate("right"), url, url, '"><script>alert(1)</script>')) as browser:
        assert "<script>alert" not in (await browser.get("/")).text


# -- the stream


@pytest.mark.usefixtures("circuits")
async def test_the_page_shows_the_fleet_and_then_what_changes(page: Page, url: str) -> None:
    await page.until(lambda p: p.row("summary", "circuits"))
    assert page.row("summary", "circuits")["headline"] == "2 open of 3 circuits"
    assert page.row("circuits", "llm:primary")["level"] == "open"
    assert page.row("circuits", "orders")["why"] == "maintenance"
    tripped = CircuitBreaker("llm:secondary", failure_threshold=2, store=url)
    await asyncio.to_thread(call, tripped, "ff")
    await page.until(lambda p: p.row("circuits", "llm:secondary")["state"] == "open")
    assert page.row("summary", "circuits")["headline"] == "3 open of 3 circuits"


async def test_a_store_that_is_away_is_said_and_what_was_read_stays(own_redis: RedisServer) -> None:
    url = own_redis.url()
    CircuitBreaker("c", store=url).force_open("x")
    async with browsing(make_app(Gate("right"), url, url)) as browser:
        page = Page(browser)
        await page.until(lambda p: p.row("circuits", "c"))
        await asyncio.to_thread(own_redis.stop)
        await page.until(lambda p: p.row("trouble", "circuits") and p.row("trouble", "letters"))
        assert page.row("circuits", "c")["state"] == "forced_open"
        assert "127.0.0.1" in page.row("trouble", "circuits")["says"]
        await asyncio.to_thread(own_redis.start)
        await page.until(lambda p: not p.parts["trouble"])


# -- the buttons


@pytest.mark.usefixtures("circuits")
async def test_circuits_are_opened_closed_and_reset(browser: httpx.AsyncClient, url: str) -> None:
    async def order(**words: Any) -> httpx.Response:
        return await browser.post("/circuits", json=words)

    answer = await order(name="llm:secondary", action="open", reason=" their page says so ", minutes=10)
    assert answer.json() == {"said": "llm:secondary: opened for the whole fleet", "state": "forced_open"}
    opened = next(one for one in get_circuits(url) if one.name == "llm:secondary")
    assert opened.reason == "their page says so"
    assert opened.retry_at is not None
    assert (await order(name="orders", action="close")).json()["state"] == "closed"
    assert (await order(name="llm:primary", action="reset")).json()["state"] == "closed"


@pytest.mark.usefixtures("circuits")
@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ({"name": "llm:primary", "action": "open"}, 409, "Write a reason"),
        ({"name": "llm:primary", "action": "close", "minutes": 5}, 409, "The option minutes is only for"),
        ({"name": "lm:primary", "action": "close"}, 409, "There is no circuit 'lm:primary'"),
        ({"name": "x", "action": "explode"}, 422, "action: "),
        ({"name": "x", "action": "open", "reason": "y", "minutes": "inf"}, 422, "minutes: "),
        ({"name": "x", "action": "open", "force": True}, 422, "force: "),
        ({"action": "open"}, 422, "name: "),
        ([], 422, ""),
    ],
)
async def test_what_cannot_be_meant_is_said(
    browser: httpx.AsyncClient, words: Any, status: int, said: str
) -> None:
    answer = await browser.post("/circuits", json=words)
    assert answer.status_code == status
    assert answer.json()["error"].startswith(said)


@pytest.mark.usefixtures("circuits")
@pytest.mark.parametrize(
    "headers",
    [
        {"X-Resilience-Token": "wrong"},
        {"Origin": "http://evil.example"},
        {"Host": "evil.example"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
        {"Content-Type": "text/plain"},
    ],
)
async def test_a_forged_order_changes_nothing(
    app: Starlette, browser: httpx.AsyncClient, url: str, headers: dict[str, str]
) -> None:
    answer = await browser.post("/circuits", json={"name": "orders", "action": "close"}, headers=headers)
    assert answer.status_code == 403
    assert state_of(url, "orders") == "forced_open"
    for name in ("Origin", "X-Resilience-Token"):
        request = browser.build_request("POST", "/circuits", json={"name": "orders", "action": "close"})
        del request.headers[name]
        assert (await browser.send(request)).status_code == 403
    assert state_of(url, "orders") == "forced_open"


async def test_another_name_reads_neither_page_nor_stream(browser: httpx.AsyncClient) -> None:
    for path in (*FILES, "/state", "/batches/doubts", "/nothing"):
        answer = await browser.get(path, headers={"Host": "evil.example"})
        assert answer.status_code == 403
        assert "right" not in answer.text


@pytest.mark.usefixtures("circuits")
async def test_read_only_means_no_orders(url: str) -> None:
    async with browsing(make_app(Gate("right", read_only=True), url, url)) as browser:
        assert 'name="read-only" content="yes"' in (await browser.get("/")).text
        answer = await browser.post("/circuits", json={"name": "orders", "action": "close"})
        assert (answer.status_code, answer.json()["error"]) == (403, "This dashboard is read-only")


async def test_an_effect_in_doubt_is_shown_and_settled(
    page: Page, browser: httpx.AsyncClient, url: str
) -> None:
    put_in_doubt(url, "invoices", "invoice:7")
    await page.until(lambda p: p.row("batches", "invoices").get("unknown") == 1)
    doubts = (await browser.post("/batches/doubts", json={"batch": "invoices"})).json()
    assert doubts["more"] == 0
    (effect,) = doubts["effects"]
    assert (effect["key"], effect["answers"]) == ("invoice:7", ["done", "not_done"])
    order = {"batch": "invoices", "key": "invoice:7", "answer": "done", "external_id": "m-7"}
    answer = await browser.post("/batches/settle", json={**order, "reason": "it is in the outbox"})
    assert answer.json() == {"said": "invoice:7: settled as done", "state": "done"}
    await page.until(lambda p: not p.row("batches", "invoices"))
    status = batch_status("invoices", store=url)
    assert (status.effects[0].state, status.effects[0].external_id) == ("done", "m-7")
    assert (status.audit[-1].asked, status.audit[-1].reason) == ("settle", "it is in the outbox")
    again = await browser.post("/batches/settle", json={"batch": "invoices", "key": "x", "answer": "done"})
    assert again.status_code == 409
    assert "there is no effect 'x'" in again.json()["error"].lower()


async def test_a_batch_is_recovered_as_far_as_it_can_be(browser: httpx.AsyncClient, url: str) -> None:
    put_in_doubt(url, "invoices", "invoice:7")
    planned = (await browser.post("/batches/recover", json={"batch": "invoices", "dry_run": True})).json()
    assert planned["action"] == "told"
    assert planned["said"].startswith("The batch needs a person (manual_only): ")
    assert batch_status("invoices", store=url).audit == ()
    done = (await browser.post("/batches/recover", json={"batch": "invoices", "reason": "by hand"})).json()
    assert done["action"] == "told"
    assert batch_status("invoices", store=url).audit[-1].reason == "by hand"


async def test_a_store_that_does_not_answer_is_said_to_whoever_pressed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}"  # a folder
    async with browsing(make_app(Gate("right"), url, url)) as browser:
        answer = await browser.post("/circuits", json={"name": "c", "action": "close"})
        assert answer.status_code == 503
        assert answer.json()["error"].startswith("The store is unavailable")


async def test_which_letters_must_be_said(browser: httpx.AsyncClient) -> None:
    for order in ({}, {"letter": "x", "task": "y"}):
        answer = await browser.post("/letters/replay", json=order)
        assert (answer.status_code, answer.json()["error"][:18]) == (409, "Choose the letters")
