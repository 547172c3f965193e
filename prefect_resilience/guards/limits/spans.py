"""Counts as people write them in a limit."""

from __future__ import annotations


def count(what: str, value: object, example: str) -> int:
    """`value` as a whole number from 1 on. Raises ValueError with what to write."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{what} is a whole number from 1 on, as in {example}, not {value!r}")
    return value
