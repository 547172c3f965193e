"""The options that several commands share."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated

from cyclopts import Parameter

from prefect_resilience.guards.circuits import CircuitSnapshot

Store = Annotated[
    str | None,
    Parameter(help="The store's URL, as in sqlite:////srv/fleet.db; the configured one when left out."),
]
Json = Annotated[
    bool,
    Parameter(name="--json", negative="", show_default=False, help="Print JSON on stdout, and nothing else."),
]
Yes = Annotated[bool, Parameter(negative="", show_default=False, help="Do it without being asked.")]
DryRun = Annotated[
    bool, Parameter(negative="", show_default=False, help="Say what would be done, and do nothing.")
]
Force = Annotated[
    bool,
    Parameter(
        negative="",
        show_default=False,
        help="Also while the run is said to be going on: its process is gone for sure.",
    ),
]


def is_glob(name: str, circuits: Iterable[CircuitSnapshot]) -> bool:
    """Whether `name` is a pattern, as in 'llm:*'; a circuit that is really called so is meant itself."""
    return any(mark in name for mark in "*?[") and all(circuit.name != name for circuit in circuits)


def matching(pattern: str, circuits: Iterable[CircuitSnapshot]) -> list[CircuitSnapshot]:
    """The circuits whose names match the pattern, upper and lower case told apart."""
    return [circuit for circuit in circuits if fnmatchcase(circuit.name, pattern)]
