"""Pages with commands of this package and their outputs; for the handbook, in the middle of trouble."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import flow

from prefect_resilience import CircuitBreaker, Effect, batch, batch_status, resilient_task
from prefect_resilience.graphs.plans.actions import REGISTERED
from prefect_resilience.guards.circuits.registry import flush_all
from tests.docs.pages import DOCS, commands
from tests.docs.reading import Reader

pytestmark = [pytest.mark.api, pytest.mark.docs]

HANDBOOK = DOCS / "handbook.md"


@pytest.fixture
def reader(prefect_api: None, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(REGISTERED, "_known", dict(REGISTERED._known))
    before = set(sys.modules)
    yield Reader(tmp_path, cli)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", ["howto/adopt.md", "howto/write_a_plan.md"])
def test_the_page_prints_what_it_shows(page: str, reader: Reader) -> None:
    reader.follow(DOCS / page)
    assert reader.compared > 1


@resilient_task(effect=Effect(key="invoice:{order}"), retry=None)
def send_invoice(order: int) -> None:
    if order > 6:
        raise TimeoutError("no answer in time")


@resilient_task(name="send-reminder", retry=None, dead_letter=True)
def send_reminder(order: int) -> None:
    raise ConnectionError("connection refused by the mail server")


@resilient_task(circuit=CircuitBreaker("labels", failure_threshold=3), retry=None)
def label(drug: str) -> None:
    raise ConnectionError("the label service is down")


@flow
def billing() -> None:
    for order in (6, 7, 8):
        send_invoice(order, return_state=True)


@flow
def reminding() -> None:
    for order in (7, 8):
        send_reminder(order, return_state=True)


@flow
def labelling() -> None:
    for drug in ("aspirin", "caffeine", "ibuprofen"):
        label(drug, return_state=True)


def test_the_handbook_shows_what_an_operator_sees(reader: Reader) -> None:
    with batch("invoices-2026-11"):
        billing()
    reminding()
    labelling()
    flush_all()
    reader.follow(HANDBOOK, code=False)
    assert reader.compared == 6
    for line in commands(HANDBOOK):
        if " settle " in line:
            reader.type(line)
    states = {effect.key: effect.state for effect in batch_status("invoices-2026-11").effects}
    assert states == {"invoice:6": "done", "invoice:7": "done", "invoice:8": "failed"}
