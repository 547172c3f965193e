"""Every order of events, with two owners who die or seem to at any moment: nothing external is done twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from prefect_resilience.effects.model import (
    Ask,
    Doubted,
    Failed,
    Intend,
    Look,
    Replay,
    Send,
    Succeeded,
    Verified,
    decide,
)
from prefect_resilience.effects.policy import Done, NotDone

ATTEMPTS = 4
"""How many runs there are in all; two of them go on at a time."""


@dataclass(frozen=True)
class Run:
    """One attempt: where it is, and whether it looks dead though it is not (its lease ran out)."""

    claim: str
    phase: str = "look"
    paused: bool = False


@dataclass(frozen=True)
class World:
    document: str
    runs: tuple[Run, ...]
    received: int
    """How often the receiver did it."""
    begun: int
    replayed: bool = False

    @property
    def effect(self):
        return json.loads(self.document)

    def with_run(self, run: Run, **changes) -> World:
        others = tuple(one for one in self.runs if one.claim != run.claim)
        return replace(self, runs=(*others, run), **changes)

    def without(self, run: Run, **changes) -> World:
        return replace(self, runs=tuple(one for one in self.runs if one != run), **changes)


def alive(world: World) -> bool:
    effect = world.effect
    if effect is None:
        return False
    return any(run.claim == effect["claim"] and not run.paused for run in world.runs)


def stepped(world: World, event) -> tuple[World, object]:
    effect, decision = decide(world.effect, event, 0.0)
    return replace(world, document=json.dumps(effect, sort_keys=True)), decision


def moves(world: World, *, verify: bool, kind: str) -> Iterator[World]:
    """Every world that may come next."""
    if len(world.runs) < 2 and world.begun < ATTEMPTS:
        yield replace(world, runs=(*world.runs, Run(f"c{world.begun}")), begun=world.begun + 1)
    for run in world.runs:
        yield world.without(run)  # kill -9
        if not run.paused:
            yield world.with_run(replace(run, paused=True))
        yield from progress(world, run, verify=verify, kind=kind)


def progress(world: World, run: Run, *, verify: bool, kind: str) -> Iterator[World]:
    if run.phase in ("look", "intend"):
        despite = kind != "external"
        event = (
            Look(alive(world))
            if run.phase == "look"
            else Intend("owner", run.claim, alive(world), kind, despite_doubt=despite)
        )
        after, decision = stepped(world, event)
        if isinstance(decision, Send):
            yield after.with_run(replace(run, phase="intend" if run.phase == "look" else "call"))
        elif isinstance(decision, Replay):
            yield after.without(run, replayed=True)
        elif isinstance(decision, Ask):
            yield from asked(after, run, decision, verify=verify, kind=kind)
        else:
            yield after.with_run(replace(run, phase="look"))
    elif run.phase == "call":
        arrived = world.received + 1
        yield world.with_run(replace(run, phase="came back"), received=arrived)
        yield world.with_run(replace(run, phase="lost"), received=arrived)
        yield world.with_run(replace(run, phase="lost"))
        yield world.with_run(replace(run, phase="refused"))
    else:
        said = {
            "came back": Succeeded(run.claim, 1),
            "lost": Doubted(run.claim),
            "refused": Failed(run.claim),
        }
        after, _ = stepped(world, said[run.phase])
        yield after.without(run)


def asked(world: World, run: Run, decision: Ask, *, verify: bool, kind: str) -> Iterator[World]:
    if not verify:
        yield world.with_run(replace(run, phase="intend")) if kind != "external" else world.without(run)
        return
    # The receiver tells the truth, and says "not done" only when no earlier call is still under way.
    under_way = any(one.phase == "call" for one in world.runs if one.claim != run.claim)
    if under_way:
        yield world.without(run)
        return
    answer = Done(1) if world.received else NotDone()
    after, _ = stepped(world, Verified(decision.claim, answer))
    yield after.with_run(replace(run, phase="look"))


def explore(**how) -> list[World]:
    first = World("null", (), 0, 0)
    seen, waiting = {first}, [first]
    while waiting:
        world = waiting.pop()
        for after in moves(world, **how):
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return list(seen)


@pytest.mark.parametrize("verify", [False, True])
def test_an_external_effect_is_never_done_twice(verify):
    worlds = explore(verify=verify, kind="external")
    assert len(worlds) > 1_000
    assert max(world.received for world in worlds) == 1
    for world in worlds:
        if world.effect is not None and world.effect["state"] == "done":
            assert world.received == 1, world
        if world.replayed:
            assert world.received == 1
    assert any(world.replayed for world in worlds)


def test_without_verify_a_doubt_waits_for_a_person():
    for world in explore(verify=False, kind="external"):
        effect = world.effect
        if effect is not None and effect["state"] == "unknown" and world.received == 0:
            assert not any(run.phase == "call" for run in world.runs if run.claim != effect["claim"])


def test_a_conditional_effect_is_done_again_after_a_doubt_and_replayed_when_it_is_done():
    worlds = explore(verify=False, kind="conditional")
    assert max(world.received for world in worlds) > 1
    assert any(world.replayed for world in worlds)
