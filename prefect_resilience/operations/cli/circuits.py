"""`prefect-resilience circuits ...`: show the circuits of a fleet and set them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import count as numbers
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from prefect_resilience.base.text import plural, sentence_of
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.guards.circuits.model import CircuitSnapshot, CircuitState
from prefect_resilience.operations import circuit_changes
from prefect_resilience.operations import circuit_rows as rows
from prefect_resilience.operations.circuit_changes import DONE, Action, CircuitChange, change_circuit
from prefect_resilience.operations.circuit_rows import FleetCircuits, read_circuits
from prefect_resilience.operations.cli import look, options
from prefect_resilience.operations.cli.look import TEXT, WORD
from prefect_resilience.operations.cli.options import ANSWERING, SETTING, Answering, Flag, Setting

Name = Annotated[str, Parameter(help="The circuit's name, or a pattern in quotes, as in 'llm:*'.")]
Create = Annotated[Flag, Parameter(help="Create the circuit if it does not exist yet.")]
Reason = Annotated[
    str, Parameter(show_default=False, help="The reason, for the next person who looks at the circuit.")
]

FEW: look.Columns[CircuitSnapshot] = {
    "state": (WORD, lambda circuit: look.state(circuit.state)),
    "circuit": (TEXT, lambda circuit: circuit.name),
}

app: App = options.group("circuits", "Show the circuits of a fleet; open, close, disable or reset them.")


@app.command(name="list")
def list_circuits(*, state: list[CircuitState] | None = None, how: Answering = ANSWERING) -> int:
    """Show every circuit; those that reject calls come first.

    Example: prefect-resilience circuits list --state open --state forced_open

    Args:
        state: Only circuits in this state; repeat it for several.
    """
    fleet = read_circuits(options.store_url(how.store, circuits=True))
    shown = tuple(circuit for circuit in fleet.circuits if not state or circuit.state in state)
    if shown:
        parts = [rows.circuits_table(replace(fleet, circuits=shown)), rows.counts_line(fleet)]
    elif fleet.circuits:
        parts = [f"No circuit is {' or '.join(state or [])}: {rows.counts_line(fleet)}."]
    else:
        parts = [f"There are no circuits in {fleet.url} yet: a circuit is stored at its first call."]
    return how.answer(shown, *parts)


@app.command
def show(name: str, /, *, how: Answering = ANSWERING) -> int:
    """Show all facts about one circuit.

    Example: prefect-resilience circuits show llm:primary

    Args:
        name: The circuit's name, as `circuits list` prints it.
    """
    fleet = read_circuits(options.store_url(how.store, circuits=True))
    circuit = {circuit.name: circuit for circuit in fleet.circuits}.get(name)
    if circuit is None:
        raise ConfigurationError(
            circuit_changes.unknown_circuit(name, (circuit.name for circuit in fleet.circuits))
        )
    return how.answer(circuit, look.card(rows.card_rows(circuit, fleet.now)))


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
    return _act("open", name, how, _reason_of(reason), until=until, create=create)


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
    return _act("disable", name, how, _reason_of(reason), create=create)


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
    url, console = options.store_url(how.store, circuits=True), look.stdout()
    on_screen = Live(console=console, auto_refresh=False) if console.is_terminal and not how.json else None
    fleet: FleetCircuits | None = None
    at, trouble = datetime.now(), ""
    try:
        with on_screen or nullcontext():
            for turn in numbers() if count is None else range(count):
                time.sleep(interval if turn else 0)
                before, trouble = trouble, ""
                try:
                    fleet, at = read_circuits(url), datetime.now()
                except StoreUnavailable as error:
                    trouble = sentence_of(error)
                if how.json:
                    _print_reading(fleet, before, trouble)
                elif on_screen is not None:
                    on_screen.update(_picture(fleet, at, trouble, interval), refresh=True)
                else:
                    console.print(_picture(fleet, at, trouble, interval))
    except KeyboardInterrupt:
        # Ctrl-C is the normal way to end it.
        return 0
    return 1 if trouble else 0


def _print_reading(fleet: FleetCircuits | None, before: str, trouble: str) -> None:
    """A line of JSON each time the store answers. An outage is reported once, on stderr."""
    if fleet is not None and not trouble:
        look.as_json(fleet.circuits, indent=None)
    if bool(before) != bool(trouble):
        look.say(trouble or "The store is available again.")


def _picture(fleet: FleetCircuits | None, at: datetime, trouble: str, interval: float) -> RenderableType:
    parts: list[RenderableType] = [Text(trouble, style=look.VERMILION)] if trouble else []
    if fleet is not None:
        how = "as it was at" if trouble else f"every {interval:g} s, Ctrl-C ends it;"
        parts += [Text(f"{rows.counts_line(fleet)}; {how} {at:%H:%M:%S}")]
        parts += [rows.circuits_table(fleet)] if fleet.circuits else []
    return Group(*parts)


# -- setting circuits


def _reason_of(reason: str) -> str:
    if not reason.strip():
        raise ConfigurationError('--reason is empty: write a reason, as in --reason "the provider is down"')
    return reason


def _act(
    action: Action,
    name: str | None,
    how: Setting,
    reason: str,
    until: str | None = None,
    create: bool = False,
) -> int:
    """Carry out the action on the circuits that match `name` (None: all) and show the changes."""
    moment = None if until is None else options.until(until, datetime.now().astimezone())
    changes: list[CircuitChange] = []
    with how.at_store(circuits=True) as url:
        fleet = read_circuits(url)
        circuits = {circuit.name: circuit for circuit in fleet.circuits}
        several = name is None or is_glob(name, fleet.circuits)
        if name is None or several:
            chosen = matching(name or "*", fleet.circuits)
            if name is not None and not chosen:
                raise ConfigurationError(circuit_changes.unknown_circuit(name, circuits))
        else:
            circuit_changes.find_circuit(name, fleet.circuits, action, create)
            chosen = [CircuitSnapshot(name=name)]
        if not chosen:
            return how.answer(
                [], f"There are no circuits in {fleet.url} yet, so there is nothing to {action}."
            )
        if several and not how.yes:
            number, preview = plural(len(chosen), "circuit"), look.table(FEW, chosen[: look.ASKED_ABOUT])
            question = f"{action.capitalize()} {number} for the whole fleet?"
            if not look.is_confirmed(question, f"{action} {number}", preview, len(chosen)):
                return 1
        try:
            for circuit in chosen:
                after = change_circuit(circuit.name, action, reason, moment, url)
                before = circuits.get(circuit.name)
                changes.append(CircuitChange(name=circuit.name, before=before, after=after))
        finally:
            # If the store fails in between, show the changes before that.
            if changes or how.json:
                done = f"{plural(len(changes), 'circuit')} {DONE[action]} for the whole fleet."
                how.answer(changes, look.table(rows.CHANGES, changes), done)
    return 0


def is_glob(name: str, circuits: Iterable[CircuitSnapshot]) -> bool:
    """Whether `name` is a pattern, as in 'llm:*', and no circuit has that name."""
    return any(mark in name for mark in "*?[") and all(circuit.name != name for circuit in circuits)


def matching(pattern: str, circuits: Iterable[CircuitSnapshot]) -> list[CircuitSnapshot]:
    """The circuits whose names match the pattern; case matters."""
    return [circuit for circuit in circuits if fnmatchcase(circuit.name, pattern)]
