"""A batch runs again: by a button, with changed code, and in two processes at once."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from prefect import flow, get_client, resume_flow_run, suspend_flow_run
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import Pause
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_API_URL, PREFECT_LOGGING_LEVEL, temporary_settings
from prefect.states import Pending

from prefect_resilience import InDoubt, resilient, resilient_task, settle
from prefect_resilience.effects import Effect, batch, batch_status, send_idempotency_key
from tests.durable.effects.receiver import Receiver

pytestmark = pytest.mark.api


# What the buttons of the two UIs send, as it stands in their code.
BUTTONS: list[dict[str, Any]] = [
    {"state": {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retry from the UI"}, "force": force}
    for force in (False, True)
]


@pytest.mark.requirement("004.14")
def test_pressed_until_the_run_succeeds_it_sends_everything_once(
    receiver: Receiver, post: Callable[..., str], shared: str, client: SyncPrefectClient
) -> None:
    starts: list[int] = []

    @resilient_task(effect=Effect(key="{batch_id}.{order}"), retry=None)
    def send(order: int) -> str:
        return post()

    @flow
    def part(order: int) -> str:
        return send(order)

    @flow(retries=1, retry_delay_seconds=0, persist_result=False)
    def invoices() -> list[str]:
        sent = [send(1), *send.map([2, 3]).result(), part(4)]
        starts.append(len(sent))
        if len(starts) < 4:
            raise RuntimeError("after four of them")
        return [*sent, send(5)]

    deployment_id = invoices.to_deployment("button").apply()
    run = client.create_flow_run_from_deployment(deployment_id)
    keys = [f"{run.id}.{order}" for order in range(1, 6)]
    run_flow(invoices, flow_run=run, return_type="state")
    for button in BUTTONS:
        assert client.read_flow_run(run.id).state.is_failed()
        assert receiver.taken == dict.fromkeys(keys[:4], 1)
        pressed = client.request("POST", f"/flow_runs/{run.id}/set_state", json=button)
        assert pressed.json()["status"] == "ACCEPT"
        run_flow(invoices, flow_run=client.read_flow_run(run.id), return_type="state")
    ended = client.read_flow_run(run.id)
    assert ended.state.is_completed()
    assert ended.run_count == 4
    assert receiver.taken == dict.fromkeys(keys, 1)
    attempts = {effect.key: effect.attempts for effect in batch_status(str(run.id)).effects}
    assert attempts == dict.fromkeys(keys, 1)


SENT: list[str] = []


@resilient_task(effect=Effect(key="task:{order}"), persist_result=False)
def send(order: int) -> str:
    SENT.append(f"task:{order}")
    return SENT[-1]


@resilient(effect=Effect(key="call:{order}"))
def call(order: int) -> str:
    SENT.append(f"call:{order}")
    return SENT[-1]


@flow(persist_result=False)
def inner() -> str:
    return send(2)


@flow(persist_result=False)
def bill() -> list[str]:
    done = [send(1), call(1), inner()]
    for number in range(2):
        suspend_flow_run(timeout=300, key=f"wait-{number}")
    return [*done, send(3)]


def test_a_run_that_is_suspended_and_resumed_replays(shared):
    deployment = bill.to_deployment(name="suspended").apply()
    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(deployment)
        for _ in range(2):
            with pytest.raises(Pause):
                run_flow(bill, flow_run=client.read_flow_run(run.id))
            resume_flow_run(run.id)
        state = run_flow(bill, flow_run=client.read_flow_run(run.id), return_type="state")
    assert state.name == "Completed"
    assert SENT == ["task:1", "call:1", "task:2", "task:3"]
    assert {one.state for one in batch_status(str(run.id)).effects} == {"done"}


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


ORDERS = 5
context = get_context("forkserver")
context.set_forkserver_preload([__name__, "prefect_resilience.stores.sqlite"])


def run(url: str, store: str, api: str, answers: Connection) -> None:
    """The life of one of them: ready, go, and what became of each order."""
    os.environ["PREFECT_RESILIENCE_STORE_URL"] = store

    @resilient_task(effect=Effect(key="order:{order}"), retry=None)
    def send(order: int) -> str:
        with httpx.Client(event_hooks={"request": [send_idempotency_key]}, timeout=20) as client:
            return client.post(url).json()["id"]

    @flow
    def invoices() -> list[Any]:
        answers.send("ready")
        answers.recv()
        with batch("both"):
            states = [send(order, return_state=True) for order in range(ORDERS)]
        return [(state.name, state.result()) for state in states]

    with temporary_settings({PREFECT_API_URL: api, PREFECT_LOGGING_LEVEL: "CRITICAL"}):
        answers.send(invoices())


@pytest.mark.timeout(300)
def test_each_is_sent_once_and_both_get_what_came_of_it(shared: str, receiver: Receiver, api: str) -> None:
    pipes: list[Connection] = []
    for _ in range(2):
        ours, theirs = context.Pipe()
        context.Process(target=run, args=(receiver.url, shared, api, theirs), daemon=True).start()
        pipes.append(ours)
    assert [pipe.recv() for pipe in pipes] == ["ready", "ready"]
    for pipe in pipes:
        pipe.send("go")
    told = [pipe.recv() for pipe in pipes]
    assert receiver.taken == {f"order:{order}": 1 for order in range(ORDERS)}
    for outcomes in zip(*told, strict=True):
        assert sorted(name for name, _ in outcomes) == ["Completed", "Replayed"]
        assert len({result for _, result in outcomes}) == 1
    assert [(one.state, one.attempts) for one in batch_status("both").effects] == [("done", 1)] * ORDERS
