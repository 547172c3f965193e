"""Breadth first through every state of the ledger's protocol, and what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.durable.effects.ledger_protocol import ENDS, SUCCESSES, Setup, State, first, moves


@dataclass
class Found:
    """Every state under a setup. `wrong`: the first law that is broken, with the shortest way to it."""

    states: int = 0
    moves: int = 0
    ends: frozenset[str] = frozenset()
    wrong: str | None = None
    trace: tuple[str, ...] = ()


def unsafe(state: State, setup: Setup) -> str | None:
    """What a state breaks."""
    if setup.kind == "external" and state.received > 1:
        return "received twice"
    if not state.received and any(one.phase in SUCCESSES for one in state.askers):
        return "a success that was never received"
    return None


def explore(setup: Setup, most: int = 400_000) -> Found:
    """Every state, breadth first; then: do all askers come to an end when no more goes wrong?"""
    numbers: dict[State, int] = {first(setup): 0}
    states, parents = [first(setup)], [(0, "at first")]
    calm: list[list[int]] = []
    found, ends = Found(), set[str]()
    at = 0
    while at < len(states):
        calm.append([])
        for move in moves(states[at], setup):
            found.moves += 1
            number = numbers.get(move.state)
            if number is None:
                number = numbers[move.state] = len(states)
                assert number < most, "more states than were asked for: nothing is proved"
                states.append(move.state)
                parents.append((at, move.label))
                ends.update(one.phase for one in move.state.askers if one.phase in ENDS)
                if (wrong := unsafe(move.state, setup)) is not None:
                    return replace(found, states=len(states), wrong=wrong, trace=_trace(parents, number))
            if not move.fault:
                calm[at].append(number)
        at += 1
    found.states, found.ends = len(states), frozenset(ends)
    stuck = next((n for n, nexts in enumerate(calm) if not nexts and not _ended(states[n])), None)
    if stuck is None:
        stuck = _circling(calm)
    if stuck is not None:
        found.wrong, found.trace = "stuck", (*_trace(parents, stuck), str(states[stuck]))
    return found


def _ended(state: State) -> bool:
    return all(one.phase in ENDS for one in state.askers) and not state.overdue


def _circling(graph: list[list[int]]) -> int | None:
    """A state on a circle of moves without a fault; None: every way comes to its end, within as many steps as
    there are states."""
    back: list[list[int]] = [[] for _ in graph]
    left = [len(nexts) for nexts in graph]
    for at, nexts in enumerate(graph):
        for number in nexts:
            back[number].append(at)
    done = [at for at, number in enumerate(left) if number == 0]
    for number in done:
        for before in back[number]:
            left[before] -= 1
            if left[before] == 0:
                done.append(before)
    return next((at for at, number in enumerate(left) if number), None)


def _trace(parents: list[tuple[int, str]], number: int) -> tuple[str, ...]:
    labels: list[str] = []
    while number:
        number, label = parents[number]
        labels.append(label)
    return tuple(labels[::-1])
