"""Conditions: what a result or an error says, asked in Python or in JSON."""

from __future__ import annotations

from .build import PathBuilder, failed, path, succeeded
from .errors import ConditionError
from .evaluate import Explanation
from .model import Condition, condition_mistakes
from .plain import plain

__all__ = [
    "Condition",
    "ConditionError",
    "Explanation",
    "PathBuilder",
    "condition_mistakes",
    "failed",
    "path",
    "plain",
    "succeeded",
]
