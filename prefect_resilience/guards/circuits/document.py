"""The document of a circuit: a new one, the check of a stored one, and the learnt baseline."""

from __future__ import annotations

import math
from copy import copy
from functools import cache
from typing import Any, cast, get_args

from pydantic_core import SchemaValidator, ValidationError
from pydantic_core import core_schema as types

from prefect_resilience.guards.circuits.model import CircuitState
from prefect_resilience.guards.circuits.window import COUNT, WINDOW, fields

# The usual failure rate of a service, learnt from its calls, and the test for a significant rise over it.
#
# **The baseline.** A call enters the baseline when it *leaves* the window of a closed circuit. When the
# circuit opens, its window is dropped and not learnt, so that an outage does not raise the usual rate.
# Exception: while the usual rate is unknown, that window is learnt too. Otherwise the fixed thresholds, which
# hold until then, would keep a service that often fails from ever getting a baseline. Failures F and calls C
# are sums in which a call weighs exp(-age / memory); the usual rate is F / C.
#
# **The confidence.** Decisions use the upper end of the "plus four" interval (Agresti and Coull, 1998):
#
#     p = (F + 2) / (C + 4)          usual = p + 2 * sqrt(p * (1 - p) / (C + 4))
#
# With few calls, `usual` is higher and the circuit opens later. Below LEARNT_FROM calls the rate is unknown.
# `usual` is never more than the policy's `failure_rate`, however often the service fails.
#
# **The rise.** k failures among n calls are a rise when all three conditions hold:
#
#     k / n >= floor                                    the rate is high enough to matter
#     odds(k / n) >= 2 * odds(usual)                    the rise is large; odds(x) = x / (1 - x)
#     n * KL(k / n, usual) >= ln(1 / CHANCE)            the rise is not chance
#
#     KL(a, b) = a * ln(a / b) + (1 - a) * ln((1 - a) / (1 - b))
#
# The last condition is Chernoff's bound: at the usual rate, P(at least k of n) <= exp(-n * KL). Unlike a
# z-test it holds for every n and for very small rates, so each check of the window raises a false alarm with
# a probability of at most CHANCE. For k consecutive failures KL is ln(1 / usual), which gives the number of
# consecutive failures that open the circuit.
#
# **The recovery.** A service that usually fails some of its calls fails some probes too: `probes_needed`.

Baseline = dict[str, float]
"""{"calls": C, "failures": F, "at": seconds by the store's clock}"""

CHANCE = 1e-5
"""Of a false alarm at one check: z = 4.3 in a one-sided test. A busy circuit is checked many times a day."""

SURPRISE = math.log(1 / CHANCE)
ODDS_RATIO = 2.0
LEARNT_FROM = 30.0
"""The sum of the weights of calls from which a baseline is used."""

MOST_CALLS = 1e6
"""The limit of the sum of weights: more would not make the rate more accurate, and numbers stay small."""

NINE_OF_TEN = 1.2816
"""The 90th percentile of a normal distribution."""

HIGHEST = 0.95
"""The upper limit of a usual rate, even if `failure_rate` is 1: no rise over a rate of 1 is possible."""


def learn(baseline: Baseline | None, calls: int, failures: int, now: float, memory: float) -> Baseline:
    """`baseline` after `calls` more calls with `failures` failures at `now`; `memory` is in seconds.

    A gap without calls counts as one `memory` at most, so that a quiet weekend does not erase the baseline.
    """
    old = baseline or {"calls": 0.0, "failures": 0.0, "at": now}
    elapsed = min(max(0.0, now - old["at"]), memory)
    decay = math.exp(-elapsed / memory)
    weight = old["calls"] * decay + calls
    failed = old["failures"] * decay + failures
    scale = min(1.0, MOST_CALLS / weight) if weight else 1.0
    return {"calls": weight * scale, "failures": min(failed, weight) * scale, "at": now}


def rate(baseline: Baseline | None) -> float | None:
    """The usual failure rate F / C, for display; None while there are too few calls."""
    if baseline is None or baseline["calls"] < LEARNT_FROM:
        return None
    return baseline["failures"] / baseline["calls"]


def usual(baseline: Baseline | None, ceiling: float) -> float | None:
    """The upper bound of the usual rate, at most `ceiling`; None while there are too few calls."""
    if baseline is None or baseline["calls"] < LEARNT_FROM:
        return None
    calls = baseline["calls"] + 4
    share = (baseline["failures"] + 2) / calls
    return min(share + 2 * math.sqrt(share * (1 - share) / calls), ceiling, HIGHEST)


def is_rise(failures: int, calls: int, usual_rate: float, floor: float) -> bool:
    """Whether `failures` of `calls` are a rise over the usual rate that is significant and large enough."""
    rate = failures / calls
    if rate < floor or rate * (1 - usual_rate) < ODDS_RATIO * usual_rate * (1 - rate):
        return False
    return calls * _divergence(rate, usual_rate) >= SURPRISE


def row_needed(threshold: int, usual_rate: float | None) -> int:
    """The consecutive failures that open a circuit: `threshold`, or more where failures are usual."""
    if usual_rate is None:
        return threshold
    return max(threshold, math.ceil(SURPRISE / math.log(1 / usual_rate)))


def probes_needed(successes: int, probes: int, usual_rate: float | None) -> int:
    """The number of probes allowed for `successes` successes: `probes`, or more where failures are usual.

    The number of calls until the r-th success has the mean r / (1 - u) and the variance r * u / (1 - u)**2.
    At the usual rate u, about 9 of 10 services get r successes within the returned number of probes.
    """
    if usual_rate is None:
        return probes
    return max(
        probes, math.ceil((successes + NINE_OF_TEN * math.sqrt(successes * usual_rate)) / (1 - usual_rate))
    )


def _divergence(seen: float, expected: float) -> float:
    """The Kullback-Leibler divergence of two Bernoulli distributions, in nats; `seen` is not 0."""
    failing = seen * math.log(seen / expected)
    return failing if seen == 1 else failing + (1 - seen) * math.log((1 - seen) / (1 - expected))


CircuitDocument = dict[str, Any]

HISTORY_KEPT = 24
"""A document holds this many of the latest generations, about 50 bytes each."""


def _has_calls(baseline: Baseline) -> Baseline:
    if baseline["failures"] > baseline["calls"]:
        raise ValueError("it has more failures than calls")
    return baseline


_STATE = types.literal_schema(list(get_args(CircuitState)))
_TIME = types.float_schema()
_AMOUNT = types.float_schema(ge=0)
_MAYBE_TIME = types.nullable_schema(_TIME)
_MAYBE_TEXT = types.nullable_schema(types.str_schema())
_BASELINE = types.no_info_after_validator_function(
    _has_calls, fields({"calls": types.float_schema(le=MOST_CALLS), "failures": _AMOUNT, "at": _TIME})
)
_ENTRY = types.tuple_schema([COUNT, _TIME, _STATE, _MAYBE_TIME], strict=False)
_LEASE = types.list_schema(_TIME, min_length=2, max_length=2)

_FIELDS: dict[str, tuple[types.CoreSchema, Any]] = {
    "state": (_STATE, "closed"),
    "generation": (COUNT, 1),
    "failures_in_row": (COUNT, 0),
    "successes": (COUNT, 0),
    "slow_successes": (COUNT, 0),
    "probe_failures": (COUNT, 0),
    "unanswered": (COUNT, 0),
    "window": (types.nullable_schema(WINDOW), None),
    "baseline": (types.nullable_schema(_BASELINE), None),
    "opened_at": (_MAYBE_TIME, None),
    "retry_at": (_MAYBE_TIME, None),
    "hold_until": (_MAYBE_TIME, None),
    "openings": (COUNT, 0),
    "leases": (types.dict_schema(types.str_schema(), _LEASE), {}),
    "reason": (_MAYBE_TEXT, None),
    "last_error": (_MAYBE_TEXT, None),
    "history": (types.list_schema(_ENTRY), []),
    "demand": (types.nullable_schema(fields({"sum": _AMOUNT, "at": _TIME})), None),
    "share": (types.float_schema(gt=0, le=1), 1.0),
    "published_at": (_TIME, 0.0),
    "updated_at": (_TIME, 0.0),
}
"""The fields of a `CircuitDocument`, each with its value in a circuit that has had no calls."""


@cache
def _validator() -> SchemaValidator:
    return SchemaValidator(fields({name: schema for name, (schema, _) in _FIELDS.items()}))


def new() -> CircuitDocument:
    """The document of a circuit that has had no calls."""
    return {name: copy(value) for name, (_, value) in _FIELDS.items()}


def remember(document: CircuitDocument, now: float) -> None:
    """Write the document's generation, state, start and `retry_at` into its history.

    A generation has one entry, with its start and its latest state. It has a second entry if it was forced
    again after its `retry_at` had passed, because calls could go through in between.
    """
    generation, state, retry_at = document["generation"], document["state"], document["retry_at"]
    history: list[list[Any]] = document["history"]
    last = history[-1] if history and history[-1][0] == generation else None
    goes_on = last is not None and not (last[3] is not None and last[3] <= now)
    since = history[-1][1] if goes_on else round(now, 3)
    before = history[:-1] if goes_on else history
    document["history"] = [*before, [generation, since, state, retry_at]][-HISTORY_KEPT:]


def read(value: object) -> CircuitDocument:
    """The document that a store returned; a new one if the value is damaged or not a circuit's document.

    Fields that an older version did not write get the values of a new document. Fields that a later version
    added are kept.
    """
    written = cast("CircuitDocument", value) if isinstance(value, dict) else {}
    document = {**new(), **written}
    try:
        _validator().validate_python(document)
    except ValidationError:
        return new()
    return new() if document["state"] == "open" and document["retry_at"] is None else document
