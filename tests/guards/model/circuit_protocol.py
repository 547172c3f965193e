"""The circuit's protocol, explored exhaustively for small sizes with the real `machine.step`.

    python -m tests.guards.model.circuit_protocol                       the standard sizes, in some minutes
    python -m tests.guards.model.circuit_protocol --processes 3 --coarse --skew 1 --probe-lease 4
    python -m tests.guards.model.circuit_protocol --broken "no lease expiry"

Processes load, decide, swap, call, report, and die at any point; the service goes down and comes back; time
passes in ticks; hosts' clocks differ by up to `--skew` ticks either way; with `news`, messages are late,
doubled and lost. In every state that can be reached: no more than `probes` calls are under way in half-open,
no late result was counted, there is a way to closed, and, while the service is well, no way round it. Exits
with 1, and prints the shortest way to the mistake, when that does not hold.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from tests.guards.model.actions import BROKEN
from tests.guards.model.explore import Found, TooLarge, explore
from tests.guards.model.states import Doc, Proc, Setup, State

STANDARD = (
    Setup(),
    Setup(probes=2),
    Setup(failure_threshold=2),
    Setup(success_threshold=2),
    Setup(probe_calls=2),
    Setup(skew=1, probe_lease=4),
    Setup(coarse=True, news=True),
    Setup(processes=3, coarse=True),
    Setup(processes=3, coarse=True, probes=2),
    Setup(processes=3, coarse=True, success_threshold=2),
    Setup(processes=3, coarse=True, failure_threshold=2),
)


def table(found: Iterable[Found]) -> Table:
    """One row for each exploration."""
    made = Table(title="The circuit's protocol, every state of it")
    for name in ("processes", "probes", "threshold", "successes", "of", "open for", "lease", "skew", "moves"):
        made.add_column(name, justify="right")
    for name in ("states", "transitions", "depth", "seconds", "holds"):
        made.add_column(name, justify="right")
    for one in found:
        setup = one.setup
        sizes = (setup.processes, setup.probes, setup.failure_threshold)
        closing = (setup.success_threshold, setup.policy.most_probes)
        times = (setup.open_for, setup.probe_lease, setup.skew, "coarse" if setup.coarse else "all")
        counts = (f"{one.states:,}", f"{one.transitions:,}", one.depth, f"{one.seconds:.1f}")
        made.add_row(
            *(str(cell) for cell in (*sizes, *closing, *times, *counts, "no" if one.wrong else "yes"))
        )
    return made


def told(found: Found) -> str:
    """What is wrong, and the shortest way there, one step a line."""
    fault = f" with {found.setup.broken}" if found.setup.broken else ""
    lines = [f"{found.wrong}{fault}:"]
    for number, (label, state) in enumerate(found.trace):
        lines.append(f"{number:4d}  {label:46s} {_state(state)}")
    return "\n".join(lines)


def _state(state: State) -> str:
    procs = " ".join(_proc(proc) for proc in state.procs)
    return f"{_doc(state.doc)} | service {'up' if state.up else 'down'} | {procs}"


def _doc(doc: Doc) -> str:
    leases = ",".join(f"{lease.owner} until {lease.until:+d}" for lease in doc.leases)
    return f"{doc.state} gen {doc.generation}{f' leases {leases}' if leases else ''}"


def _proc(proc: Proc) -> str:
    permit = "" if proc.generation is None else f"(gen {proc.generation}{', lease' if proc.owner else ''})"
    return f"{proc.phase}{permit}"


def main() -> int:
    """Explore what the arguments say, or the standard sizes without any."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = (
        "processes",
        "probes",
        "failure_threshold",
        "success_threshold",
        "probe_calls",
        "open_for",
        "probe_lease",
        "skew",
    )
    for name in sizes:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    parser.add_argument("--coarse", action="store_true", default=None, help="load and decide in one move")
    parser.add_argument("--broken", choices=BROKEN, help="put a fault into the protocol")
    parser.add_argument("--most-states", type=int, default=5_000_000)
    options = vars(parser.parse_args())
    most_states = options.pop("most_states")
    given = {name: value for name, value in options.items() if value is not None}
    console = Console(width=130)
    found: list[Found] = []
    for setup in [Setup(**given)] if given else STANDARD:
        try:
            found.append(explore(setup, most_states))
        except TooLarge as error:
            console.print(f"{setup}: {error}; nothing is proved")
            return 1
    console.print(table(found))
    wrong = [one for one in found if one.wrong]
    for one in wrong:
        console.print(told(one), soft_wrap=True, highlight=False)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
