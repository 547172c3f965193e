"""A replay in a process of its own, which is killed between two lines that it runs, and begun again."""

from __future__ import annotations

import itertools
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import httpx
from prefect import flow
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_LOGGING_LEVEL,
    temporary_settings,
)

import prefect_resilience
from prefect_resilience import dead_letters, resilient_task
from prefect_resilience.effects import Done, Effect, NotDone, batch
from tests.durable.effects.receiver import Receiver
from tests.durable.effects.victim import answer_of, kill_before_line

RECEIVER = "DEAD_LETTER_RECEIVER"
OURS = os.path.dirname(prefect_resilience.__file__)
PLACES = ("durable/letters", "durable/effects", "calls/attempt.py", "tasks/edge")
WATCHED = (*(os.path.join(OURS, place) for place in PLACES), __file__, "httpcore/_sync/")
"""A kill may come before any line of ours, of the user's tasks, and of the client that sends."""

context = get_context("forkserver")
context.set_forkserver_preload(
    [
        __name__,
        "prefect_resilience.stores.sqlite",
        "prefect_resilience.hooks",
        "prefect.utilities.visualization",
        "anyio._backends._asyncio",
    ]
)


def post(key: str) -> str:
    """One message to the receiver, which counts it under this key."""
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=os.environ[RECEIVER], limits=limits, timeout=30) as client:
        answer = client.post("/", headers={"Idempotency-Key": key})
    answer.raise_for_status()
    return key


def ask(key: str) -> Done | NotDone:
    with httpx.Client(base_url=os.environ[RECEIVER], timeout=30) as client:
        return Done(key) if client.get(f"/{key}").json()["taken"] else NotDone()


@resilient_task(retry=None, dead_letter=True)
def plain(key: str) -> str:
    return post(key)


@resilient_task(retry=None, dead_letter=True, effect=Effect(key="{key}", one_request=True))
def recorded(key: str) -> str:
    return post(key)


@resilient_task(retry=None, dead_letter=True, effect=Effect(key="{key}", verify=ask, one_request=True))
def asked(key: str) -> str:
    return post(key)


TASKS: dict[str, Any] = {"plain": plain, "recorded": recorded, "asked": asked}


@flow
def campaign(keys: list[str]) -> None:
    for key in keys:
        TASKS[key.split(".")[0]](key, return_state=True)


@dataclass(frozen=True)
class Campaign:
    """Calls that failed, and are letters now: every third is an effect, every third one that can be asked."""

    receiver: str
    store: str
    api: str
    name: str
    count: int

    @property
    def keys(self) -> list[str]:
        kinds = list(TASKS)
        return [f"{kinds[n % 3]}.{self.name}.{n}" for n in range(self.count)]


def fail(made: Campaign, receiver: Receiver) -> None:
    """Let the calls fail, as they certainly did nothing."""
    receiver.says(429)
    with batch(made.name):
        campaign(made.keys, return_state=True)
    receiver.says(200)


def run(environment: dict[str, str], api_url: str, kill_at: int, answers: Connection) -> None:
    """The child's life. Sends back how many lines it ran, and the report."""
    os.environ.update(environment)
    api = {PREFECT_API_URL: api_url, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    with temporary_settings({**api, PREFECT_LOGGING_LEVEL: "CRITICAL"}):
        lines = kill_before_line(kill_at, WATCHED)
        report = dead_letters.replay()
        sys.settrace(None)
    answers.send((lines[0], report))


def start(made: Campaign, kill_at: int = 0) -> Callable[[], tuple[int, dead_letters.ReplayReport] | None]:
    """Start a victim; what is returned waits for its answer, or for its death by SIGKILL: None."""
    environment = {RECEIVER: made.receiver, "PREFECT_RESILIENCE_STORE_URL": made.store}
    process, ours = child(environment, made.api, kill_at)

    return lambda: answer_of(process, ours)


def child(environment: dict[str, str], api_url: str, kill_at: int = 0) -> tuple[Any, Connection]:
    """A process that replays every letter, and where its answer will come from."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=run, args=(environment, api_url, kill_at, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


@dataclass
class Toll:
    """What came of many kills."""

    kills: int = 0
    sent: int = 0
    """Calls that the receiver took exactly once."""
    doubts: int = 0
    """Letters that were left for a person."""
    mistakes: list[str] = field(default_factory=list)


def kill_often(
    receiver: Receiver, store: str, api: str, *, kills: int, count: int = 6, seed: int = 0
) -> Toll:
    """Kill that many replays, each begun again until it ends."""
    chance = random.Random(seed)
    toll = Toll()
    for number in itertools.count():
        made = Campaign(receiver.url, store, api, f"c{seed}-{number}", count)
        fail(made, receiver)
        while start(made, chance.randint(1, 2_000 * count) if toll.kills < kills else 0)() is None:
            toll.kills += 1
        judge(receiver, made, toll)
        if toll.kills >= kills:
            break
    return toll


def judge(receiver: Receiver, made: Campaign, toll: Toll) -> None:
    """What the receiver got, beside what the letters say. Whoever is in doubt waits for a person."""
    found = {letter.parameters["key"]: letter for letter in dead_letters.list(store=made.store)}
    for key in made.keys:
        taken, letter = receiver.taken[key], found.get(key)
        toll.sent += taken == 1
        if letter is None or taken > 1:
            toll.mistakes.append(f"{key}: taken {taken} times, {letter and letter.status}")
        elif letter.status == "replayed":
            if taken != 1:
                toll.mistakes.append(f"{key} was said to be replayed, and taken {taken} times")
        elif key.startswith("asked") or not (letter.status == "in_doubt" or letter.replays):
            toll.mistakes.append(f"{key} was left out: {letter}")
        else:
            toll.doubts += 1
