"""The second gate of `make test`: the whole package, where pytest holds the pure files to 100 %.

    python -m tests.project.coverage_gates [--show]

reads what the run before it measured, and says nothing where it is enough. Code that only runs in processes
of its own is not measured.
"""

from __future__ import annotations

import sys
from io import StringIO
from pathlib import Path

from coverage import Coverage

ROOT = Path(__file__).parents[2]
LEAST = 95.0


def main() -> None:
    coverage = Coverage(config_file=str(ROOT / "pyproject.toml"))
    coverage.load()
    package = str(ROOT / "prefect_resilience" / "*")
    covered = coverage.report(include=[package], file=StringIO(), skip_covered=True, show_missing=False)
    if covered >= LEAST and "--show" not in sys.argv:
        return  # the last line of `make test` stays pytest's own
    print(f"The package is covered to {covered:.1f} % of its lines and branches, of at least {LEAST:.0f} %.")
    sys.exit(covered < LEAST)


if __name__ == "__main__":
    main()
