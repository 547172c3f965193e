"""What a person sees in Prefect's two UIs of a small day's work, and the form that approves."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import PATIENCE, ROOT, Place, drawn

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

Look = Callable[..., Any]
Picture = Callable[..., None]


@pytest.fixture(params=["V2", "V1"])
def ui(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def address(place: Place, ui: str, path: str) -> str:
    return place.v2(path) if ui == "V2" else place.v1(path)


def test_the_run_page_tells_what_was_retried_and_by_whom_it_was_replaced(
    place: Place, ui: str, look: Look, picture: Picture
) -> None:
    page = look(address(place, ui, f"/runs/flow-run/{place.ids['failed']}"), "Failed")
    page.get_by_text("Retrying (2/3) in 0.2 s: NETWORK_ERROR").first.wait_for()
    page.get_by_text("used after").first.wait_for()
    drawn(page)
    picture(page, f"run-{ui.lower()}")


def test_the_task_runs_have_states_that_say_what_happened(
    place: Place, ui: str, look: Look, picture: Picture
) -> None:
    page = look(address(place, ui, f"/runs/flow-run/{place.ids['failed']}"), "Failed")
    page.get_by_text("Task Runs", exact=True).first.click()
    page.get_by_text("Degraded").first.wait_for()
    drawn(page)
    picture(page, f"task-runs-{ui.lower()}")


def shows_a_picture(page: Page, wider_than: int) -> None:
    shown = page.locator("img[src^='data:image/svg']").first
    shown.wait_for()
    assert shown.evaluate(f"image => image.complete && image.naturalWidth > {wider_than}")


def test_the_summary_shows_its_picture(place: Place, ui: str, look: Look, picture: Picture) -> None:
    artifact = place.artifact("failed", "run-summary")
    page = look(address(place, ui, f"/artifacts/artifact/{artifact}"), "labels of the day")
    shows_a_picture(page, wider_than=300)
    picture(page, f"summary-{ui.lower()}", height=1500)


def test_the_plan_as_it_went_is_a_picture(place: Place, ui: str, look: Look, picture: Picture) -> None:
    page = look(address(place, ui, f"/artifacts/artifact/{place.artifact('planned', 'plan')}"), "handled")
    shows_a_picture(page, wider_than=200)
    picture(page, f"plan-{ui.lower()}", height=1150)


def test_the_form_of_a_plan_asks_for_its_nodes(place: Place, ui: str, look: Look, picture: Picture) -> None:
    page = look(address(place, ui, f"/deployments/deployment/{place.ids['form']}/run"), "Parameters")
    page.get_by_text("What the plan does.").first.wait_for()
    picture(page, f"form-{ui.lower()}", height=1300)


def test_the_policy_is_a_form(place: Place, ui: str, look: Look, picture: Picture) -> None:
    page = look(address(place, ui, f"/blocks/block/{place.ids['block']}/edit"), "Resilience Policy")
    page.get_by_text("How the delays grow.").first.wait_for()
    for part in ("Retry", "Backoff", "Circuit"):
        page.get_by_text(f"{part} (Optional)", exact=True).first.wait_for()
    picture(page, f"policy-{ui.lower()}")


def test_the_automation_is_there(place: Place, ui: str, look: Look, picture: Picture) -> None:
    action = re.compile("run deployment", re.IGNORECASE)
    page = look(address(place, ui, "/automations"), "prefect-resilience: recover crashed runs", action)
    page.get_by_text(action).nth(2).wait_for()
    picture(page, f"automations-{ui.lower()}")
    page.get_by_role("link", name="prefect-resilience: recover crashed runs").first.click()
    page.wait_for_url(re.compile("/automations/automation/"))
    # The list has one for each automation, and V1 shows it until the page of this one is there.
    expect(page.get_by_text("Trigger", exact=True)).to_have_count(1, timeout=PATIENCE)
    page.get_by_text(action).first.wait_for()
    picture(page, f"automation-{ui.lower()}")


def test_the_event_feed_names_what_happened(place: Place, ui: str, look: Look, picture: Picture) -> None:
    names = ["prefect-resilience.fallback.used", "prefect-resilience.run.failed"]
    query = {"events": json.dumps(names)} if ui == "V2" else [("events", name) for name in names]
    # The feed of V2 ends at the last full minute.
    for _ in range(9):
        page = look(address(place, ui, f"/events?{urlencode(query)}"), "Event Feed")
        try:
            ours = page.get_by_text("prefect-resilience.fallback.used").first
            ours.wait_for(timeout=10_000)
            # The filter has the name, too: an event has more than that.
            page.get_by_text("Related Resources").first.wait_for(timeout=10_000)
            ours.evaluate("shown => shown.scrollIntoView({block: 'center'})")
            picture(page, f"events-{ui.lower()}")
            return
        except Exception as error:
            if "Timeout" not in type(error).__name__:
                raise
            page.close()
    raise AssertionError("the event feed shows nothing of ours")


FLOW = """
from prefect import flow, get_run_logger
from prefect.runtime import flow_run
from prefect_resilience import approve

@flow
def send_report(month: str) -> str:
    print(flow_run.id, flush=True)
    decision = approve(f"Send the report of {month}?", timeout="5m")
    return f"{decision.approved}, {decision.comment}"

print(send_report("May"), flush=True)
"""


@pytest.fixture
def asking(place: Place) -> Iterator[subprocess.Popen[str]]:
    """A flow run that asks, in a process of its own; its first line is its id."""
    run = subprocess.Popen(
        [sys.executable, "-c", FLOW],
        env=place.environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    yield run
    run.kill()
    run.communicate()


@pytest.mark.parametrize(("approved", "comment"), [(True, "looks right"), (True, None), (False, None)])
def test_the_form_is_filled_in_and_the_run_goes_on(
    place: Place,
    ui: str,
    asking: subprocess.Popen[str],
    look: Callable[..., Any],
    picture: Callable[..., None],
    approved: bool,
    comment: str | None,
) -> None:
    assert asking.stdout is not None
    run = asking.stdout.readline().strip()
    page = look(address(place, ui, f"/runs/flow-run/{run}"), "Paused")
    if ui == "V2":
        page.locator("button[aria-haspopup=menu]").first.click()
        page.get_by_role("menuitem", name="Resume").click()
    else:
        page.get_by_role("button", name="Resume").first.click()
    form = page.get_by_role("dialog") if ui == "V2" else page.locator(".p-modal")
    form.get_by_text("Send the report of May?").wait_for()
    if approved:
        form.get_by_role("switch").or_(form.locator(".p-toggle__control")).first.click()
    if comment:
        form.locator("textarea, input[type=text]").first.fill(comment)
        picture(page, f"approval-{ui.lower()}")
    form.get_by_role("button", name="Resume" if ui == "V2" else "Submit").click()
    assert asking.stdout.read().split("\n")[0] == f"{approved}, {comment}"
