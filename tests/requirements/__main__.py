"""The table of requirements: `python -m tests.requirements [--write]`; it fails for a row without a test."""

from __future__ import annotations

import argparse
import sys

from tests.requirements.table import PAGE, page, rows, unknown


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.requirements", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}, too")
    written = page()
    if parser.parse_args().write:
        PAGE.write_text(written)
    print(written)
    empty = [row.id for row in rows() if not row.tests]
    wrong = [one.test for one in unknown()]
    print(
        f"{len(rows())} rows; without a test: {', '.join(empty) or 'none'}; unknown rows named by: "
        f"{', '.join(wrong) or 'none'}",
        file=sys.stderr,
    )
    return 1 if empty or wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
