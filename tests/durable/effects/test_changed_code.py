"""A deploy between a crash and the retry: what was sent is not sent again, whatever became of the code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import Pause
from prefect.flow_engine import run_flow
from prefect.states import Pending

from prefect_resilience import InDoubt, settle
from prefect_resilience.effects import batch, batch_status
from tests.durable.effects.receiver import Receiver

pytestmark = pytest.mark.api

BEFORE = """
import httpx
from prefect import flow
from prefect_resilience import Effect, Retry, resilient_task, send_idempotency_key

@resilient_task(effect="external", retry=None)
def pay(order):
    with httpx.Client(event_hooks={"request": [send_idempotency_key]}) as client:
        return client.post(URL).json()["id"]

@flow(name="billing")
def bill(orders):
    return [pay(order) for order in orders]
"""


@pytest.fixture
def deploy(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Writes the code of a module, and loads it in place of what was there before."""
    monkeypatch.syspath_prepend(str(tmp_path))
    written: list[tuple[str, Path]] = []

    def deploy(text: str, name: str = "billing_of_ours") -> ModuleType:
        for known, file in written:
            sys.modules.pop(known, None)
            file.unlink(missing_ok=True)
        file = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"URL = {receiver.url!r}\n{text}")
        written.append((name, file))
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield deploy
    for known, _ in written:
        sys.modules.pop(known, None)


def change(*pairs: tuple[str, str]) -> str:
    text = BEFORE
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


def passed(module: ModuleType, *orders: Any) -> list[str]:
    with batch("b"):
        return module.bill(list(orders))


RENAMED = change(("def pay(", "def charge("), ("[pay(", "[charge("))
TYPED = change(("pay(order) for", "pay(str(order)) for"))
NEEDED = change(("def pay(order)", "def pay(order, currency)"), ("pay(order) for", 'pay(order, "EUR") for'))
KEYED = change(('effect="external"', 'effect=Effect(key="pay:{order}")'))


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        (
            RENAMED,
            "billing_of_ours",
            r"'billing_of_ours.pay'.*no longer in the code.*was=\"billing_of_ours.pay\"",
        ),
        (BEFORE, "moved.billing_of_ours", r"no longer in the code.*was=\"billing_of_ours.pay\""),
        (TYPED, "billing_of_ours", r"order was int and is str"),
        (NEEDED, "billing_of_ours", r"new parameter 'currency'"),
        (KEYED, "billing_of_ours", r"its key was a digest and is pay:\{order\}"),
    ],
)
def test_what_was_sent_is_not_sent_under_another_name_and_was_goes_on(deploy, receiver, text, name, says):
    first = passed(deploy(BEFORE), 1, 2)
    with pytest.raises(InDoubt, match=f"(?s){says}"):
        passed(deploy(text, name), 1)
    assert sum(receiver.taken.values()) == 2
    was = 'was="billing_of_ours.pay"'
    going_on = text.replace('effect="external"', f"effect=Effect({was})")
    going_on = going_on.replace('{order}")', f'{{order}}", {was})')
    assert passed(deploy(going_on, name), 1, 2, 3)[:2] == first
    assert sum(receiver.taken.values()) == 3
    # A person knows of the recorded ones: what is asked for now is another effect.
    for one in batch_status("b").effects:
        settle("b", one.key, "done")
    passed(deploy(text, name), 1)
    assert sum(receiver.taken.values()) == 4


def test_a_parameter_with_a_default_changes_nothing(deploy, receiver):
    first = passed(deploy(BEFORE), 1, 2)
    added = change(("def pay(order)", "def pay(order, note=None)"))
    assert passed(deploy(added), 1, 2, 3)[:2] == first
    assert sum(receiver.taken.values()) == 3


PARKS = """
import httpx
from prefect_resilience import Retry, resilient_flow, resilient_task, send_idempotency_key

class Busy(Exception):
    status_code, retry_after = 503, 3_600.0

@resilient_task(effect="external", retry=None)
def pay(order):
    with httpx.Client(event_hooks={"request": [send_idempotency_key]}) as client:
        return client.post(URL).json()["id"]

@resilient_flow(name="pays and parks", retry=Retry(park_after="1m"))
def bill():
    paid = pay(7)
    raise Busy("in an hour")
"""


def run_pass(module: ModuleType, run: FlowRun) -> Any:
    """What the process of a worker does with the run."""
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run.id, Pending(), force=True)
        return run_flow(module.bill, flow_run=client.read_flow_run(run.id))


def test_new_code_while_the_run_was_parked(deploy, receiver):
    new = PARKS.replace('raise Busy("in an hour")', 'return "the new code", paid == "m-" + str(KEY)')
    module = deploy(PARKS)
    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(module.bill.to_deployment("d").apply())
    with pytest.raises(Pause):
        run_pass(module, run)
    with pytest.raises(InDoubt, match=r"'billing_of_ours.pay'.*no longer in the code"):
        run_pass(deploy(new.replace("pay(", "charge(")), run)
    (key,) = receiver.taken
    assert run_pass(deploy(f"KEY = {key!r}\n{new}"), run) == ("the new code", True)
    assert [*receiver.taken.values()] == [1]
