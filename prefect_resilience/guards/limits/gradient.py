"""How `AdaptiveLimit` finds its number: the latency at one limit beside the latency at another.

Pure functions: `step` takes a state, one finished call and the time, and returns the next state.

Calls that wait inside the service make latency grow with the number of calls; calls that do not wait leave it
as it is (Little's law: calls in flight = throughput x latency). The limit grows while latency is near its
`base`, and is cut when latency is above it. Whether the base is right is tested by experiment: in each slot
of some seconds, a limit that is in use is reduced for a moment. If latency falls with it, calls were waiting:
the base was too high, and the lower limit stays. If it does not, nothing was waiting: the limit is restored,
also to what it was before an earlier cut, and the latency is the base.

The gradient of short-term against long-term latency is that of Netflix' concurrency-limits. The experiment
replaces the slow average as long-term latency, which follows a queue that stays. The processes of a fleet
have the same slots: one process among many would see no effect of its own reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, inf, log, log2, sqrt
from typing import NamedTuple

SAMPLES = 30
"""The fewest calls for a decision. A decision takes at least two calls for each place, too."""

MOST_TOLERANCE = 0.5
"""Latency may be `1 / sqrt(limit)` above the base, at most this share of it. Some calls must wait, or the
service would be idle. The share falls with the limit, so that in a fleet small limits grow and large ones
shrink until they are equal."""

ERRORS, LOWER_ERRORS = 2.0, 3.0
"""Latency differs from another one if it does so by this many standard errors. To lower the base it takes
more: of many windows, one is low by chance."""

MARGIN = 1.1
"""A cut needs a latency that is above the tolerated one by this factor, too."""

GROWTH, DECLINE = 0.8, 0.5
"""How much of the way to the aim a window takes, upward and downward."""

SEARCH = 1.5
"""The growth of each window until latency first rises."""

OUTLIER = 5.0
"""A call longer than this many times the base counts as that long."""

DEEPEST_CUT = 0.5
"""A cut for latency is at most to this share of the limit."""

DROPPED, DROP_CUT = 0.25, 0.95
"""The share of refusals and timeouts above which the limit is cut, as a part of the tolerance, and to what it
is cut. One alone never does."""

SLOT_SECONDS, SLOT_LATENCIES, SOON = 10.0, 16, 4
"""A slot has at least this many seconds, and is so many times as long as a call, to a power of two. After an
experiment in which calls were waiting, the next one begins within this part of a slot."""

PROBE = 0.65
"""The reduction in an experiment."""

FALLS = 0.6
"""Calls were waiting if latency falls by this share of the reduction; it is 1 if all waited, 0 if none."""

EXACT, MOST_CALLS = 0.07, 8
"""An experiment takes calls until the error of their latency is at most this share of it, but at most this
many times as many as another decision."""

SETTLE = 1.5
"""After a reduction, calls are not counted for this many times the latency: they began before it."""

PROVEN = 0.9
"""Without an experiment, the limit declines at most to this share of what the last one showed to be right."""

USED = 0.3
"""The share of calls that must have found every place taken before the limit grows."""

DRIFT = 0.2
"""How fast the base follows the latency while the limit is not in use."""


SHORTEST = 1e-6
"""A call takes at least so many seconds: a coarse clock may show none."""


class LimitBounds(NamedTuple):
    """The options of an `AdaptiveLimit`."""

    initial: int = 20
    minimum: int = 1
    maximum: int = 200


class Sample(NamedTuple):
    """A call that has ended. `full`: all places were taken. `dropped`: it failed with an overload."""

    latency: float
    full: bool
    dropped: bool = False


class CallWindow(NamedTuple):
    """Calls that ended since the last decision: their number, and sums over them."""

    calls: int = 0
    seconds: float = 0.0
    squares: float = 0.0
    full: int = 0
    dropped: int = 0

    @property
    def latency(self) -> float:
        return self.seconds / self.calls

    @property
    def error(self) -> float:
        """The standard error of the latency."""
        variance = max(self.squares / self.calls - self.latency**2, 0.0)
        return sqrt(variance / self.calls)

    @property
    def used(self) -> bool:
        return self.full >= USED * (self.calls + self.dropped)


class Level(NamedTuple):
    """A limit, and the latency while it held."""

    limit: float
    latency: float


class State(NamedTuple):
    """`limit` is the number, with its fraction; `places` rounds it.

    base: the latency without waiting in the service; 0 until it is known. recent: the latency at this limit;
    0 if it is not in use. begins: when the next window begins. probes: when the next experiment begins.
    trial: what was before the experiment that is going on. cut: what was before a cut that no experiment has
    tested. ceiling: where the service turned calls away. proven: the lowest limit without an experiment.
    """

    limit: float
    base: float = 0.0
    recent: float = 0.0
    window: CallWindow = CallWindow()
    begins: float = 0.0
    probes: float = 0.0
    trial: Level | None = None
    cut: Level | None = None
    ceiling: float = inf
    proven: float = 0.0
    searching: bool = True


def new(bounds: LimitBounds) -> State:
    """The state before the first call."""
    return State(float(bounds.initial))


def places(limit: float) -> int:
    """The number of concurrent calls."""
    return round(limit)


def within(state: State, bounds: LimitBounds) -> State:
    """The state after a change of the options."""
    return state._replace(limit=_within(bounds, state.limit))


def step(state: State, sample: Sample, now: float, bounds: LimitBounds) -> State:
    """The state after a call that ended at `now`, in seconds of a clock that the fleet shares."""
    if now < state.begins:
        return state
    # This is the path of nearly every call: no `_replace`, no `min` and `max`, which take longer.
    limit, base, recent, window, begins, probes, trial, cut, ceiling, proven, searching = state
    calls, seconds, squares, full, dropped = window
    latency, was_full, was_dropped = sample
    if was_dropped:
        window = CallWindow(calls, seconds, squares, full + was_full, dropped + 1)
        if dropped and dropped + 1 > DROPPED * _tolerance(limit) * max(calls + dropped + 1, SAMPLES):
            return _dropped(state, latency, now, bounds)
    else:
        if base and latency > OUTLIER * base:
            latency = OUTLIER * base
        elif latency < SHORTEST:
            latency = SHORTEST
        calls += 1
        window = CallWindow(calls, seconds + latency, squares + latency * latency, full + was_full, dropped)
        if recent and now >= probes and trial is None:
            return _probed(state, now, bounds)
        if calls >= SAMPLES and calls >= 2 * limit:
            if trial is None:
                return _judged(state, window, now, bounds)
            if _exact(state, window):
                return _concluded(state, trial, window, now, bounds)
    return State(limit, base, recent, window, begins, probes, trial, cut, ceiling, proven, searching)


def _dropped(state: State, latency: float, now: float, bounds: LimitBounds) -> State:
    return state._replace(
        limit=_within(bounds, state.limit * DROP_CUT),
        ceiling=state.limit,
        window=CallWindow(),
        begins=now + SETTLE * latency,
        trial=None,
        searching=False,
    )


def _judged(state: State, window: CallWindow, now: float, bounds: LimitBounds) -> State:
    latency, error = window.latency, window.error
    if not state.base:
        return state._replace(base=latency, window=CallWindow(), probes=_slot(now, latency))
    if not window.used or (latency > state.base and places(state.limit) <= bounds.minimum):
        base = state.base + DRIFT * (latency - state.base)
        return state._replace(base=base, recent=0.0, window=CallWindow())
    if latency + LOWER_ERRORS * error < state.base:
        state = state._replace(base=latency + error)
    recent = (state.recent + latency) / 2 if state.recent else latency
    state = state._replace(window=CallWindow(), recent=recent)
    aim = state.base * (1 + _tolerance(state.limit)) / latency
    if aim * (MARGIN + ERRORS * error / latency) < 1:
        return _cut(state, aim, latency - ERRORS * error, now, bounds)
    return _moved(state, aim, bounds)


def _cut(state: State, aim: float, latency: float, now: float, bounds: LimitBounds) -> State:
    """A second cut before an experiment only if latency rises further: the first one may have no effect."""
    if state.cut is not None and latency < state.cut.latency:
        return state
    return state._replace(
        limit=_within(bounds, state.limit * max(aim, DEEPEST_CUT)),
        cut=Level(state.limit if state.cut is None else state.cut.limit, state.recent),
        recent=0.0,
        begins=now + SETTLE * state.recent,
        searching=False,
    )


def _moved(state: State, aim: float, bounds: LimitBounds) -> State:
    limit, ceiling = state.limit, state.ceiling
    change = (aim - 1) * max(limit, 2.0)
    if change < 0:
        lowest = min(limit, state.proven)
        return state._replace(limit=max(limit + DECLINE * change, lowest), searching=False)
    if limit > 0.97 * ceiling:
        ceiling *= 1.1
    higher = limit * SEARCH if state.searching else limit + GROWTH * change
    return state._replace(
        limit=_within(bounds, min(higher, (limit + ceiling) / 2)), ceiling=ceiling, cut=None
    )


def _probed(state: State, now: float, bounds: LimitBounds) -> State:
    limit = _within(bounds, state.limit * PROBE)
    if places(limit) == places(state.limit):  # no lower number is allowed: nothing to compare
        return state._replace(probes=_slot(now, state.base))
    return state._replace(
        limit=limit,
        trial=Level(state.limit, state.recent),
        recent=0.0,
        window=CallWindow(),
        begins=now + SETTLE * state.recent,
        probes=_slot(now, state.base),
    )


def _exact(state: State, window: CallWindow) -> bool:
    """Whether the window can be compared with another one."""
    most = MOST_CALLS * max(SAMPLES, 2 * state.limit)
    return window.error <= EXACT * window.latency or window.calls >= most


def _concluded(state: State, trial: Level, window: CallWindow, now: float, bounds: LimitBounds) -> State:
    latency, before = window.latency, trial.limit
    state = state._replace(trial=None, window=CallWindow())
    if not window.used or latency - ERRORS * window.error > trial.latency * (1 + EXACT):
        return state._replace(limit=before)
    reduced = log(places(before) / places(state.limit))
    if log(trial.latency / latency) < FALLS * reduced:
        limit = before if state.cut is None else max(state.cut.limit, before)
        near = abs(latency - state.base) < ERRORS * window.error
        base = (state.base + latency) / 2 if near else latency
        return state._replace(limit=limit, base=base, proven=PROVEN * limit, cut=None)
    base = min(state.base, latency)
    limit = _within(bounds, max(state.limit, before * base / trial.latency))
    soon = _slot(now, state.base, SOON)
    return state._replace(
        limit=limit, base=base, proven=PROVEN * limit, cut=None, probes=soon, searching=False
    )


def _tolerance(limit: float) -> float:
    return min(1 / sqrt(limit), MOST_TOLERANCE)


def _slot(now: float, latency: float, part: int = 1) -> float:
    """When the next slot, or the next part of a slot, begins."""
    longer = max(0, ceil(log2(SLOT_LATENCIES * latency / SLOT_SECONDS)))
    length = SLOT_SECONDS * 2**longer / part
    return (floor(now / length) + 1) * length


def _within(bounds: LimitBounds, limit: float) -> float:
    return min(max(limit, float(bounds.minimum)), float(bounds.maximum))


class Share(NamedTuple):
    """What another process of the fleet has found: its limit, and its base; 0 if it is not known."""

    limit: float
    base: float


MEETS = 0.5
"""How far a process goes to the mean of the fleet at each look."""


def met(state: State, others: Sequence[Share], bounds: LimitBounds) -> State:
    """The state after a look at other processes: the limits become equal, and their sum stays.

    A base that is lower in most other processes is right: the own one includes calls that wait.
    """
    known = [share for share in others if share.base and share.limit]
    if not known or not state.base or state.trial is not None:
        return state
    mean = (state.limit + sum(share.limit for share in known)) / (len(known) + 1)
    limit = _within(bounds, state.limit + MEETS * (mean - state.limit))
    base = min(state.base, sorted(share.base for share in known)[len(known) // 2])
    return state._replace(limit=limit, base=base, proven=state.proven * limit / state.limit)
