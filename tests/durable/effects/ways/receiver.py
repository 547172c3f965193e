"""What every receiver here has: a script, a count of what it took, and messages that are pending."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from prefect_resilience.effects import Done, NotDone, Unknown
from tests.durable.effects.ways.steps import FINE, Hold, Refused, Step

PATIENCE = 20.0
"""The longest that anything waits for anything here, in seconds; only what is broken gets so far."""


class Receiver:
    """Counts what it *took*, by message. `play` sets its script for what comes now."""

    def __init__(self) -> None:
        self._counted: Counter[str] = Counter()
        self.pending: set[str] = set()
        self.held = threading.Event()
        """A call is held."""
        self.release = threading.Event()
        """What is held goes on."""
        self._script: list[Step] = []
        self._came = False
        self._lock = threading.Lock()
        self._ended = threading.Condition()

    @property
    def taken(self) -> Counter[str]:
        """How often each message was taken."""
        with self._lock:
            return Counter(self._counted)

    def play(self, steps: Sequence[Step]) -> None:
        with self._lock:
            self._script = list(steps)
            self._came = False
        self.set_open(not self._refuses())

    def set_open(self, wanted: bool) -> None:
        """Listen, or refuse connections."""

    def tried(self) -> None:
        """A client is between two tries: when nothing came of the last one, that was the script's refusal."""
        with self._lock:
            refused = not self._came and self._script and isinstance(self._script[0], Refused)
            if refused:
                self._script.pop(0)
            self._came = False
        self.set_open(not self._refuses())

    def next_step(self) -> Step:
        """The step for the request that has just come; a step that refuses the next one is set up now."""
        with self._lock:
            step = self._script.pop(0) if self._script else FINE
            self._came = True
        if self._refuses():
            self.set_open(False)
        return step

    def _refuses(self) -> bool:
        with self._lock:
            return bool(self._script) and isinstance(self._script[0], Refused)

    def take(self, message: str) -> None:
        with self._lock:
            self._counted[message] += 1

    def hold(self, message: str, step: Hold) -> None:
        """Wait until the run lets it go on; take the message before that, or after it."""
        if step.taken == "before":
            self.take(message)
        else:
            self.pending.add(message)
        self.held.set()
        self.release.wait(PATIENCE)
        if step.taken == "after" and step.then.takes:
            self.take(message)
        with self._ended:
            self.pending.discard(message)
            self._ended.notify_all()

    def quiet(self) -> None:
        """Wait until nothing is held any more."""
        with self._ended:
            self._ended.wait_for(lambda: not self.pending, PATIENCE)

    def knows(self, messages: Sequence[str]) -> Done | NotDone | Unknown:
        """The truth at this moment, as a `verify` tells it."""
        if self.pending.intersection(messages):
            return Unknown()
        taken = len(self.taken.keys() & set(messages))
        if taken == len(messages):
            return Done(answer_to(messages[-1]), external_id=answer_to(messages[-1]))
        return NotDone() if taken == 0 else Unknown()

    def close(self) -> None:
        self.release.set()


def answer_to(message: str) -> str:
    """The receiver's own id of a message."""
    return f"m-{message}"
