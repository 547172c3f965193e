"""Deployed flows behind a service that is down: what they hold while it is, and how they come back.

    python -m benchmarks.parked_fleet --runs 20 --down 120
    python -m benchmarks.parked_fleet --runs 20 --down 120 --plain        Prefect's own retries, beside it
    python -m benchmarks.parked_fleet --runs 20 --down 120 --kill         the server and the worker are killed
    python -m benchmarks.parked_fleet --runs 20 --down 120 --retry-after  the service says when it is back

Starts a Prefect server, a process worker and a service on the loopback. The service answers 503 while it is
down. Each flow calls it in three tasks; the second one is an external effect. With --kill, the server and the
worker are killed in the middle of the outage, when each run has begun, and started again 10 s later. The
operation `crash-silent-runs` runs every 2 minutes, as its deployment does: a run whose worker was killed
while it started the run stays Pending.

What is held is counted while the service is down: each process by the state of its flow run, and the slots of
the deployment's concurrency limit. A probe, and a run that starts for the first time, are not parked.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_resilience.testing import ScriptedService
from prefect_resilience.testing.services import ReceivedRequest, Reply
from tests.prefect_server import end_server, start_server

ROOT = Path(__file__).parents[1]
RUN_ID = b"PREFECT__FLOW_RUN_ID="

PROGRAM = """
import os
import httpx
from prefect import flow, task
from prefect_resilience import CircuitBreaker, Effect, Retry, resilient_flow, resilient_task

CIRCUIT = CircuitBreaker("shop", failure_threshold=2, open_for=os.environ["OPEN_FOR"], open_backoff=1)

def ask(what):
    answer = httpx.post(os.environ["SHOP"], content=what)
    if answer.status_code == 503:
        raise httpx.HTTPStatusError("503", request=answer.request, response=answer)
    return answer.text

@resilient_task(circuit=CIRCUIT, retry=Retry(attempts=2, backoff="none"), persist_result=True)
def read(n):
    return ask(f"read {n}")

@resilient_task(circuit=CIRCUIT, retry=Retry(2, backoff="none"), effect=Effect(key="{n}", one_request=True))
def order(n):
    return ask(f"order {n}")

@resilient_task(circuit=CIRCUIT, retry=Retry(attempts=2, backoff="none"), persist_result=True)
def note(n):
    return ask(f"note {n}")

@resilient_flow(retry=Retry(park_after="1s"), name="shop")
def shop(n: int):
    return [read(n), order(n), note(n)]

retries = int(os.environ["RETRIES"])
read_plain, order_plain, note_plain = (
    task(step.guard.fn, name=step.name, retries=retries, retry_delay_seconds=10, persist_result=True)
    for step in (read, order, note)
)

@flow(name="plain")
def plain(n: int):
    return [read_plain(n), order_plain(n), note_plain(n)]
"""


class Shop(ScriptedService):
    """Answers 503 until it is back, and takes as long for an order as a service does."""

    def __init__(self) -> None:
        self.back_at, self.taken, self.asked = 0.0, Counter[str](), list[float]()
        self.says_when = False
        super().__init__()

    def answer(self, request: ReceivedRequest) -> Reply:
        self.asked.append(time.time())
        if (wait := self.back_at - time.time()) > 0:
            return Reply(503, headers={"Retry-After": str(math.ceil(wait))} if self.says_when else {})
        self.taken[request.body.decode()] += 1
        time.sleep(0.2)
        return Reply(body={"taken": True})


def processes_of_runs() -> Counter[str]:
    """How many processes each flow run has, by its id."""
    found = Counter[str]()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            variables = (folder / "environ").read_bytes().split(b"\0")
            found.update(each[len(RUN_ID) :].decode() for each in variables if each.startswith(RUN_ID))
    return found


@dataclass(frozen=True)
class Sample:
    """One look at all runs: how many were Parked, and what these and the others held. `late`: the seconds for
    which a process has outlived the parking of its run."""

    at: float
    parked: int
    processes_of_parked: int
    processes_of_others: int
    slots_of_parked: int
    slots_of_others: int
    late: float


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """Start the flows while the service is down, and wait for their ends."""
    folder = Path(tempfile.mkdtemp(prefix="parked-"))
    (folder / "program.py").write_text(PROGRAM)
    with Shop() as shop:
        shop.says_when = asked.retry_after
        environment = {
            **os.environ,
            "PREFECT_API_URL": start_server(folder, os.getpid()),
            "PREFECT_HOME": str(folder),
            "PREFECT_RESILIENCE_STORE_URL": f"sqlite:///{folder}/store.db",
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "PREFECT_LOGGING_LEVEL": "ERROR",
            "PYTHONPATH": str(ROOT),
            "SHOP": shop.url,
            "OPEN_FOR": asked.open_for,
            "RETRIES": str(int(asked.down / 10) + 6),
        }
        os.environ.update(environment)
        try:
            return _measure(asked, folder, shop)
        finally:
            end_server(folder)


def _measure(asked: argparse.Namespace, folder: Path, shop: Shop) -> dict[str, Any]:
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with (
        temporary_settings({PREFECT_API_URL: os.environ["PREFECT_API_URL"]}),
        get_client(sync_client=True) as client,
    ):
        client.create_work_pool(WorkPoolCreate(name="fleet", type="process"))
        source: Any = flow.from_source(str(folder), f"program.py:{'plain' if asked.plain else 'shop'}")
        deployment = source.deploy(
            name="d",
            work_pool_name="fleet",
            concurrency_limit=4 * asked.runs,  # only to count the slots
            print_next_steps=False,
            ignore_warnings=True,
        )
        wave = Wave(client, deployment, folder)
        try:
            usual = wave.run(asked.runs, shop, 0.0, "usual")
            outage = wave.run(asked.runs, shop, asked.down, "outage", asked.kill)
        finally:
            wave.worker.kill()  # all runs have ended, and a worker may hang at its end
            wave.worker.wait()
    return {"usual": usual, "outage": outage, "folder": str(folder)}


class Wave:
    """The same runs at once, and what they hold until all have ended."""

    def __init__(self, client: Any, deployment: Any, folder: Path) -> None:
        self.client, self.deployment, self.folder = client, deployment, folder
        self.worker = self.start_worker()

    def start_worker(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "prefect", "worker", "start", "--type", "process", "--pool", "fleet"]
        log = (self.folder / "worker.log").open("ab")
        return subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        """Kill the server and the worker, and start both again."""
        self.worker.kill()
        self.worker.wait()
        end_server(self.folder)
        time.sleep(10)
        start_server(self.folder, os.getpid())
        self.worker = self.start_worker()

    def read(self, ids: list[Any]) -> list[Any]:
        from prefect.client.schemas.filters import FlowRunFilter

        wanted = FlowRunFilter.model_validate({"id": {"any_": ids}})
        return sorted(self.client.read_flow_runs(flow_run_filter=wanted), key=lambda run: run.id)

    def look(self, ids: list[Any], began: float) -> tuple[list[Any], Sample]:
        """The runs, and what they hold."""
        before, processes, slots = self.read(ids), processes_of_runs(), self.count_slots()
        read = self.read(ids)
        parked = [new for old, new in zip(before, read, strict=True) if is_still_parked(old, new)]
        lingering = [run for run in parked if processes[str(run.id)]]
        held = max(sum(run.state.type.value in HOLDING for run in both) for both in (before, read))
        parked_at = min((run.state.timestamp.timestamp() for run in lingering), default=time.time())
        return read, Sample(
            at=time.time() - began,
            parked=len(parked),
            processes_of_parked=len(lingering),
            processes_of_others=sum(processes[str(run.id)] > 0 for run in read) - len(lingering),
            slots_of_parked=max(slots - held, 0),
            slots_of_others=min(slots, held),
            late=max(time.time() - parked_at, 0.0),
        )

    def count_slots(self) -> int:
        """The slots of the deployment's concurrency limit that are taken."""
        limit = self.client.read_deployment(self.deployment).global_concurrency_limit
        return self.client.read_global_concurrency_limit_by_name(limit.name).active_slots or 0

    def run(self, runs: int, shop: Shop, down: float, name: str, kill: bool = False) -> dict[str, Any]:
        shop.taken.clear()
        shop.asked.clear()
        from prefect_resilience.operations import crash_silent_runs

        began = time.time()
        shop.back_at = began + down
        ids = [
            self.client.create_flow_run_from_deployment(
                self.deployment, parameters={"n": number}, name=f"{name}-{number}"
            ).id
            for number in range(runs)
        ]
        samples, read = list[Sample](), list[Any]()
        operation_at = began + EVERY if kill else math.inf
        while time.time() < began + down + 900:
            if kill and time.time() > began + down / 2 and all(run.run_count for run in read):
                self.kill()
                kill = False
            if time.time() > operation_at:
                crash_silent_runs()
                operation_at += EVERY
            read, sample = self.look(ids, began)
            samples.append(sample)
            if all(run.state.name in ("Completed", "Failed", "Crashed") for run in read):
                break
            time.sleep(1.0)
        ended = max(run.state.timestamp.timestamp() for run in read)
        while_down = [sample for sample in samples if sample.at < down]
        quiet = [sample for sample in while_down if sample.at >= down / 2]
        back = max(shop.back_at, began)
        probe = min((at for at in shop.asked if at >= back), default=ended)
        return {
            "states": dict(Counter(run.state.name for run in read)),
            "seconds after its return": round(ended - back, 1),
            "seconds from its return to the first request": round(probe - back, 1),
            "seconds from that request to the last end": round(ended - probe, 1),
            "looks at a run that was Parked": sum(sample.parked for sample in while_down),
            "of these with a process": sum(sample.processes_of_parked for sample in while_down),
            "of these with a slot": sum(sample.slots_of_parked for sample in while_down),
            "seconds for which a process outlived the parking": round(
                max((sample.late for sample in samples), default=0.0), 1
            ),
            "second half: parked runs, mean": _mean([sample.parked for sample in quiet]),
            "second half: processes of parked runs": _mean([sample.processes_of_parked for sample in quiet]),
            "second half: slots of parked runs": _mean([sample.slots_of_parked for sample in quiet]),
            "second half: processes of other runs": _mean([sample.processes_of_others for sample in quiet]),
            "second half: slots of other runs": _mean([sample.slots_of_others for sample in quiet]),
            "requests while it was down": sum(at < shop.back_at for at in shop.asked),
            "requests in the busiest second after": _busiest([at for at in shop.asked if at >= shop.back_at]),
            "orders taken twice": sum(
                count > 1 for what, count in shop.taken.items() if what.startswith("order")
            ),
            "orders": sum(what.startswith("order") for what in shop.taken),
            "starts of runs": sum(run.run_count for run in read),
        }


EVERY = 120.0
"""Seconds between two runs of the operation."""
HOLDING = ("PENDING", "RUNNING", "CANCELLING")
"""The types of states in which a flow run takes a slot of its deployment."""


def is_still_parked(before: Any, after: Any) -> bool:
    """Whether a run was parked all the time between two looks at it."""
    return after.state.name == "Parked" and before.state.id == after.state.id


def _mean(numbers: list[int]) -> float:
    return round(sum(numbers) / len(numbers), 2) if numbers else 0.0


def _busiest(times: list[float]) -> int:
    return max(Counter(int(at) for at in times).values(), default=0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--down", type=float, default=120.0)
    parser.add_argument("--open-for", default="30s")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--retry-after", action="store_true")
    asked = parser.parse_args()
    report = measure(asked)
    for wave in ("usual", "outage"):
        print(wave)
        for name, value in report[wave].items():
            print(f"  {name:50} {value}")
    print(report["folder"])


if __name__ == "__main__":
    main()
