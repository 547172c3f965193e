"""Circuits as tables, printed once or watched. Each state has a word and a sign as well as a colour."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from prefect_resilience.base.text import lasting, plural, sentence_of
from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits.fleet import get_circuits
from prefect_resilience.guards.circuits.model import CircuitSnapshot
from prefect_resilience.operations.cli import look
from prefect_resilience.operations.cli.look import NUMBER, TEXT, WORD
from prefect_resilience.operations.cli.options import explained
from prefect_resilience.operations.flows import CircuitChange
from prefect_resilience.stores import open_store

ORDER = ("forced_open", "open", "half_open", "disabled", "closed")
MEANINGS = {
    "closed": "calls go through",
    "open": "calls are rejected until the next probe",
    "half_open": "probes decide whether it closes",
    "forced_open": "set by an operator; calls are rejected",
    "disabled": "set by an operator; every call goes through, and nothing is counted",
}
NARROWEST = 16
HEADINGS = ("failed", "in a row", "opened", "retry in", "probes")


@dataclass(frozen=True, slots=True)
class FleetCircuits:
    """The circuits of a store; those that reject calls come first. `now`: its time, `url`: redacted."""

    url: str
    now: float
    circuits: tuple[CircuitSnapshot, ...]


def read_circuits(url: str) -> FleetCircuits:
    """Read every circuit in the store. Raises StoreUnavailable with a sentence for the operator."""
    with explained(url):
        circuits = get_circuits(url)
        now = open_store(url).now()
    circuits.sort(key=lambda circuit: (ORDER.index(circuit.state), circuit.name))
    return FleetCircuits(redact(url), now, tuple(circuits))


def circuits_table(fleet: FleetCircuits) -> RenderableType:
    """A row for each circuit; below the table the reason of each circuit that is not closed."""
    rows = [_cells(circuit, fleet.now) for circuit in fleet.circuits]
    longest = max((cell_len(look.printable(circuit.name)) for circuit in fleet.circuits), default=0)
    # Omit a column that is empty for every circuit.
    kept = [place for place in range(len(HEADINGS)) if any(row[place] for row in rows)]
    columns = {"state": WORD, "circuit": min(longest, NARROWEST)}
    table = look.table(
        columns | {HEADINGS[place]: NUMBER for place in kept},
        (
            [look.state(circuit.state), circuit.name, *(row[place] for place in kept)]
            for circuit, row in zip(fleet.circuits, rows, strict=True)
        ),
    )
    return Group(table, *_reasons(fleet.circuits))


def _cells(circuit: CircuitSnapshot, now: float) -> list[str]:
    opened, retry = circuit.opened_at, circuit.retry_at
    return [
        f"{circuit.window_failures}/{circuit.window_calls}",
        str(circuit.consecutive_failures),
        "" if opened is None else f"{lasting(round(now - opened))} ago",
        "" if retry is None else lasting(round(retry - now)),
        str(circuit.probes_in_flight or ""),
    ]


def _reasons(circuits: Iterable[CircuitSnapshot]) -> Iterator[RenderableType]:
    for circuit in circuits:
        if circuit.state != "closed" and (reason := why(circuit)):
            line = Text("  ").append(look.printable(circuit.name), style="bold").append(f": {reason}")
            line.no_wrap, line.overflow = True, "ellipsis"
            yield line


def why(circuit: CircuitSnapshot) -> str:
    """The reason of the state and the last error, if there are any."""
    return "; ".join(look.safe(text) for text in (circuit.reason, circuit.last_error) if text)


def summary(fleet: FleetCircuits) -> str:
    """One line: the number of circuits and of open ones."""
    rejecting = sum(circuit.state in {"open", "forced_open"} for circuit in fleet.circuits)
    return f"{plural(len(fleet.circuits), 'circuit')}, {rejecting or 'none'} open, in {fleet.url}"


def card_rows(circuit: CircuitSnapshot, now: float) -> Iterator[tuple[str, look.Cell]]:
    """All facts about one circuit."""
    yield "circuit", circuit.name
    meaning = MEANINGS[circuit.state]
    yield "state", look.state(circuit.state).append(f"  {meaning}", style="not bold default")
    for label, text in (("reason", circuit.reason), ("last error", circuit.last_error)):
        yield label, look.safe(text) if text else "none"
    for label, moment in (("opened", circuit.opened_at), ("retry", circuit.retry_at)):
        yield label, "-" if moment is None else look.local(moment, now)
    counted = f"{circuit.window_calls} calls, {circuit.window_failures} failed, {circuit.window_slow} slow"
    sample = f" (a sample: 1 call in {round(1 / circuit.share_counted):,})"
    yield "window", counted if circuit.share_counted >= 1 else counted + sample
    yield "in a row", f"{circuit.consecutive_failures} failures"
    if circuit.usual_failure_rate is not None:
        yield "usually", f"{circuit.usual_failure_rate:.1%} of the calls fail"
    yield "re-openings", f"{circuit.reopenings} since the last full recovery"
    yield "probes", f"{circuit.probes_in_flight} in flight"
    yield "generation", str(circuit.generation)
    yield "changed", look.local(circuit.updated_at, now) if circuit.updated_at else "never"


def changes_table(changes: Iterable[CircuitChange]) -> Table:
    """A row for each changed circuit, with its state before and after."""
    columns = {"circuit": 12, "before": WORD, "after": WORD, "until": WORD, "why": TEXT}
    return look.table(
        columns,
        (
            (
                change.name,
                look.state(change.before.state) if change.before else "new",
                look.state(change.after.state),
                "" if change.after.retry_at is None else look.clock(change.after.retry_at),
                why(change.after),
            )
            for change in changes
        ),
    )


# -- watching


def watch_json(url: str, interval: float, count: int | None) -> int:
    """Print a line of JSON each time the store answers. An outage is reported on stderr."""
    answered = True
    for fleet, trouble in _looks(url, interval, count):
        if fleet is not None:
            look.as_json(fleet.circuits, indent=None)
        # Report an outage once, not at every reading.
        if answered and trouble:
            look.say(trouble)
        elif not answered and not trouble:
            look.say("The store is available again.")
        answered = not trouble
    return 0 if answered else 1


def watch_table(url: str, interval: float, count: int | None) -> int:
    """Draw the table in place on a terminal; elsewhere print it again each time."""
    last: tuple[FleetCircuits, datetime] | None = None
    trouble = ""
    with _canvas() as draw:
        for fleet, trouble in _looks(url, interval, count):
            if fleet is not None:
                last = fleet, datetime.now()
            draw(_picture(last, trouble, interval))
    return 1 if trouble else 0


def _looks(url: str, interval: float, count: int | None) -> Iterator[tuple[FleetCircuits | None, str]]:
    """Read the store `count` times (None: for ever). Yields the circuits, or an error sentence."""
    looked = 0
    while count is None or looked < count:
        if looked:
            time.sleep(interval)
        looked += 1
        try:
            yield read_circuits(url), ""
        except StoreUnavailable as error:
            yield None, sentence_of(error)


@contextmanager
def _canvas() -> Generator[Callable[[RenderableType], None], None, None]:
    console = look.stdout()
    if not console.is_terminal:
        yield console.print
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda picture: live.update(picture, refresh=True)


def _picture(last: tuple[FleetCircuits, datetime] | None, trouble: str, interval: float) -> RenderableType:
    parts: list[RenderableType] = []
    if trouble:
        parts.append(Text(trouble, style=look.VERMILION))
    if last is not None:
        fleet, at = last
        how = "as it was at" if trouble else f"every {interval:g} s, Ctrl-C ends it;"
        parts.append(Text(f"{summary(fleet)}; {how} {at:%H:%M:%S}"))
        if fleet.circuits:
            parts.append(circuits_table(fleet))
    return Group(*parts)
