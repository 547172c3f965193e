"""A person approves in Prefect's UI, by the form that `approve` has put there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.ui.conftest import ROOT, Place
from tests.ui.test_pages import address

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

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


@pytest.fixture(params=["V2", "V1"])
def ui(request: pytest.FixtureRequest) -> str:
    return str(request.param)


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
