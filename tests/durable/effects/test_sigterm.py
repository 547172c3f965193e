"""SIGTERM in the middle of an effect: the effect ends, the run is handed over, and goes on with the rest."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.exceptions import Pause, TerminationSignal
from prefect.flow_engine import run_flow
from prefect.flows import Flow
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelling, Pending

from prefect_resilience import ConfigurationError, Retry, resilient_flow
from prefect_resilience.durable.batches.edge.parking import read_parked
from prefect_resilience.settings import current_settings
from prefect_resilience.tasks.edge import interruptions
from tests.durable.effects import sigterm_flow
from tests.durable.effects.receiver import Receiver

ROOT = Path(__file__).parents[3]
WAYS = {
    "main": ("in_main", {}),
    "thread": ("in_main", {"threads": True}),
    "async": ("in_loop", {}),
}


def send_sigterm(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


class Scene:
    """Deployed runs, their processes, and the receivers of their effects."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.code = folder / "code"
        self.code.mkdir()
        shutil.copy(str(sigterm_flow.__file__), self.code)
        self.store = f"sqlite:///{folder}/resilience.db"
        self.environment = os.environ | {
            "PREFECT_API_URL": str(PREFECT_API_URL.value()),
            "PREFECT_RESILIENCE_STORE_URL": self.store,
            "PYTHONPATH": str(ROOT),
        }

    def create(self, flow: Any, **parameters: Any) -> FlowRun:
        with get_client(sync_client=True) as client:
            deployment = flow.to_deployment("sigterm").apply()
            return client.create_flow_run_from_deployment(deployment, parameters=parameters)

    def start(self, run: FlowRun, receiver: Receiver, *command: str, **more: str) -> subprocess.Popen[str]:
        """What a worker starts for the run."""
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(run.id, Pending(), force=True)
        return subprocess.Popen(
            [sys.executable, "-m", *(command or ("prefect.engine",)), str(run.id)],
            cwd=self.code,
            env=self.environment | {"RECEIVER": receiver.url} | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def read(self, run: FlowRun) -> FlowRun:
        with get_client(sync_client=True) as client:
            return client.read_flow_run(run.id)

    def strike(
        self,
        way: str,
        verified: bool,
        after: float,
        takes: float = 1.0,
        stop: Callable[[int], object] = send_sigterm,
        command: Sequence[str] = (),
        **more: str,
    ) -> FlowRun:
        """SIGTERM so many seconds after the first effect has arrived; then the run's next pass."""
        name, parameters = WAYS[way]
        receiver, arrived = Receiver(), threading.Event()

        def slow(_: str) -> int:
            arrived.set()
            time.sleep(takes)
            return 200

        receiver.says(slow)
        try:
            deployed = Flow.from_source(str(self.code), f"sigterm_flow.py:{name}")
            run = self.create(deployed, verified=verified, **parameters)
            process = self.start(run, receiver, *command, **more)
            assert arrived.wait(90)
            time.sleep(after)
            stop(process.pid)
            said, _ = process.communicate(timeout=90)
            # The end of the grace may strike the event loop itself, which then ends with TerminationSignal.
            assert process.returncode == 0 or (way == "async" and more), said
            parked = self.read(run).state
            assert parked is not None
            assert (parked.name, parked.type.value) == ("Parked", "SCHEDULED"), said
            assert "SIGTERM ended its process" in str(parked.message)
            receiver.says(200)
            said, _ = self.start(run, receiver).communicate(timeout=90)
            run = self.read(run)
            assert run.state is not None
            assert run.state.is_completed(), said
            assert sorted(receiver.taken.items()) == [("send-0", 1), ("send-1", 1)], said
            return run
        finally:
            receiver.close()


@pytest.fixture
def scene(prefect_api: None, tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("way", "verified"), [("thread", False), ("async", False)])
def test_the_effect_ends_and_the_run_is_handed_over(scene, way, verified):
    run = scene.strike(way, verified, after=0.2)
    parked = read_parked(str(run.id), scene.store)
    assert (parked.is_open, parked.parks) == (False, 1)


@pytest.mark.timeout(300)
def test_what_kubernetes_calls_before_it_ends_a_pod(scene):
    template = json.loads((ROOT / "deployments/kubernetes/base-job-template.json").read_text())
    (container,) = template["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]["containers"]
    words = container["lifecycle"]["preStop"]["exec"]["command"]

    def stop(pid: int) -> None:
        subprocess.run([word.replace("/proc/1/", f"/proc/{pid}/") for word in words], check=True)

    scene.strike("main", False, after=0.2, stop=stop, command=("prefect", "flow-run", "execute"))


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_fifty_times(scene):
    """One in four outlives its grace, and `verify` tells what became of it."""
    dice = random.Random(7)
    ways = [(way, verified) for way in WAYS for verified in (True, False)]

    def strike(n: int) -> None:
        way, verified = ways[n % len(ways)]
        short = {"PREFECT_RESILIENCE_GRACE_SECONDS": "0.2"} if verified and n % 4 == 0 else {}
        scene.strike(way, verified, after=dice.uniform(0.0, 0.9), **short)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(strike, range(50)))


# -- in this process, which has a handler of its own


@pytest.fixture
def heard() -> Iterator[list[int]]:
    signals, before = list[int](), signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    yield signals
    signal.signal(signal.SIGTERM, before)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)


async def aterminate() -> None:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    await asyncio.sleep(30)


def run_once(scene: Scene, made: Any) -> tuple[BaseException | None, FlowRun]:
    """A pass of a new run: what ended it, and its state."""
    run = scene.create(made)
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run.id, Pending(), force=True)
        try:
            done = run_flow(made, flow_run=client.read_flow_run(run.id))
            if asyncio.iscoroutine(done):
                asyncio.run(done)
        except BaseException as error:
            return error, client.read_flow_run(run.id)
        return None, client.read_flow_run(run.id)


def test_a_run_between_two_effects_is_handed_over(scene, heard):
    @resilient_flow(retry=Retry(park_after="2m"), grace_seconds=0.1)
    def parks() -> None:
        terminate()

    @resilient_flow(recovery="auto", grace_seconds=0.1)
    async def recovers() -> None:
        await aterminate()

    error, run = run_once(scene, parks)
    assert isinstance(error, Pause)
    assert (run.state.name, "no effects were still running" in run.state.message) == ("Parked", True)
    error, run = run_once(scene, recovers)
    assert isinstance(error, TerminationSignal), "it struck the event loop"
    assert run.state.name == "Parked"


def test_other_runs_end_as_prefect_ends_them(scene, heard):
    @resilient_flow(grace_seconds=0)
    def by_hand() -> None:
        terminate()

    @resilient_flow
    async def cancelled() -> None:
        raise asyncio.CancelledError

    @resilient_flow
    def cancelled_without_loop() -> None:
        raise asyncio.CancelledError

    @resilient_flow
    def called() -> None:
        terminate()

    error, run = run_once(scene, by_hand)
    assert isinstance(error, TerminationSignal)
    assert run.state.is_crashed()
    for made in (cancelled, cancelled_without_loop):
        error, run = run_once(scene, made)
        assert isinstance(error, asyncio.CancelledError)
        assert run.state.is_crashed()
    with pytest.raises(TerminationSignal):
        called()
    assert len(heard) == 2


def test_a_cancelled_run_is_not_handed_over(scene, heard):
    def cancel_and_terminate() -> None:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(FlowRunContext.get().flow_run.id, Cancelling(), force=True)
        terminate()

    @resilient_flow(grace_seconds=0)
    def by_hand() -> None:
        cancel_and_terminate()

    @resilient_flow(recovery="auto", grace_seconds=0)
    def recovers() -> None:
        cancel_and_terminate()

    for made in (by_hand, recovers):
        error, run = run_once(scene, made)
        assert isinstance(error, Pause)
        assert run.state.name == "Cancelling"


def test_without_an_api_a_run_is_not_cancelled(scene, monkeypatch):
    def is_away(**_: Any) -> Any:
        raise ConnectionError("away")

    monkeypatch.setattr(interruptions, "get_client", is_away)
    assert not interruptions._is_cancelled(scene.create(sigterm_flow.by_hand))


@pytest.mark.parametrize("seconds", ["soon", -1, float("nan")])
def test_a_grace_is_a_number_of_seconds(seconds, monkeypatch):
    with pytest.raises(ConfigurationError, match="grace_seconds"):
        resilient_flow(grace_seconds=seconds)(terminate)
    monkeypatch.setenv("PREFECT_RESILIENCE_GRACE_SECONDS", str(seconds))
    with pytest.raises(ConfigurationError, match="GRACE_SECONDS"):
        current_settings()
