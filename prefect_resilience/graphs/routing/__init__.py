"""Where to go next: branches, error handlers, votes, partial failure, and loops that must get on."""

from __future__ import annotations

from .exceptions import NoProgress, NoQuorum, NoRoute, RoundsExhausted, TooManyFailures
from .gathering import Gathered, Outcome, agather, gather
from .handlers import on_error
from .loops import aiterate, iterate
from .progress import ProgressGuard
from .rounds import Iteration, Round
from .route import Branch, otherwise, route, when
from .voting import Quorum, quorum

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
