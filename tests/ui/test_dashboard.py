"""The dashboard in Chromium: one glance, its buttons, who may not press them, how fluent it is."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from playwright.sync_api import expect

from prefect_resilience import CircuitBreaker, get_circuits
from tests.ui.conftest import PATIENCE, ROOT, Dashboard

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]


def state_of(store: str, name: str) -> str:
    return next(one.state for one in get_circuits(store) if one.name == name)


# -- what one glance tells


@pytest.mark.parametrize(
    ("width", "scheme"), [(1400, "light"), (1400, "dark"), (390, "light"), (390, "dark")]
)
def test_one_glance(
    fleet: Dashboard, visit: Callable[..., Any], width: int, scheme: str, tmp_path: Path
) -> None:
    page = visit(fleet.url, width, scheme)
    page.get_by_text("of 40 circuits").first.wait_for()
    # Both services that fail have opened by then.
    expect(page.locator("#headline")).to_have_text(
        re.compile("^3 open.* of 4[0-9] circuits"), timeout=PATIENCE
    )
    levels = page.locator(".card").evaluate_all("cards => cards.map((card) => card.dataset.level)")
    assert levels[:3] == ["open"] * 3
    assert page.locator("#doubts b").inner_text() == "1"
    assert page.locator("#burning b").inner_text() == "1"
    for name, rows in (
        ("parked", ["labels of Friday", "orders of the north"]),
        ("limits", ["openai:gpt", "research"]),
    ):
        expect(page.locator(f"#{name} .row .name")).to_have_text(rows, timeout=PATIENCE)
    link = page.get_by_role("link", name="Prefect UI")
    assert link.get_attribute("href").startswith("http://127.0.0.1:")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    in_docs = (width, scheme) in ((1400, "light"), (390, "dark")) and os.environ.get("PICTURES")
    folder = ROOT / "docs" / "ui" if in_docs else tmp_path
    page.evaluate("document.querySelector('.places').textContent = 'postgresql://fleet.example/resilience'")
    page.screenshot(path=str(folder / f"dashboard-{width}-{scheme}.png"), animations="disabled")
    if width == 1400:
        page.locator("#beside").screenshot(path=str(folder / "dashboard-rows.png"), animations="disabled")


def test_an_opening_appears_within_a_second(fleet: Dashboard, visit: Callable[..., Any]) -> None:
    page = visit(fleet.url)
    took: list[float] = []
    for number in range(5):
        name = f"trips:{number}"
        breaker = CircuitBreaker(name, failure_threshold=1, open_for=600, store=fleet.store)
        breaker.call(str)
        breaker.reset("so that the store has it")
        page.locator("#filter").fill(name)
        page.get_by_role("button", name=f"Open {name}").wait_for()
        page.evaluate("seen.headlines = []")
        opened = time.time()
        with pytest.raises(TimeoutError):
            breaker.call(times_out)
        page.locator(".card .badge", has_text="open").wait_for()
        took.append(page.evaluate("seen.headlines[0][1]") / 1000 - opened)
        breaker.reset("enough")
        page.get_by_role("button", name=f"Open {name}").wait_for()
    print(f"\nan opening was in the headline after {', '.join(f'{one:.2f}' for one in took)} s")
    assert median(took) < 1.0


def times_out() -> None:
    raise TimeoutError("no answer")


# -- buttons


def test_a_circuit_is_opened_and_closed_by_clicks(fleet: Dashboard, visit: Callable[..., Any]) -> None:
    page = visit(fleet.url, 390)
    page.locator("#filter").fill("billing")
    page.get_by_role("button", name="Open billing").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Open circuit").click()
    assert state_of(fleet.store, "billing") == "closed"  # without a reason the form is not sent
    dialog.get_by_label("Reason").fill("the provider asked for it")
    dialog.get_by_role("button", name="Open circuit").click()
    page.get_by_text("billing: opened for the whole fleet").wait_for()
    page.get_by_role("button", name="Close billing").wait_for()
    assert state_of(fleet.store, "billing") == "forced_open"
    assert page.locator(".card .why").first.inner_text().endswith("the provider asked for it")
    page.get_by_role("button", name="Close billing").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert state_of(fleet.store, "billing") == "forced_open"
    page.get_by_role("button", name="Close billing").click()
    page.get_by_role("dialog").get_by_role("button", name="Close circuit").click()
    page.get_by_role("button", name="Open billing").wait_for()
    assert state_of(fleet.store, "billing") == "closed"


def test_a_letter_is_replayed_by_clicks(fleet: Dashboard, visit: Callable[..., Any]) -> None:
    page = visit(fleet.url)
    waiting = page.locator("#waiting b")
    expect(waiting).to_have_text("5", timeout=PATIENCE)
    page.locator("#letters .calls li").first.get_by_role("button", name="Replay").click()
    page.get_by_role("dialog").get_by_role("button", name="Replay").click()
    page.get_by_text("1 letter: 1 replayed").wait_for()
    expect(waiting).to_have_text("4", timeout=PATIENCE)
    assert Path(fleet.environment["SENT"]).read_text() == "5\n"
    page.locator("#letters .row").get_by_role("button", name="Replay all").click()
    assert (
        page.get_by_role("dialog").get_by_role("heading").inner_text() == "Replay 4 letters of send_invoice?"
    )
    page.get_by_role("dialog").get_by_role("button", name="Replay").click()
    page.get_by_text("4 letters: 4 replayed").wait_for()
    expect(waiting).to_have_text("0", timeout=PATIENCE)
    # Whoever held the button has not lost their place.
    assert page.evaluate("document.activeElement.id") == "letters-title"


def test_an_effect_is_settled_by_clicks(fleet: Dashboard, visit: Callable[..., Any]) -> None:
    page = visit(fleet.url)
    page.get_by_role("button", name="Settle payments-2026-11").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Effect").select_option("payment:A-18")
    dialog.get_by_label("Outcome").select_option("done")
    dialog.get_by_label("Its id at the receiver").fill("tx-99")
    dialog.get_by_role("button", name="Settle effect").click()
    page.get_by_text("payment:A-18: settled as done").wait_for()
    page.get_by_text("1 open, effects in doubt: 1").wait_for()
    page.get_by_role("button", name="Recover payments-2026-11").click()
    page.get_by_role("dialog").get_by_text("The batch needs a person").wait_for()
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Recover payments-2026-11"


def test_it_works_with_a_keyboard_alone(fleet: Dashboard, visit: Callable[..., Any]) -> None:
    page = visit(fleet.url)
    reached: list[str] = []
    for _ in range(40):
        page.keyboard.press("Tab")
        shown = page.evaluate(
            "[getComputedStyle(document.activeElement).outlineStyle, "
            "document.activeElement.getAttribute('aria-label') ?? document.activeElement.id]"
        )
        assert shown[0] == "solid", shown
        reached.append(shown[1])
        if shown[1] == "Reset orders":
            break
    assert {"prefect-ui", "doubts", "waiting", "burning", "filter", "Close orders"} <= set(reached)
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.name") == "reason"
    page.keyboard.type("the move is over")
    page.keyboard.press("Enter")
    page.get_by_text("orders: reset for the whole fleet").wait_for()
    assert state_of(fleet.store, "orders") == "closed"
