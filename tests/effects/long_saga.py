"""The long form of the crash test of rollbacks, with its numbers.

    python -m tests.effects.long_saga kills 1000 [--store URL] [--seed N]

Kills real processes that roll batches back, at any line, and starts them again until they end. Every second
compensation can be asked about (`verify`). The store that is named must be empty; without one it is a SQLite
file of its own. Exits with 1 when anything was undone twice, guessed, forgotten or out of order.
"""

from __future__ import annotations

import argparse
import tempfile
import time

from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_API_URL
from prefect.testing.utilities import prefect_test_harness

from tests.effects.receiver import Receiver
from tests.effects.saga_victim import kill_often


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["kills"])
    parser.add_argument("number", type=int)
    parser.add_argument("--store")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with prefect_test_harness(server_startup_timeout=120), tempfile.TemporaryDirectory() as folder:
        api = PREFECT_API_URL.value() or SubprocessASGIServer._instances[None].api_url
        store = options.store or f"sqlite:///{folder}/effects.db"
        receiver = Receiver()
        begun = time.monotonic()
        toll = kill_often(receiver, store, api, kills=options.number, count=10, seed=options.seed)
        receiver.close()
        print(
            f"{toll.kills} kills in {time.monotonic() - begun:.0f} s, {toll.batches} batches; {toll.undone} "
            f"effects undone exactly once, {toll.doubts} wait for a person, {len(toll.mistakes)} went wrong",
            *toll.mistakes,
            sep="\n",
        )
    return 1 if toll.mistakes else 0


if __name__ == "__main__":
    raise SystemExit(main())
