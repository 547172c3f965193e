"""How an adaptive limit finds its number: the latency at one limit beside the latency at another.

`Finding` counts the calls that end; after some of them, `decided` takes a state and what was counted, and
returns the next state. Only pure functions decide.

Calls that wait inside the service make latency grow with the number of calls; calls that do not wait leave it
as it is (Little's law: calls in flight = throughput x latency). So latency over the limit has a knee at the
right number. The limit alternates between a part above the knee and one near it, so that latency shows where
the knee is. While there is none, the limit grows. If latency is not what was expected at this limit, the
service has changed, and earlier measurements count little.

Netflix' concurrency-limits and failsafe-go compare latency with a slow average of itself, which follows a
queue that stays. Envoy measures the latency of a nearly empty service from time to time, at the cost of
throughput.
"""

from __future__ import annotations

from math import ceil, exp, inf, log, sqrt
from typing import NamedTuple

from prefect_resilience.guards.limits.knee import Fit, Level, fitted

SAMPLES = 30
"""The fewest calls for a decision. A decision takes at least one call for each place, too."""

SECONDS = 0.5
"""A decision takes calls of at least this time."""

EXACT, MOST_CALLS = 0.1, 4
"""A decision takes calls until the standard error of their latency is at most this part of it, but at most
this many times the fewest."""

CONTRAST, LEAST_HIGH, MOST_HIGH, LOW = 7.0, 0.1, 0.25, 0.4
"""In use, the limit alternates between two parts of the number that is found: latency shows whether the
number is still right. The high one is above it by so many standard errors of a latency, within these bounds;
the low one by this share of that."""

GROWTH, FASTEST = 1.25, 1.5
"""The growth of a window while no call waits: the first time, and at most."""

DEEPEST_CUT = 0.5
"""A reduction is at most to this share of the limit."""

ERRORS, LOWER_ERRORS = 3.0, 2.0
"""Latency has changed if it differs from what was expected by this many standard errors; the second number is
for calls that were expected to wait and do not."""

UNSURE = 0.04
"""The standard error of what is expected, in parts of it."""

ALARM = 1.35
"""Latency that is above what was expected by this factor is a reason not to wait for the end of a window."""

BIAS = 1.5
"""How much better the other explanation must be, in squared standard errors, before the first one is given
up: that no call waits, or that some do."""

NEAR, FAR = 0.07, 0.17
"""A limit shows that no call waits below the knee, or that calls wait above it, if it differs from the
knee by more than these logarithms."""

DEEP, KNOWN = 0.8, 12.0
"""If fewer calls than this count for limits where nothing waits, the next low part is this one."""

STEEP = 1.3
"""A high part above this is left out while enough calls count for limits where calls wait."""

FADES, LEVELS = 0.85, 12
"""How much a window counts after the next one, and how many are remembered."""

FASTER = 0.75
"""Below this part of the base, the service has become faster; above it, it takes more calls at a time."""

SURE, HINT = 30.0, 8.0
"""For how many calls an earlier base counts in a service that takes more calls, and in one that is slower."""

OUTLIER = 5.0
"""A call longer than this many times the base counts as that long."""

DROPPED, DEEPEST_DROP = 0.04, 0.7
"""The limit is cut if more than this share of calls are refused or time out: by the share of places that they
take, at most to this part."""

CEILING = 1.1
"""The growth of a window without a refusal, where the service has turned calls away before."""

SETTLE = 1.2
"""After a change, calls are not counted for this many times the latency: they began before it."""

USED = 0.7
"""The share of calls that must have found every place taken before the limit changes."""

DRIFT = 0.2
"""How fast the base follows the latency while the limit is not in use."""

SHORTEST = 1e-6
"""A call takes at least so many seconds: a coarse clock may show none."""


class LimitBounds(NamedTuple):
    """The options of an `AdaptiveLimit`."""

    initial: int = 20
    minimum: int = 1
    maximum: int = 200


class CallWindow(NamedTuple):
    """Calls that ended since the last decision: their number, and sums over them. `dropped` calls failed
    with an overload; they are not among `calls`. `full`: how many found every place taken. `lost`: the
    seconds of the dropped calls."""

    calls: int = 0
    seconds: float = 0.0
    squares: float = 0.0
    full: int = 0
    dropped: int = 0
    lost: float = 0.0

    @property
    def latency(self) -> float:
        return self.seconds / self.calls

    @property
    def error(self) -> float:
        """The standard error of the latency, in parts of it."""
        variance = max(self.squares / self.calls - self.latency**2, 0.0)
        return sqrt(variance / self.calls) / self.latency

    @property
    def used(self) -> bool:
        return self.full >= USED * (self.calls + self.dropped)


class State(NamedTuple):
    """`limit` is the number now; `center` the one that is found. base: the latency without waiting in the
    service; 0 until it is known. levels: what was measured, the newest first. begins: when the next window
    begins; ends: and when it ends, at the earliest. ceiling: where the service turned calls away. pace:
    the next growth. high: whether this is the high part, which is above the center by the share `spread`.
    confirmed: whether a lower limit has shown the base.
    """

    limit: float
    center: float
    base: float = 0.0
    levels: tuple[Level, ...] = ()
    fit: Fit | None = None
    begins: float = 0.0
    ends: float = 0.0
    ceiling: float = inf
    pace: float = FASTEST
    high: bool = False
    spread: float = MOST_HIGH
    confirmed: bool = False


def new(bounds: LimitBounds) -> State:
    """The state before the first call."""
    return State(float(bounds.initial), float(bounds.initial))


def places(state: State) -> int:
    """The number of concurrent calls."""
    return round(state.limit)


def within(state: State, bounds: LimitBounds) -> State:
    """The state after a change of the options."""
    return state._replace(
        limit=within_bounds(bounds, state.limit), center=within_bounds(bounds, state.center)
    )


class Finding:
    """A limit in use: its state, and the calls since the last decision. Not for several threads at once."""

    __slots__ = (
        "bounds",
        "calls",
        "dropped",
        "due",
        "full",
        "longest",
        "lost",
        "seconds",
        "squares",
        "state",
    )

    def __init__(self, bounds: LimitBounds) -> None:
        self.bounds: LimitBounds = bounds
        self.become(new(bounds))

    def become(self, state: State) -> None:
        """Begin a new window in this state."""
        self.state: State = state
        self.calls: int = 0
        self.full: int = 0
        self.dropped: int = 0
        self.seconds: float = 0.0
        self.squares: float = 0.0
        self.lost: float = 0.0
        self.due: int = _due(state)
        self.longest: float = OUTLIER * state.base or inf

    def ended(self, latency: float, full: bool, dropped: bool, now: float) -> bool:
        """Count a call that ended at `now`, in seconds. `full`: all places were taken. `dropped`: it failed
        with an overload. Returns whether the state is another one."""
        state = self.state
        if now < state.begins:
            return False
        self.full += full
        if dropped:
            self.dropped += 1
            self.lost += latency
            ended = self.calls + self.dropped
            if ended < SAMPLES or self.dropped <= DROPPED * ended:
                return False
            self.become(_dropped(state, self.window, latency, now, self.bounds))
            return True
        if latency > self.longest:
            latency = self.longest
        elif latency < SHORTEST:
            latency = SHORTEST
        self.calls += 1
        self.seconds += latency
        self.squares += latency * latency
        if self.calls < self.due:
            return False
        after = decided(state, self.window, now, self.bounds)
        if after is None:
            self.due = self.calls + max(SAMPLES // 2, self.calls // 4)
            return False
        self.become(after)
        return True

    @property
    def window(self) -> CallWindow:
        """The calls since the last decision."""
        return CallWindow(self.calls, self.seconds, self.squares, self.full, self.dropped, self.lost)


def _due(state: State) -> int:
    """How many calls the next decision takes at least."""
    return max(SAMPLES, ceil(state.limit))


def decided(state: State, window: CallWindow, now: float, bounds: LimitBounds) -> State | None:
    """The state after these calls; None if it takes more of them."""
    latency, error = window.latency, window.error
    expected = _expected(state)
    alarm = window.used and 0 < ALARM * expected * (1 + ERRORS * error) < latency
    vague = error > EXACT and window.calls < MOST_CALLS * _due(state)
    if (now < state.ends or vague) and not alarm:
        return None
    if not window.used:
        base = state.base + DRIFT * (latency - state.base) if state.base else latency
        hint = Level(-inf, log(base), HINT)
        return _goes(
            state._replace(base=base, levels=(hint,), fit=None), state.limit, state.high, now, bounds
        )
    off = log(latency / expected) if expected else 0.0
    weight = float(window.calls)
    levels = tuple(one._replace(weight=one.weight * FADES) for one in state.levels[: LEVELS - 1])
    errors = sqrt(error**2 + UNSURE**2)
    bias = BIAS * error**2 * window.calls
    if state.fit is None or state.fit.knee == inf:
        bias = -bias
    tried = max((one.limit for one in state.levels), default=-inf)
    higher = state.fit is not None and state.fit.knee == inf and tried < log(state.limit) - 1e-9
    if (off > ERRORS * errors or alarm) and not higher:  # the service has become slower, or smaller
        known = next((one for one in levels if one.limit == -inf), None) if len(levels) <= 3 else None
        hint = known.weight / 2 if known else HINT
        real = levels[:-1] if known else ()
        levels, weight = (*real, Level(-inf, log(state.base), hint)), min(weight, HINT)
        if state.limit <= bounds.minimum:
            levels = ()
    elif -off > errors * (LOWER_ERRORS if expected > 1.05 * state.base else ERRORS):
        base = state.base if latency > FASTER * state.base else latency
        levels, bias = (Level(-inf, log(base), SURE),), -inf
    levels = (Level(log(state.limit), log(latency), weight), *levels)
    fit = fitted(levels, bias)
    spread = min(max(CONTRAST * error, LEAST_HIGH), MOST_HIGH)
    return _moved(state._replace(levels=levels, fit=fit, spread=spread, base=exp(fit.base)), now, bounds)


def _expected(state: State) -> float:
    """The latency at this limit; 0 if it is not known."""
    return 0.0 if state.fit is None else exp(state.fit.at(log(state.limit)))


def _moved(state: State, now: float, bounds: LimitBounds) -> State:
    fit, real = state.fit, [one.limit for one in state.levels if one.limit > -inf]
    if fit is None or fit.knee == inf:
        most = exp(max(real))
        pace = min(FASTEST, state.pace * GROWTH)
        grown = state._replace(pace=pace, center=within_bounds(bounds, most))
        return _goes(grown, max(most * state.pace, most + 1), True, now, bounds)
    center = within_bounds(bounds, max(exp(fit.knee), state.limit * DEEPEST_CUT))
    state = state._replace(pace=GROWTH, center=center)
    near = center * (1 + LOW * state.spread)
    if state.high:
        below = sum(one.weight for one in state.levels if one.limit < fit.knee - NEAR)
        state = state._replace(confirmed=state.confirmed or below >= KNOWN)
        part = DEEP if below >= 1 or state.confirmed else DEEPEST_CUT
        low = near if below >= KNOWN else min(center * part, center - 0.6)
        return _goes(state, low, False, now, bounds)
    high = max(center * (1 + state.spread), center + 0.6)
    above = sum(one.weight for one in state.levels if one.limit > fit.knee + FAR)
    if above < KNOWN:
        high = ceil(high)
    elif round(high) > STEEP * center:
        high = near
    return _goes(state, high, True, now, bounds)


def _goes(state: State, limit: float, high: bool, now: float, bounds: LimitBounds) -> State:
    wanted, limit = limit, within_bounds(bounds, round(min(limit, state.ceiling)))
    latency = exp(state.levels[0].latency) if state.levels else 0.0
    begins = now + (SETTLE * latency if limit != state.limit else 0.0)
    ends = begins + max(SECONDS, latency)
    ceiling = state.ceiling * CEILING if wanted > state.ceiling else state.ceiling
    center = within_bounds(bounds, state.center)
    return state._replace(limit=limit, center=center, high=high, begins=begins, ends=ends, ceiling=ceiling)


def _dropped(state: State, window: CallWindow, latency: float, now: float, bounds: LimitBounds) -> State:
    taken = window.lost + window.seconds
    cut = state.limit * max(1 - window.lost / taken, DEEPEST_DROP) if taken else state.limit
    limit = within_bounds(bounds, round(min(cut, state.limit - 1)))
    known = exp(state.levels[0].latency) if state.levels else 0.0
    return state._replace(
        limit=limit,
        center=limit,
        ceiling=limit,
        begins=now + SETTLE * max(latency, known),
        ends=now + SETTLE * max(latency, known) + max(SECONDS, known),
        pace=GROWTH,
        high=False,
    )


def within_bounds(bounds: LimitBounds, limit: float) -> float:
    """The limit, or the nearest one that the options allow."""
    return min(max(limit, float(bounds.minimum)), float(bounds.maximum))
