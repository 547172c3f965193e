"""`prefect-resilience circuits ...`: show the circuits of a fleet and set them."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatchcase
from time import sleep
from typing import Annotated

from cyclopts import App, Parameter

from prefect_resilience.base.text import plural, sentence_of
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits.model import CircuitState
from prefect_resilience.operations import fleet_circuits as fleet
from prefect_resilience.operations.cli import look, options
from prefect_resilience.operations.cli.options import ANSWERING, ASKING, Answering, Asking, Flag, Limit

Name = Annotated[str, Parameter(help="The circuit's name, or a pattern in quotes, as in 'llm:*'.")]
Reason = Annotated[
    str, Parameter(show_default=False, help="The reason, for the next person who looks at the circuit.")
]

EVERY = "*"

app: App = App(name="circuits", version_flags=[])


@app.command(name="list")
def list_circuits(
    *, state: list[CircuitState] | None = None, limit: Limit = 100, how: Answering = ANSWERING
) -> int:
    """Show the circuits; those that reject calls come first.

    Example: prefect-resilience circuits list --state open --state forced_open

    Args:
        state: Only circuits in this state; repeat it for several.
        limit: The largest number of circuits in the table. With --json, all are printed.
    """
    with how.at_store(circuits=True) as url:
        every = fleet.read_circuits(url)
    if not every:
        says = f"There are no circuits in {redact(url)} yet: a circuit is stored at its first call."
        return how.answer([], says)
    counts_line = fleet.counts_line(every, url)
    circuits = [circuit for circuit in every if not state or circuit.state in state]
    if not circuits:
        return how.answer([], f"No circuit is {' or '.join(state or [])}: {counts_line}.")
    shown = f" (the first {limit} are shown)" if len(circuits) > limit else ""
    return how.answer(circuits, look.table(fleet.COLUMNS, circuits[:limit]), counts_line + shown)


@app.command
def show(name: str, /, *, how: Answering = ANSWERING) -> int:
    """Show all facts about one circuit.

    Example: prefect-resilience circuits show llm:primary

    Args:
        name: The circuit's name, as `circuits list` prints it.
    """
    with how.at_store(circuits=True) as url:
        circuit = fleet.find_circuit(name, fleet.read_circuits(url))
    return how.answer(circuit, look.card(circuit))


@app.command(name="open")
def open_circuit(name: Name, /, *, reason: Reason, until: str | None = None, how: Asking = ASKING) -> int:
    """Force a circuit open: every call of the fleet is rejected.

    Example: prefect-resilience circuits open llm:primary --reason "provider outage" --until 10m

    Args:
        until: 10m, 1h30m, or a time as in 2026-11-20T18:00; then a probe decides. By default the circuit
            stays open until it is closed.
    """
    return _act("open", name, how, reason, until=until)


@app.command
def close(name: Name, /, *, reason: Reason = "", how: Asking = ASKING) -> int:
    """Let calls through again. The circuit can open again as usual.

    Example: prefect-resilience circuits close llm:primary
    """
    return _act("close", name, how, reason)


@app.command
def disable(name: Name, /, *, reason: Reason, how: Asking = ASKING) -> int:
    """Let every call through and count nothing, until `close` or `reset`.

    Example: prefect-resilience circuits disable llm:primary --reason "it trips on test data"
    """
    return _act("disable", name, how, reason)


@app.command
def reset(
    name: Name | None = None, /, *, all: Flag = False, reason: Reason = "", how: Asking = ASKING
) -> int:
    """Reset circuits: state closed, windows empty, re-openings set to 0.

    Example: prefect-resilience circuits reset llm:primary
    Example: prefect-resilience circuits reset --all --yes

    Args:
        all: Every circuit in the store.
    """
    if all == (name is not None):
        raise ConfigurationError("choose the circuits to reset: either NAME or --all")
    return _act("reset", name or EVERY, how, reason)


@app.command
def watch(*, interval: float = 1.0, how: Answering = ANSWERING) -> int:
    """Show every circuit at an interval, until Ctrl-C. With --json, print a line each time.

    Example: prefect-resilience circuits watch --interval 2

    Args:
        interval: Seconds between two readings.
    """
    if not 0.05 <= interval <= 86_400:
        raise ConfigurationError(f"--interval {interval:g} must be 0.05 seconds to a day, as in 2")
    # Ctrl-C is the normal way to end it.
    with suppress(KeyboardInterrupt):
        while True:
            try:
                with how.at_store(circuits=True) as url:
                    circuits = fleet.read_circuits(url)
                if how.json:
                    look.as_json(circuits, indent=None)
                else:
                    look.stdout().clear()
                    look.show(look.table(fleet.COLUMNS, circuits), fleet.counts_line(circuits, url))
            except StoreUnavailable as error:
                look.say(sentence_of(error))
            sleep(interval)
    return 0


def _act(action: fleet.Action, name: str, how: Asking, reason: str, until: str | None = None) -> int:
    """Carry out the action on the circuits of this name or pattern, and show the changes."""
    if action in ("open", "disable") and not reason.strip():
        raise ConfigurationError('--reason is empty: write a reason, as in --reason "the provider is down"')
    moment = None if until is None else options.until(until, datetime.now().astimezone())
    changes: list[fleet.CircuitChange] = []
    with how.at_store(circuits=True) as url:
        circuits = {circuit.name: circuit for circuit in fleet.read_circuits(url)}
        if name == EVERY and not circuits:
            return how.answer([], f"There are no circuits in {redact(url)} yet: nothing to {action}.")
        chosen = [name] if name in circuits else [other for other in circuits if fnmatchcase(other, name)]
        if not chosen:
            raise ConfigurationError(fleet.unknown_circuit(name, circuits))
        if chosen != [name]:
            deed = f"{action} {plural(len(chosen), 'circuit')} for the whole fleet"
            how.confirm(deed, fleet.FEW, [circuits[other] for other in chosen], len(chosen))
        try:
            for other in chosen:
                after = fleet.change_circuit(other, action, reason, moment, url)
                changes.append(fleet.CircuitChange(name=other, before=circuits[other], after=after))
        finally:
            # If the store fails in between, show the changes before that.
            if changes or how.json:
                number = f"{plural(len(changes), 'circuit')} {fleet.DONE[action]} for the whole fleet."
                how.answer(changes, look.table(fleet.CHANGES, changes), number)
    return 0
