"""The long form of the crash test, with its numbers.

    python -m tests.effects.long kills 1000 [--store URL] [--seed N]

Kills real processes that run a flow of external effects, at any line, and restarts them until they end: the
one half with a receiver that cannot be asked, the other half with `verify`. The store that is named must be
empty; without one it is a SQLite file of its own. Exits with 1 when anything was sent twice, guessed or lost.
"""

from __future__ import annotations

import argparse
import tempfile
import time

from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_API_URL
from prefect.testing.utilities import prefect_test_harness

from tests.effects.receiver import Receiver
from tests.effects.victim import Toll, kill_often


def told(toll: Toll, verify: bool, seconds: float) -> str:
    asked = "verify asked" if verify else "no verify"
    return (
        f"{asked}: {toll.kills} kills in {seconds:.0f} s, {toll.batches} flows; {toll.sent} effects taken "
        f"exactly once, {toll.doubts} wait for a person, {len(toll.mistakes)} went wrong"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["kills"])
    parser.add_argument("number", type=int)
    parser.add_argument("--store")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    mistakes: list[str] = []
    with prefect_test_harness(server_startup_timeout=120), tempfile.TemporaryDirectory() as folder:
        api = PREFECT_API_URL.value() or SubprocessASGIServer._instances[None].api_url
        store = options.store or f"sqlite:///{folder}/effects.db"
        for verify in (False, True):
            receiver = Receiver()
            begun = time.monotonic()
            kills = options.number // 2
            toll = kill_often(receiver, store, api, kills=kills, verify=verify, count=20, seed=options.seed)
            print(told(toll, verify, time.monotonic() - begun), flush=True)
            mistakes += toll.mistakes
            receiver.close()
    print(*mistakes, sep="\n")
    return 1 if mistakes else 0


if __name__ == "__main__":
    raise SystemExit(main())
