"""Changes of circuits by an operator, inside a flow run or outside. Imports no flow."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Literal

from pydantic import BaseModel

from prefect_resilience.base.naming import template_fields
from prefect_resilience.base.policy import nearest
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits.breaker import get_circuit
from prefect_resilience.guards.circuits.model import CircuitSnapshot
from prefect_resilience.guards.circuits.registry import StoreReference

Action = Literal["open", "close", "disable", "reset"]

DONE: dict[Action, str] = {"open": "opened", "close": "closed", "disable": "disabled", "reset": "reset"}
NAMES_SHOWN = 10


class CircuitChange(BaseModel, frozen=True):
    """The change of one circuit by one action; `before` is None if the action created the circuit.

    Example:
        >>> from prefect_resilience.operations import CircuitChange, change_circuit
        >>> after = change_circuit("labels", "open", "maintenance")
        >>> CircuitChange(name="labels", before=None, after=after).after.state
        'forced_open'
    """

    name: str
    before: CircuitSnapshot | None
    after: CircuitSnapshot


def change_circuit(
    name: str,
    action: Action,
    reason: str = "",
    until: datetime | timedelta | None = None,
    store: StoreReference = None,
) -> CircuitSnapshot:
    """Carry out the action for the whole fleet and return the circuit afterwards. Raises StoreUnavailable."""
    circuit = get_circuit(name, store)
    # The reason is kept in the store and shown with each rejected call, so it is redacted.
    why = redact(" ".join(reason.split())) or f"{DONE[action]} manually"
    if action == "open":
        circuit.force_open(why, until)
    else:
        {"close": circuit.force_closed, "disable": circuit.disable, "reset": circuit.reset}[action](why)
    return circuit.snapshot()


def find_circuit(
    name: str, circuits: Iterable[CircuitSnapshot], action: Action, create: bool = False
) -> CircuitSnapshot | None:
    """The circuit of this name, or None if it does not exist and the action may create it.

    Otherwise raises ConfigurationError, which names similar circuits.
    """
    by_name = {circuit.name: circuit for circuit in circuits}
    if name in by_name:
        return by_name[name]
    if not create or action not in ("open", "disable"):
        raise ConfigurationError(unknown_circuit(name, by_name))
    if fields := template_fields(name, "circuit"):
        raise ConfigurationError(
            f"the circuit {name!r} cannot be created: calls replace {{{fields[0]}}} with a value, so write "
            "the name with the value"
        )
    return None


def unknown_circuit(name: str, names: Iterable[str]) -> str:
    """One sentence: no circuit has this name, and the similar names."""
    options = sorted(names)
    if not options:
        return f"there is no circuit {name!r}: the store has none yet; a circuit is stored at its first call"
    close = difflib.get_close_matches(name, options, n=3)
    return f"there is no circuit {name!r}{nearest(name, close or options[:NAMES_SHOWN])}"
