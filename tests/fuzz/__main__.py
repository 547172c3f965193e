"""`make fuzz`: hostile input for everything that reads what others wrote.

    python -m tests.fuzz [--seconds 60] [target ...]

atheris (libFuzzer) drives the Hypothesis tests of `targets.py`, led by the branches that an input reaches,
and keeps what it learnt in .pytest_cache/fuzz. Each target has a process and so many seconds of its own. The
exit code is 1 when one has found something.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".pytest_cache" / "fuzz"


def drive(name: str, seconds: int) -> None:
    """Inputs for one target, until the time is up or something is found."""
    corpus = PLACE / name
    corpus.mkdir(parents=True, exist_ok=True)
    import atheris

    with atheris.instrument_imports(include=["prefect_resilience"]):
        from tests.fuzz.targets import TARGETS
    one = TARGETS[name].hypothesis.fuzz_one_input  # type: ignore[attr-defined]
    options = [
        f"-max_total_time={seconds}",
        "-print_final_stats=1",
        "-timeout=60",
        "-max_len=8192",
        f"-artifact_prefix={PLACE}/{name}-",
        "-verbosity=0",
        "-rss_limit_mb=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], lambda data: one(data) and None)
    atheris.Fuzz()


def main() -> None:
    words = argparse.ArgumentParser(description="Hostile input for everything that reads what others wrote.")
    words.add_argument("targets", nargs="*", help="all if none is named")
    words.add_argument("--seconds", type=int, default=60, help="for each target")
    words.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    asked = words.parse_args()
    if asked.one:
        drive(asked.targets[0], asked.seconds)
        return
    from tests.fuzz.targets import TARGETS

    if unknown := set(asked.targets) - set(TARGETS):
        words.error(f"{sorted(unknown)} are no targets: write some of {', '.join(TARGETS)}")
    found = [name for name in asked.targets or TARGETS if not _well(name, asked.seconds)]
    raise SystemExit(1 if found else 0)


def _well(name: str, seconds: int) -> bool:
    """Whether nothing was found; prints what was done."""
    command = [sys.executable, "-m", "tests.fuzz", "--one", "--seconds", str(seconds), name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    told = done.stdout + done.stderr
    executed = re.search(r"number_of_executed_units: *(\d+)", told)
    kept = len(list((PLACE / name).iterdir()))
    print(f"{name:<20}{int(executed[1]) if executed else 0:>10,} inputs, {kept:>6,} kept", end="", flush=True)
    print("" if done.returncode == 0 else f"   FOUND:\n{told[-6000:]}", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    main()
