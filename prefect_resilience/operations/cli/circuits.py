"""`prefect-resilience circuits ...`: show the circuits of a fleet and set them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Annotated

from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from prefect_resilience.base.text import plural
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.circuits.model import CircuitSnapshot, CircuitState
from prefect_resilience.operations.cli import circuits_tables as tables
from prefect_resilience.operations.cli import look, options
from prefect_resilience.operations.cli.options import ANSWERING, Answering, Flag, Json, Store
from prefect_resilience.operations.flows import (
    DONE,
    Action,
    CircuitChange,
    change_circuit,
    find_circuit,
    unknown_circuit,
)

Name = Annotated[str, Parameter(help="The circuit's name, or a pattern in quotes, as in 'llm:*'.")]
Create = Annotated[Flag, Parameter(help="Create the circuit if it does not exist yet.")]
Reason = Annotated[
    str, Parameter(show_default=False, help="The reason, for the next person who looks at the circuit.")
]


@Parameter(name="*")
@dataclass(frozen=True)
class Setting:
    """The options of every command that sets circuits."""

    yes: Annotated[Flag, Parameter(help="Change several circuits without confirmation.")] = False
    store: Store = None
    json: Json = False


SETTING = Setting()

app: App = options.group("circuits", "Show the circuits of a fleet; open, close, disable or reset them.")


@app.command(name="list")
def list_circuits(*, state: list[CircuitState] | None = None, how: Answering = ANSWERING) -> int:
    """Show every circuit; those that reject calls come first.

    Example: prefect-resilience circuits list --state open --state forced_open

    Args:
        state: Only circuits in this state; repeat it for several.
    """
    fleet = tables.read_circuits(options.store_url(how.store, circuits=True))
    shown = tuple(circuit for circuit in fleet.circuits if not state or circuit.state in state)
    if shown:
        parts = [tables.circuits_table(replace(fleet, circuits=shown)), tables.summary(fleet)]
    elif fleet.circuits:
        parts = [f"No circuit is {' or '.join(state or [])}: {tables.summary(fleet)}."]
    else:
        parts = [f"There are no circuits in {fleet.url} yet: a circuit is stored at its first call."]
    return look.answer(shown, *parts, json=how.json)


@app.command
def show(name: str, /, *, how: Answering = ANSWERING) -> int:
    """Show all facts about one circuit.

    Example: prefect-resilience circuits show llm:primary

    Args:
        name: The circuit's name, as `circuits list` prints it.
    """
    fleet = tables.read_circuits(options.store_url(how.store, circuits=True))
    found = next((circuit for circuit in fleet.circuits if circuit.name == name), None)
    if found is None:
        raise ConfigurationError(unknown_circuit(name, (circuit.name for circuit in fleet.circuits)))
    return look.answer(found, look.card(tables.card_rows(found, fleet.now)), json=how.json)


@app.command(name="open")
def open_circuit(
    name: Name, /, *, reason: Reason, until: str | None = None, create: Create = False, how: Setting = SETTING
) -> int:
    """Force a circuit open: every call of the fleet is rejected.

    Example: prefect-resilience circuits open llm:primary --reason "provider outage" --until 10m

    Args:
        until: 10m, 1h30m, or a time as in 2026-11-20T18:00; then a probe decides. By default the circuit
            stays open until it is closed.
    """
    return _act("open", name, how, _given(reason), until=until, create=create)


@app.command
def close(name: Name, /, *, reason: Reason = "", how: Setting = SETTING) -> int:
    """Let calls through again. The circuit can open again as usual.

    Example: prefect-resilience circuits close llm:primary
    """
    return _act("close", name, how, reason)


@app.command
def disable(name: Name, /, *, reason: Reason, create: Create = False, how: Setting = SETTING) -> int:
    """Let every call through and count nothing, until `close` or `reset`.

    Example: prefect-resilience circuits disable llm:primary --reason "it trips on test data"
    """
    return _act("disable", name, how, _given(reason), create=create)


@app.command
def reset(
    name: Name | None = None, /, *, all: Flag = False, reason: Reason = "", how: Setting = SETTING
) -> int:
    """Reset circuits: state closed, windows empty, re-openings set to 0.

    Example: prefect-resilience circuits reset llm:primary
    Example: prefect-resilience circuits reset --all --yes

    Args:
        all: Every circuit in the store.
    """
    if all == (name is not None):
        raise ConfigurationError("choose the circuits to reset: either NAME or --all")
    return _act("reset", name, how, reason)


@app.command
def watch(*, interval: float = 1.0, count: int | None = None, how: Answering = ANSWERING) -> int:
    """Show every circuit at an interval, until Ctrl-C. With --json, print a line each time.

    Example: prefect-resilience circuits watch --interval 2

    Args:
        interval: Seconds between two readings.
        count: The number of readings; without it, until Ctrl-C.
    """
    if not 0.05 <= interval <= 86_400:
        raise ConfigurationError(f"--interval {interval:g} must be 0.05 seconds to a day, as in 2")
    if count is not None and count < 1:
        raise ConfigurationError(f"--count {count} must be 1 or more; leave it out to watch until Ctrl-C")
    watching = tables.watch_json if how.json else tables.watch_table
    try:
        return watching(options.store_url(how.store, circuits=True), interval, count)
    except KeyboardInterrupt:
        # Ctrl-C is the normal way to end it.
        return 0


# -- setting circuits


def _given(reason: str) -> str:
    if not reason.strip():
        raise ConfigurationError('--reason is empty: write a reason, as in --reason "the provider is down"')
    return reason


def _act(
    action: Action,
    name: str | None,
    how: Setting,
    reason: str,
    *,
    until: str | None = None,
    create: bool = False,
) -> int:
    """Carry out the action on the circuits that match `name` (None: all) and show the changes."""
    moment = None if until is None else options.until(until, datetime.now().astimezone())
    url = options.store_url(how.store, circuits=True)
    fleet = tables.read_circuits(url)
    several = name is None or is_glob(name, fleet.circuits)
    chosen = _chosen(name, fleet.circuits, action, create, several)
    if not chosen:
        nothing = f"There are no circuits in {fleet.url} yet, so there is nothing to {action}."
        return look.answer([], nothing, json=how.json)
    if several and not how.yes and not _agreed(action, [c for c in chosen.values() if c]):
        return 1
    changes: list[CircuitChange] = []
    try:
        with options.explained(url):
            for circuit, before in chosen.items():
                after = change_circuit(circuit, action, reason, moment, url)
                changes.append(CircuitChange(name=circuit, before=before, after=after))
    finally:
        # If the store fails in between, show the changes made so far.
        if changes or how.json:
            done = f"{plural(len(changes), 'circuit')} {DONE[action]} for the whole fleet."
            look.answer(changes, tables.changes_table(changes), done, json=how.json)
    return 0


def _chosen(
    name: str | None, circuits: Sequence[CircuitSnapshot], action: Action, create: bool, several: bool
) -> dict[str, CircuitSnapshot | None]:
    """The circuits to change and their present state; None for one that will be created."""
    if name is not None and not several:
        return {name: find_circuit(name, circuits, action, create)}
    found = circuits if name is None else matching(name, circuits)
    if name is not None and not found:
        raise ConfigurationError(unknown_circuit(name, (circuit.name for circuit in circuits)))
    return {circuit.name: circuit for circuit in found}


def is_glob(name: str, circuits: Iterable[CircuitSnapshot]) -> bool:
    """Whether `name` is a pattern, as in 'llm:*', and no circuit has that name."""
    return any(mark in name for mark in "*?[") and all(circuit.name != name for circuit in circuits)


def matching(pattern: str, circuits: Iterable[CircuitSnapshot]) -> list[CircuitSnapshot]:
    """The circuits whose names match the pattern; case matters."""
    return [circuit for circuit in circuits if fnmatchcase(circuit.name, pattern)]


def _agreed(action: Action, circuits: Sequence[CircuitSnapshot]) -> bool:
    number = plural(len(circuits), "circuit")
    preview = Table.grid(padding=(0, 2), pad_edge=True)
    for circuit in circuits[: look.ASKED_ABOUT]:
        preview.add_row(look.state(circuit.state), Text(look.printable(circuit.name), overflow="fold"))
    question = f"{action.capitalize()} {number} for the whole fleet?"
    return look.agreed(question, f"{action} {number}", preview, len(circuits))
