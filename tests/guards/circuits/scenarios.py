"""What a fleet of real processes goes through, in any size; the numbers are counted at the service."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from typing import Any

from prefect_resilience.guards.circuits import machine
from prefect_resilience.guards.circuits.link import PREFIX
from prefect_resilience.stores import Store, open_store
from tests.guards.circuits.distorted import Distortion
from tests.guards.circuits.target import Target, most_at_once, target
from tests.guards.circuits.workers import (
    Member,
    Start,
    call_many,
    call_on_and_on,
    fleet,
)

LOOK_EVERY = 0.005


@dataclass(frozen=True)
class Dead:
    """`calls` were made by all processes; `leaked` reached the dead service after the circuit opened."""

    calls: int
    refused: int
    reached: int
    leaked: int
    probes_at_once: int
    seconds: float


def dead_service(
    url: str, processes: int, calls: int, pause: float = 0.002, probes: int = 1, news: Distortion = "none"
) -> Dead:
    """Everybody calls a service that is dead, while openings end and probes are let in again and again."""
    policy: dict[str, Any] = {"open_for": 0.3, "open_backoff": 1.0, "probes": probes, "sync_interval": 0.2}
    # One store may see several of these.
    name = f"dead-{probes}"
    with target(up=False, delay=0.02) as service, fleet() as start:
        given: dict[str, Any] = {
            "url": url,
            "policy": policy,
            "port": service.port,
            "name": name,
            "calls": calls,
            "news": news,
        }
        members = [start(call_many, pause=pause, **given) for _ in range(processes)]
        _all_begin(members)
        began = time.time()
        opened_at = _first_opening(url, name)
        seen = [member.hear() for member in members]
        seconds = time.time() - began
    # Until its view is old a process may not have heard of the opening; from then on all are probes. A call
    # that was let in before may arrive a little later, on a machine with much to do.
    known_by_all = opened_at + policy["sync_interval"] + 0.5
    return Dead(
        calls=processes * calls,
        refused=sum(one.get("refused", 0) for one in seen),
        reached=len(service.visits),
        leaked=len(service.after(opened_at)),
        probes_at_once=most_at_once(service.after(known_by_all)),
        seconds=seconds,
    )


@dataclass(frozen=True)
class Killed:
    """`killed_after` is in seconds from the first probe's arrival, all else from the service's return."""

    killed_after: float
    probed_after: float
    probed_again_after: float
    closed_after: float


LEASE, OPEN_FOR, PROBE_TAKES = 1.0, 0.5, 0.1


def killed_prober(
    url: str, start: Start, name: str, chance: random.Random, news: Distortion = "none"
) -> Killed:
    """One prober is killed at a random moment from its arrival at the service until after its answer."""
    policy: dict[str, Any] = {
        "failure_threshold": 1,
        "success_threshold": 1,
        "open_for": OPEN_FOR,
        "open_backoff": 1.0,
        "probe_lease": LEASE,
        "sync_interval": 0.1,
    }
    killed_after = chance.uniform(0, PROBE_TAKES * 1.2)
    store = open_store(url)
    with target(up=False, delay=PROBE_TAKES) as service:
        given: dict[str, Any] = {"url": url, "policy": policy, "port": service.port, "name": name}
        members = [start(call_on_and_on, pause=0.01, news=news, **given) for _ in range(3)]
        _all_begin(members)
        _await_state(store, name, "open")
        # Who has not heard of it yet may still call once: that is no probe.
        time.sleep(policy["sync_interval"] + 0.05)
        prober = _first_caller_from_now(service)
        service.up = True
        back_at = time.time()
        pid = prober()
        time.sleep(killed_after)
        next(member for member in members if member.pid == pid).kill()
        _await_state(store, name, "closed")
        closed_at = time.time()
        for member in members:
            member.kill()
    probes = sorted(visit.began - back_at for visit in service.after(back_at - 0.001))
    return Killed(killed_after, probes[0], probes[-1], closed_at - back_at)


def killed_probers(
    url: str, rounds: int, at_once: int = 1, seed: int = 1, news: Distortion = "none"
) -> list[Killed]:
    """So many rounds, some of them side by side, each with a circuit, a service and processes of its own."""
    found: list[Killed] = []
    left = iter(range(rounds))
    lock = threading.Lock()
    troubles: list[BaseException] = []

    def work() -> None:
        try:
            while not troubles:
                with lock:
                    number = next(left, None)
                if number is None:
                    return
                # A pool of its own, so that what one round starts ends with it.
                with fleet() as start:
                    chance = random.Random(seed + number)
                    found.append(killed_prober(url, start, f"round-{number}", chance, news))
        except BaseException as error:
            troubles.append(error)

    threads = [threading.Thread(target=work) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if troubles:
        raise troubles[0]
    return found


def _all_begin(members: list[Member]) -> None:
    """Wait until everybody is ready, then let everybody go."""
    for member in members:
        if member.hear() != "ready":
            raise RuntimeError("a process of the fleet did not begin")
    for member in members:
        member.say("go")


def _document(store: Store, name: str) -> machine.CircuitDocument:
    found = store.load(PREFIX + name)
    return machine.read(found.value if found else None)


def _await_state(store: Store, name: str, state: str) -> machine.CircuitDocument:
    deadline = time.monotonic() + 30
    while (document := _document(store, name))["state"] != state:
        if time.monotonic() > deadline:
            raise TimeoutError(f"circuit {name} is {document['state']} and not {state}")
        time.sleep(LOOK_EVERY)
    return document


def _first_opening(url: str, name: str) -> float:
    return _await_state(open_store(url), name, "open")["opened_at"]


def _first_caller_from_now(service: Target) -> Any:
    """A function that waits for the pid of the next caller."""
    arrived = threading.Event()
    pids: list[int] = []

    def called(pid: int) -> None:
        pids.append(pid)
        arrived.set()

    service.on_call = called

    def wait() -> int:
        if not arrived.wait(30):
            raise TimeoutError("nobody probes")
        return pids[0]

    return wait
