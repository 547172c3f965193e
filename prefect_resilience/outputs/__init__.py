"""What a task promises to return, and what is said when it returns something else."""

from __future__ import annotations

from .promise import Expect

__all__ = ["Expect"]
