"""How the processes of a fleet divide the number of an adaptive limit: pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log
from typing import NamedTuple

from prefect_resilience.guards.limits.gradient import GROWTH, SURE, LimitBounds, State, within_bounds
from prefect_resilience.guards.limits.knee import Level


class Share(NamedTuple):
    """What another process of the fleet has found: the number of the whole fleet, and the base; 0 if it is
    not known."""

    fleet: float
    base: float


MEETS = 0.25
"""How far a process goes to the mean of the fleet at each look."""


def fleet_of(state: State) -> float:
    """The number of the whole fleet, as this process sees it."""
    return state.center * state.processes


def met(state: State, others: Sequence[Share], processes: int, offset: float, bounds: LimitBounds) -> State:
    """The state after a look at the other processes. All have an equal share of the number of the fleet,
    which is the mean of what they have found; a process that has found nothing yet takes that of the
    others."""
    own, known = fleet_of(state), [share.fleet for share in others if share.base and share.fleet]
    if known:
        mean = (own * bool(state.base) + sum(known)) / (len(known) + bool(state.base))
        own = own + MEETS * (mean - own) if state.base else mean
    changed = own / processes / state.center
    limit = within_bounds(bounds, round(state.limit * changed * processes) / processes)
    levels = tuple(one._replace(limit=one.limit + log(changed)) for one in state.levels)
    fit = state.fit._replace(knee=state.fit.knee + log(changed)) if state.fit else None
    state = state._replace(limit=limit, center=within_bounds(bounds, own / processes), levels=levels, fit=fit)
    if known and not state.base:
        base = sorted(share.base for share in others if share.base)[len(known) // 2]
        state = state._replace(base=base, levels=(Level(-inf, log(base), SURE),), pace=GROWTH)
    return state._replace(processes=processes, offset=offset)
