"""A bad day, then the nightly operation, on loopback.

During the day a run is killed at its second order, and the payment service is down for three more orders.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from uuid import UUID

from prefect import get_client, serve
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from rich import box
from rich.console import Console
from rich.table import Table

from flows.digest_processes import shared_api
from flows.nightly.operation import nightly
from flows.nightly.shop import Payments, shop
from flows.own_process import HERE, run_apart
from flows.serving import running


@contextmanager
def worker() -> Iterator[None]:
    """A process that serves the deployment of the shop, and ends with the example."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.nightly", "serve"],
        cwd=HERE,
        env={**os.environ, "PREFECT_RUNNER_POLL_FREQUENCY": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with get_client(sync_client=True) as client:
            while True:
                try:
                    client.read_deployment_by_name("shop/example")
                    break
                except ObjectNotFound:
                    time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)  # the summary of the run that was killed is still being written


def ended(run_id: UUID, seconds: float = 60) -> FlowRun:
    """The flow run, when it has ended."""
    until = time.monotonic() + seconds
    with get_client(sync_client=True) as client:
        while True:
            run = client.read_flow_run(run_id)
            if time.monotonic() > until or (run.state is not None and run.state.is_final()):
                return run
            time.sleep(0.2)


def main() -> None:
    console, payments = Console(width=100, highlight=False), Payments()
    with shared_api(), worker():
        with running(payments) as address:
            crashed = run_deployment(
                "shop/example",
                parameters={"orders": [1, 2, 3], "payments": address, "crash_at": 2},
                timeout=60,
                poll_interval=0.5,
            )
        console.print(f"Day: a run was killed at order 2. Its state: {crashed.state.name}")
        charged = shop([4, 5, 6], address)
        console.print(f"Day: the payment service is down. Orders charged: {charged} of 3")
        with running(payments, urlsplit(address).port or 0):
            console.print("Night: the payment service is back\n")
            page = nightly(["shop"], wait=30, force=True)
            table = Table("what", "result", box=box.SIMPLE_HEAD)
            for name, result in page.items():
                table.add_row(name, result)
            console.print(table)
            recovered = ended(crashed.id)
    console.print(f"The killed run is now {recovered.state.name}")
    counts = Counter(charge["order"] for charge in payments.charges)
    console.print(f"Charges by order: {dict(sorted(counts.items()))}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run"]:
            main()
        case ["serve"]:
            serve(shop.to_deployment("example"))
        case _:
            sys.exit(run_apart("flows.nightly"))
