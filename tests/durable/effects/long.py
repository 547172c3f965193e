"""The long forms of the crash tests, with their numbers.

    python -m tests.durable.effects.long kills 1000 [--seed N] [--minutes N]
    python -m tests.durable.effects.long rollbacks 1000 [--seed N] [--store URL]

`kills`: flows of 20 external effects, deployed and run by a real worker, are killed at any instruction and
recovered until they end, over SQLite, PostgreSQL and Redis; some of their calls outlive their attempts. Some
processes are stopped for longer than their lease, while another one begins with the run, and then go on or
are killed.
`rollbacks`: processes that roll batches back are killed at any line and started again; the store that is
named must be empty. Both exit with 1 when anything was done twice, guessed, lost or out of order.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_API_URL
from prefect.testing.utilities import prefect_test_harness

from prefect_resilience.durable.batches.edge import recovery
from prefect_resilience.durable.effects import owner
from tests.durable.effects import saga_victim
from tests.durable.effects.receiver import Receiver
from tests.durable.effects.worker_kills_campaign import Campaign, Toll
from tests.durable.effects.worker_kills_fleet import Fleet, server
from tests.durable.effects.worker_kills_flow import SHORT
from tests.stores_servers import PostgresServer, RedisServer

SHARES = {"forked": 0.8, "engine": 0.12, "started": 0.08}
"""Of the kills; a process that is started costs ten times one that is forked."""

LANES = {"forked": 4, "engine": 1, "started": 1}
TABLE_EVERY = 10


@contextmanager
def stores(folder: Path) -> Iterator[dict[str, str]]:
    """An empty store of each kind."""
    servers = [PostgresServer(), RedisServer()]
    try:
        for one in servers:
            one.start()
        postgres, redis = servers
        yield {
            "sqlite": f"sqlite:///{folder}/effects.db",
            "postgres": postgres.url(),
            "redis": redis.url(prefix="kills"),
        }
    finally:
        for one in servers:
            one.remove()


def told(began: float, toll: Toll) -> None:
    """Say how it stands, after every run; the whole table now and then."""
    by = ", ".join(f"{name} {n}" for (name,), n in sorted((toll.by("store") + toll.by("route")).items()))
    minutes = (time.monotonic() - began) / 60
    print(f"{minutes:6.1f} min  {toll.verdict} ({by})", flush=True)
    for mistake in toll.tales[-1].mistakes:
        print(mistake, flush=True)
    if len(toll.tales) % TABLE_EVERY == 0:
        print(toll.table(), flush=True)


def kills(options: argparse.Namespace) -> list[str]:
    # As soon as a crash is reported: what is reported once more, the recovery must stand.
    recovery.CRASH_SETTLES = 0.0
    # Owners have short times, too.
    recovery.OWNER_SETTLES = sum(SHORT[name] for name in ("LEASE_SECONDS", "QUIET_SECONDS")) + 30.0
    for setting, value in SHORT.items():
        setattr(owner, setting, value)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        api = stack.enter_context(server(folder))
        urls = stack.enter_context(stores(folder))
        campaign = Campaign(
            stack.enter_context(Fleet(folder, api)),
            api,
            urls,
            kills={route: round(options.number * share) for route, share in SHARES.items()},
            lanes=LANES,
            seed=options.seed,
            most_kills={"forked": 12, "engine": 8, "started": 8},
            until=time.monotonic() + 60 * options.minutes,
            told=partial(told, began),
            patience=10,
        )
        toll = campaign.go()
    minutes = (time.monotonic() - began) / 60
    print(toll.table(), f"{minutes:.1f} minutes, {len(campaign.failures)} runs lost", sep="\n", flush=True)
    print(*map(repr, campaign.failures), sep="\n")
    if toll.kills < options.number:
        print(f"the time is over after {toll.kills} of {options.number} kills")
    return toll.mistakes


def rollbacks(options: argparse.Namespace) -> list[str]:
    with prefect_test_harness(server_startup_timeout=120), tempfile.TemporaryDirectory() as folder:
        api = PREFECT_API_URL.value() or SubprocessASGIServer._instances[None].api_url
        store = options.store or f"sqlite:///{folder}/effects.db"
        receiver = Receiver()
        begun = time.monotonic()
        toll = saga_victim.kill_often(receiver, store, api, kills=options.number, count=10, seed=options.seed)
        receiver.close()
        print(
            f"{toll.kills} kills in {time.monotonic() - begun:.0f} s, {toll.batches} batches; {toll.undone} "
            f"effects undone exactly once, {toll.doubts} wait for a person, {len(toll.mistakes)} went wrong"
        )
    return toll.mistakes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["kills", "rollbacks"])
    parser.add_argument("number", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=100.0)
    parser.add_argument("--store")
    options = parser.parse_args()
    # What was started is ended with this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    mistakes = kills(options) if options.what == "kills" else rollbacks(options)
    print(*mistakes, sep="\n")
    return 1 if mistakes else 0


if __name__ == "__main__":
    raise SystemExit(main())
