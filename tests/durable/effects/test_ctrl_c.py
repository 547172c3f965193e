"""Ctrl-C at each line of a sync call with every guard: nothing stays busy, nothing is sent twice."""

from __future__ import annotations

import sys
from uuid import uuid4

import pytest

from prefect_resilience import Effect, InDoubt
from prefect_resilience.durable.effects import owner
from prefect_resilience.durable.effects.ledger import open_ledger
from tests.durable.effects.ctrl_c import CtrlC
from tests.durable.effects.interrupted import World

pytestmark = pytest.mark.skipif(sys.implementation.name != "cpython", reason="strikes through CPython's API")

PARTS = 8


@pytest.fixture(autouse=True)
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "TICK_SECONDS", 0.02)


class WithoutVerify(World):
    def options(self):
        return {**super().options(), "effect": Effect(key="pay:{order}")}


def strike(kind: type[World], outcome: str, at: int, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Ctrl-C at one line, what it leaves, and a later pass. Returns the line; None if there are fewer."""
    url = f"memory://{uuid4().hex}"
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", url)
    world = kind(url, f"ctrl-c-{outcome}-{at}", outcome)
    ctrl_c = CtrlC(at)
    error = ctrl_c.during(world.synchronous())
    if ctrl_c.line is None:
        return None
    # After the last lines there is no call any more in which the signal could strike.
    assert error is None or isinstance(error, KeyboardInterrupt | InDoubt | ConnectionError), ctrl_c.line
    world.is_handed_over()
    world.comes_to_rest()
    before = len(world.sent)
    try:
        world.synchronous()()
    except InDoubt:
        assert kind is WithoutVerify
    assert len(world.sent) <= 1, (ctrl_c.line, before)
    if kind is World:
        assert world.sent or world.answered
    states = {one["key"]: one["state"] for one, _ in open_ledger(url).effects(world.name)}
    assert states["pay:7"] != "intended", ctrl_c.line
    return ctrl_c.line


def lines(kind: type[World], outcome: str, monkeypatch: pytest.MonkeyPatch, first: int, step: int) -> int:
    number, at = 0, first
    while strike(kind, outcome, at, monkeypatch) is not None:
        number, at = number + 1, at + step
    return number


@pytest.mark.parametrize("kind", [World, WithoutVerify])
def test_ctrl_c_at_some_lines(kind, monkeypatch):
    assert lines(kind, "returns", monkeypatch, 1, 40) > 20


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("outcome", ["returns", "fails"])
@pytest.mark.parametrize("kind", [World, WithoutVerify])
def test_ctrl_c_at_each_line(kind, outcome, part, monkeypatch):
    assert lines(kind, outcome, monkeypatch, 1 + part, PARTS) > 100
