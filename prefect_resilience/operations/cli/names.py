"""Which circuits a NAME on the command line means."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from prefect_resilience.guards.circuits import CircuitSnapshot


def is_glob(name: str, circuits: Iterable[CircuitSnapshot]) -> bool:
    """Whether `name` is a pattern, as in 'llm:*'; a circuit that is really called so is meant itself."""
    return any(mark in name for mark in "*?[") and all(circuit.name != name for circuit in circuits)


def matching(pattern: str, circuits: Iterable[CircuitSnapshot]) -> list[CircuitSnapshot]:
    """The circuits whose names match the pattern, upper and lower case told apart."""
    return [circuit for circuit in circuits if fnmatchcase(circuit.name, pattern)]
