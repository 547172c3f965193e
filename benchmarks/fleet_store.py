"""What one closed, busy circuit asks of its store, from 4 workers to a million: pushed, and polled.

    python -m benchmarks.fleet_store [--sizes 10 1000 ...] [--real 4 8 16 32 64] [--plot docs/fleet_store.png]

Simulated by `fleet_crowd` (pushed) and `fleet_simulation` (polled), and measured by `fleet_processes` on real
servers. A simulated worker calls once a second, a real one CALLS_PER_SECOND times.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks import fleet_crowd, fleet_processes, fleet_simulation


def simulated(sizes: list[int], usual: float, seed: int) -> list[dict[str, Any]]:
    """Operations a second while the circuit is closed, both ways."""
    rows: list[dict[str, Any]] = []
    for size in sizes:
        pushed = fleet_crowd.simulate(size, usual, 0.0, seed)
        polled = fleet_simulation.numbers(fleet_simulation.simulate(size, True, seed), True, 0)
        rows.append(
            {
                "workers": size,
                "pushed": pushed["store_per_second_closed"],
                "polled": polled["store_per_second_closed"],
            }
        )
    return rows


def main() -> int:
    """Simulate, measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=list(fleet_crowd.SIZES))
    parser.add_argument("--real", type=int, nargs="*", default=list(fleet_processes.SIZES))
    parser.add_argument("--usual", type=float, default=0.0, help="the failure rate of the working service")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, help="draw it into this file")
    options = parser.parse_args()
    rows = simulated(options.sizes, options.usual, options.seed)
    print(json.dumps(rows, indent=2))
    measured = fleet_processes.measure_all(options.real)
    fleet_processes.show(measured)
    if options.plot:
        from benchmarks.fleet_plot import draw_store_load

        draw_store_load(rows, measured, options.plot)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
