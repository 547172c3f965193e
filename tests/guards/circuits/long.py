"""The long forms of what real fleets go through, with their numbers.

    python -m tests.guards.circuits.long [dead] [killed] [news] [--store sqlite:////tmp/fleet.db]

Takes some minutes. Each store that is named must be empty; without any, it is a SQLite file of its own.
Exits with 1 when a bound is not kept. A disk that takes long over an fsync adds that to what is measured;
`--store sqlite:////dev/shm/fleet.db` leaves the disk out of it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable

from rich.console import Console

from tests.guards.circuits import scenarios
from tests.guards.circuits.scenarios import LEASE, OPEN_FOR, PROBE_TAKES

SLACK = 0.25
"""Seconds that two busy cores may add where processes are started, killed and looked at."""


def dead(url: str) -> tuple[str, bool]:
    """16 processes x 2,000 calls at a dead service, with one probe and then with three."""
    lines, kept = list[str](), True
    for probes in (1, 3):
        found = scenarios.dead_service(url, 16, 2000, probes=probes)
        lines.append(
            f"{found.calls} calls in {found.seconds:.1f} s, {found.reached} reached the service, "
            f"{found.leaked} of them after the opening ({found.leaked_share:.3%}, bound 1 %); "
            f"probes at once: {found.probes_at_once} (bound {probes})"
        )
        kept = kept and found.leaked_share < 0.01 and found.probes_at_once <= probes
    return "\n".join(lines), kept


def killed(url: str) -> tuple[str, bool]:
    """kill -9 of the prober, 200 times at random moments."""
    found = scenarios.killed_probers(url, 200, at_once=3)
    after = sorted(one.closed_after for one in found)
    bound = LEASE + OPEN_FOR
    over = sum(seconds > bound for seconds in after)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg()[:2])
    told = (
        f"{len(found)} probers killed, {len(after)} circuits closed again: median "
        f"{statistics.median(after):.2f} s after the service's return, worst {after[-1]:.2f} s; beyond "
        f"probe_lease + open_for ({bound} s): {over}, "
        f"beyond that and a call of {PROBE_TAKES} s: {sum(s > bound + PROBE_TAKES for s in after)}; "
        f"the machine's load: {load}"
    )
    return told, after[-1] <= bound + PROBE_TAKES + SLACK


def news(url: str) -> tuple[str, bool]:
    """How long until the last of 16 processes acts on the document's change."""
    found = scenarios.news(url, 16, 30)
    opened = max(one.opened for one in found)
    closed = max(one.closed for one in found)
    told = (
        f"{len(found)} times opened and closed by hand: the last of 16 processes acted on the opening after "
        f"{opened:.3f} s at worst, on the closing after {closed:.3f} s (bound 0.550 s)"
    )
    return told, max(opened, closed) <= 0.55


SCENARIOS: dict[str, Callable[[str], tuple[str, bool]]] = {"dead": dead, "killed": killed, "news": news}


def main() -> int:
    """Run what was named, or everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenarios", nargs="*", metavar="|".join(SCENARIOS), help="all when none is named")
    parser.add_argument("--store", help="an empty store's URL")
    options = parser.parse_args()
    console = Console(highlight=False, width=120)
    all_kept = True
    for name in options.scenarios or SCENARIOS:
        with tempfile.TemporaryDirectory() as folder:
            told, kept = SCENARIOS[name](options.store or f"sqlite:///{folder}/fleet.db")
        console.print(f"{name}: {told}{'' if kept else '  NOT KEPT'}")
        all_kept = all_kept and kept
    return 0 if all_kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
