"""`prefect-resilience circuits ...`: see the circuits of a fleet, and set them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated

from cyclopts import App, Parameter

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.circuits import CircuitSnapshot
from prefect_resilience.guards.circuits.model import CircuitState
from prefect_resilience.operations.cli import asking, fleet, options, output, tables
from prefect_resilience.operations.cli.options import Json, Store
from prefect_resilience.operations.flows import (
    DONE,
    Action,
    CircuitChange,
    change_circuit,
    find_circuit,
    unknown_circuit,
)

Name = Annotated[str, Parameter(help="The circuit's name, or a pattern in quotes, as in 'llm:*'.")]
OneName = Annotated[str, Parameter(help="The circuit's name, as `circuits list` writes it.")]
Yes = Annotated[
    bool, Parameter(negative="", show_default=False, help="Change several circuits without being asked.")
]
Create = Annotated[
    bool,
    Parameter(negative="", show_default=False, help="Make the circuit when there is none of this name yet."),
]
Reason = Annotated[str, Parameter(show_default=False, help="Why, for whoever meets the circuit next.")]

app: App = App(
    name="circuits",
    help="See the circuits of a fleet, and open, close, disable or reset them.",
    help_format="plaintext",
    version_flags=[],
)


@app.command(name="list")
def list_circuits(
    *,
    state: Annotated[
        list[CircuitState] | None,
        Parameter(negative="", help="Only those in this state; repeat it for several."),
    ] = None,
    store: Store = None,
    json: Json = False,
) -> int:
    """Show every circuit, those that refuse calls first.

    Example: prefect-resilience circuits list --state open --state forced_open
    """
    seen = fleet.read_fleet(fleet.store_url(store))
    shown = [circuit for circuit in seen.circuits if not state or circuit.state in state]
    if json:
        output.as_json(shown)
    elif shown:
        chosen = fleet.Fleet(seen.url, seen.now, tuple(shown))
        output.show(tables.circuits_table(chosen), tables.summary(seen))
    elif seen.circuits:
        output.show(f"No circuit is {' or '.join(state or [])}: {tables.summary(seen)}.")
    else:
        output.show(f"There are no circuits in {seen.url} yet: one is stored when it is first called.")
    return 0


@app.command
def show(name: OneName, /, *, store: Store = None, json: Json = False) -> int:
    """Show everything that is known of one circuit.

    Example: prefect-resilience circuits show llm:primary
    """
    seen = fleet.read_fleet(fleet.store_url(store))
    found = next((circuit for circuit in seen.circuits if circuit.name == name), None)
    if found is None:
        raise ConfigurationError(unknown_circuit(name, (circuit.name for circuit in seen.circuits)))
    if json:
        output.as_json(found)
    else:
        output.show(tables.circuit_card(found, seen.now))
    return 0


@app.command(name="open")
def open_circuit(
    name: Name,
    /,
    *,
    reason: Reason,
    until: Annotated[
        str | None,
        Parameter(help="10m, 1h30m, or a time as in 2026-11-20T18:00; then a probe decides. Else a person."),
    ] = None,
    create: Create = False,
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> int:
    """Refuse every call of the fleet.

    Example: prefect-resilience circuits open llm:primary --reason "they said so" --until 10m
    """
    moment = None if until is None else output.until(until, datetime.now().astimezone())
    return _act("open", name, store, json, reason=_said(reason), until=moment, create=create, yes=yes)


@app.command
def close(
    name: Name, /, *, reason: Reason = "", yes: Yes = False, store: Store = None, json: Json = False
) -> int:
    """Let calls through again; the circuit trips as usual from there.

    Example: prefect-resilience circuits close llm:primary
    """
    return _act("close", name, store, json, reason=reason, yes=yes)


@app.command
def disable(
    name: Name,
    /,
    *,
    reason: Reason,
    create: Create = False,
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> int:
    """Let every call through and count nothing, until `close` or `reset`.

    Example: prefect-resilience circuits disable llm:primary --reason "it trips on test data"
    """
    return _act("disable", name, store, json, reason=_said(reason), create=create, yes=yes)


@app.command
def reset(
    name: Name | None = None,
    /,
    *,
    all: Annotated[
        bool, Parameter(negative="", show_default=False, help="Every circuit in the store.")
    ] = False,
    reason: Reason = "",
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> int:
    """Begin anew: closed, windows empty, re-openings forgotten.

    Example: prefect-resilience circuits reset llm:primary
    Example: prefect-resilience circuits reset --all --yes
    """
    if all == (name is not None):
        raise ConfigurationError("say which circuits to reset: either a NAME or --all")
    return _act("reset", name, store, json, reason=reason, yes=yes)


@app.command
def watch(
    *,
    interval: Annotated[float, Parameter(help="Seconds between two looks.")] = 1.0,
    count: Annotated[
        int | None, Parameter(help="Look so many times, then end; for ever when left out.")
    ] = None,
    store: Store = None,
    json: Json = False,
) -> int:
    """Show every circuit again and again, until Ctrl-C. With --json, a line for each look.

    Example: prefect-resilience circuits watch --interval 2
    """
    if not 0.05 <= interval <= 86_400:
        raise ConfigurationError(f"--interval {interval:g} must be 0.05 seconds to a day, as in 2")
    if count is not None and count < 1:
        raise ConfigurationError(f"--count {count} must be 1 or more; leave it out to watch for ever")
    look = tables.watch_json if json else tables.watch_table
    try:
        return look(fleet.store_url(store), interval, count)
    except KeyboardInterrupt:
        # The way to end it, and so nothing is wrong.
        return 0


def _said(reason: str) -> str:
    if not reason.strip():
        raise ConfigurationError('--reason is empty: say why, as in --reason "the provider is down"')
    return reason


def _act(
    action: Action,
    name: str | None,
    store: str | None,
    json: bool,
    *,
    reason: str,
    until: datetime | timedelta | None = None,
    create: bool = False,
    yes: bool = False,
) -> int:
    """Carry the action out on the circuits that `name` means (None: all of them) and show what it did."""
    url = fleet.store_url(store)
    seen = fleet.read_fleet(url)
    several = name is None or options.is_glob(name, seen.circuits)
    chosen = _chosen(name, seen.circuits, action, create, several)
    if not chosen:
        if json:
            output.as_json([])
        else:
            output.show(f"There are no circuits in {seen.url} yet, and so nothing to {action}.")
        return 0
    if several and not yes and not asking.agreed_on_circuits(action, [c for c in chosen.values() if c]):
        return 1
    changes: list[CircuitChange] = []
    try:
        with fleet.explained(url):
            for circuit, before in chosen.items():
                after = change_circuit(circuit, action, reason, until, url)
                changes.append(CircuitChange(name=circuit, before=before, after=after))
    finally:
        # When the store goes away in between, it is said as well what was done until then.
        _show_changes(action, changes, seen.now, json)
    return 0


def _chosen(
    name: str | None, circuits: Sequence[CircuitSnapshot], action: Action, create: bool, several: bool
) -> dict[str, CircuitSnapshot | None]:
    """The circuits to act upon as they are now; None for one that is to be created."""
    if name is not None and not several:
        return {name: find_circuit(name, circuits, action, create)}
    found = circuits if name is None else options.matching(name, circuits)
    if name is not None and not found:
        raise ConfigurationError(unknown_circuit(name, (circuit.name for circuit in circuits)))
    return {circuit.name: circuit for circuit in found}


def _show_changes(action: Action, changes: list[CircuitChange], now: float, json: bool) -> None:
    if json:
        output.as_json(changes)
    elif changes:
        number = "1 circuit" if len(changes) == 1 else f"{len(changes)} circuits"
        output.show(tables.changes_table(changes, now), f"{number} {DONE[action]} for the whole fleet.")
