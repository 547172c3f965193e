"""Routing between tasks: branches, error handlers, votes, partial failure, and loops."""

from __future__ import annotations

from prefect_resilience.graphs.routing.edge.gathering import Gathered, Outcome, agather, gather
from prefect_resilience.graphs.routing.edge.handlers import on_error
from prefect_resilience.graphs.routing.edge.loops import ProgressGuard, aiterate, iterate
from prefect_resilience.graphs.routing.edge.route import Branch, otherwise, route, when
from prefect_resilience.graphs.routing.edge.voting import Quorum, quorum
from prefect_resilience.graphs.routing.rounds import (
    Iteration,
    NoProgress,
    NoQuorum,
    NoRoute,
    Round,
    RoundsExhausted,
    TooManyFailures,
)

__all__ = [
    "Branch",
    "Gathered",
    "Iteration",
    "NoProgress",
    "NoQuorum",
    "NoRoute",
    "Outcome",
    "ProgressGuard",
    "Quorum",
    "Round",
    "RoundsExhausted",
    "TooManyFailures",
    "agather",
    "aiterate",
    "gather",
    "iterate",
    "on_error",
    "otherwise",
    "quorum",
    "route",
    "when",
]
