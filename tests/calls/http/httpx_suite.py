"""httpx's own test suite, with our transports between each client and its transport.

    python -m tests.calls.http.httpx_suite CHECKOUT [--packages DIR] [pytest options]

CHECKOUT is a clone of github.com/encode/httpx at the version in constraints.txt. All of its tests run twice:
as they are, and with `ResilientTransport` and `AsyncResilientTransport`, with retries, a circuit, a timeout
and `idle`. A test that passes as it is and fails with ours is a difference; LEFT_OUT has those that are
intended. The exit code is 1 if there is another one, or if one that is listed passes.

The packages that only the suite needs are installed into DIR, by default a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[3]
PLUGIN = Path(__file__).with_name("httpx_suite_plugin.py")
PACKAGES = (
    *("trustme==1.2.0", "chardet==5.2.0", "brotli", "zstandard", "socksio"),
    *("trio", "sortedcontainers", "outcome", "attrs", "sniffio"),
)
OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:asyncio", "-p", PLUGIN.stem)

LEFT_OUT: dict[str, str] = {
    "tests/client/test_proxies.py::test_socks_proxy": "looks at the class of the client's transport",
    "tests/client/test_proxies.py::test_proxies_environ*": "looks into the connection pool of the transport",
    "*[[]trio*": "the guards wait on asyncio, as Prefect does",
}
"""The tests that fail with ours on purpose, and why. `[[]` is a bracket for fnmatch."""


@dataclass(frozen=True)
class Outcome:
    outcome: str
    error: str


def main() -> None:
    words = argparse.ArgumentParser(prog="python -m tests.calls.http.httpx_suite", description=__doc__)
    words.add_argument("checkout", type=Path, help="a clone of httpx, at the version to test")
    words.add_argument("--packages", type=Path, help="a folder with the suite's packages; made if missing")
    asked, options = words.parse_known_args()
    if not (asked.checkout / "tests" / "client").is_dir():
        words.error(f"{asked.checkout} has no tests/client: name the folder of a clone of httpx")
    with tempfile.TemporaryDirectory() as folder:
        packages = (asked.packages or Path(folder) / "packages").absolute()
        if not packages.exists():
            install(packages)
        runs = {
            kind: run(kind, asked.checkout.absolute(), packages, Path(folder), options)
            for kind in ("plain", "ours")
        }
    raise SystemExit(1 if report(runs["plain"], runs["ours"]) else 0)


def install(folder: Path) -> None:
    # Without dependencies: those that this package has too would hide its own.
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, *PACKAGES]
    subprocess.run(command, check=True)


def run(kind: str, checkout: Path, packages: Path, folder: Path, options: list[str]) -> dict[str, Outcome]:
    """The outcome of each test of the suite."""
    file = folder / f"{kind}.jsonl"
    file.touch()
    paths = [str(PLUGIN.parent), str(checkout), str(packages), str(ROOT)]
    variables = {
        "HTTPX_SUITE_TRANSPORTS": kind,
        "HTTPX_SUITE_OUTCOMES": str(file),
        "PYTHONPATH": os.pathsep.join(paths),
        "PREFECT_HOME": str(folder),
        "PREFECT_RESILIENCE_STORE_URL": "memory://",
    }
    print(f"{kind} ...", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS, *options, "tests"],
        cwd=checkout,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"httpx's suite did not run:\n{done.stdout[-3000:]}")
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {line["test"]: Outcome(line["outcome"], line["error"]) for line in lines}


def report(plain: dict[str, Outcome], ours: dict[str, Outcome]) -> bool:
    """Print what differs. True if something is not as listed."""
    gone = Outcome("gone", "")
    passed = [name for name, one in plain.items() if one.outcome == "passed"]
    differing = {name: ours.get(name, gone) for name in passed}
    differing = {name: one for name, one in differing.items() if one.outcome != "passed"}
    good = len(passed) - len(differing)
    print(f"{len(plain):,} tests; {len(passed):,} pass as they are; {good:,} of these pass with ours")
    wrong = False
    used: set[str] = set()
    for name, one in differing.items():
        pattern = next((pattern for pattern in LEFT_OUT if fnmatch(name, pattern)), None)
        if pattern is None:
            wrong = True
            print(f"NOT LISTED: {name}: {one.outcome}: {one.error}")
        else:
            used.add(pattern)
            print(f"left out: {name}: {LEFT_OUT[pattern]}")
    for pattern in LEFT_OUT.keys() - used:
        wrong = True
        print(f"NO DIFFERENCE ANY MORE: {pattern}")
    return wrong


if __name__ == "__main__":
    main()
