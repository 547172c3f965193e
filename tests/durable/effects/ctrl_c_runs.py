"""Ctrl-C at some lines of a sync call with every guard, in a process that no other test shares.

    python -m tests.durable.effects.ctrl_c_runs World|WithoutVerify returns|fails FIRST STEP

It strikes at every STEP-th line from the FIRST on, checks what each strike leaves, and prints how many there
were. A tracer and a signal handler would disturb what else runs in the process, a coverage tool among it.
"""

from __future__ import annotations

import os
import sys
from uuid import uuid4

from prefect_resilience import Effect, InDoubt
from prefect_resilience.durable.effects import owner
from prefect_resilience.durable.effects.ledger import open_ledger
from tests.durable.effects.ctrl_c import CtrlC
from tests.durable.effects.interrupted import World


class WithoutVerify(World):
    def options(self):
        return {**super().options(), "effect": Effect(key="pay:{order}")}


def strike(kind: type[World], outcome: str, at: int) -> str | None:
    """Ctrl-C at one line, what it leaves, and a later pass. Returns the line; None if there are fewer."""
    url = f"memory://{uuid4().hex}"
    os.environ["PREFECT_RESILIENCE_STORE_URL"] = url
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
    assert states.get("pay:7") != "intended", ctrl_c.line  # without one, the circuit rejected the later call
    return ctrl_c.line


def lines(kind: type[World], outcome: str, first: int, step: int) -> int:
    number, at = 0, first
    while strike(kind, outcome, at) is not None:
        number, at = number + 1, at + step
    return number


def main() -> None:
    kind, outcome, first, step = sys.argv[1:]
    owner.TICK_SECONDS = 0.02
    print(lines({"World": World, "WithoutVerify": WithoutVerify}[kind], outcome, int(first), int(step)))


if __name__ == "__main__":
    main()
