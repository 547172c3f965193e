"""Processes that are killed between two instructions of ours: the place is chosen before they start.

`kill_before_line` counts lines. A `Doom` names the place by what it means for an effect: the order in whose
course it is to be, the phase, and which instruction of that phase.

    before intent ── after intent ─┬─ during call ── after call ──┬─ before done ── after done
         │                         └─ overdue ── sending late ── sent late
         └ asking (what the receiver knows of an earlier call)

A call is overdue when its attempt is over and it still runs; "overdue" is the time before it sends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

import prefect_resilience
from prefect_resilience.durable.effects.current import in_progress

OURS = os.path.dirname(prefect_resilience.__file__)
WATCHED = (os.path.join(OURS, "durable"), os.path.join(OURS, "calls", "attempt.py"))
SENDING = ("worker_kills_flow.py", "httpcore/_sync/")
"""A kill may come before any instruction of ours, and while an effect is going on also before any of the
user's and of the client's."""

PHASES = ("before intent", "after intent", "during call", "after call", "before done", "after done")
OVERDUE, SENDING_LATE, SENT_LATE = LATE_PHASES = ("overdue", "sending late", "sent late")
ASKING = "asking"
CALLING = ("during call", SENDING_LATE, ASKING)

MUCH_ALIKE = (os.path.join(OURS, "errors"), os.path.join(OURS, "telemetry", "payloads.py"))
"""What makes an error fit to be seen takes 70,000 instructions; a kill while a call is overdue would come in
these alone."""

context = get_context("forkserver")
context.set_forkserver_preload([__name__, "prefect_resilience.stores.sqlite"])


def kill_before_line(number: int, places: tuple[str, ...] | None = None) -> list[int]:
    """Kill this process before it runs that line of the watched files, by any thread; counts the lines.

    Other `places` than those of effects may be watched: parts of paths.
    """
    lines = [0]

    def in_call(frame: FrameType, event: str, arg: Any) -> Any:
        watched = places or (WATCHED if in_progress.get() is None else (*WATCHED, *SENDING))
        return at_line if any(place in frame.f_code.co_filename for place in watched) else None

    def at_line(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            lines[0] += 1
            if lines[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)
        return at_line

    threading.settrace(in_call)
    sys.settrace(in_call)
    return lines


def answer_of(process: BaseProcess, answers: Connection) -> Any:
    """What the process says within 100 s; None when it was killed before. Any other end is a mistake."""
    try:
        said = answers.recv() if answers.poll(100) else None
    except EOFError:
        said = None
    process.join(10)
    ended = process.exitcode
    process.kill()
    assert said is not None or ended == -signal.SIGKILL, f"it was not killed: {ended}"
    return said


@dataclass(frozen=True)
class Doom:
    """Where a process is to die: from this order on, at the `nth` instruction of that phase.

    `by_receiver`: "holding" or "taken" lets the receiver do it, before or after it has taken the message.
    `pause`: it is not killed, but stopped there by SIGSTOP.
    """

    order: int = 0
    phase: str = PHASES[0]
    nth: int = 1
    by_receiver: str | None = None
    pause: bool = False

    def write(self, plot: str) -> None:
        """Decide over the next process that runs this plot."""
        Path(f"{plot}.doom").write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, plot: str) -> Doom | None:
        """What was decided over this process; it holds for no other."""
        path = Path(f"{plot}.doom")
        try:
            found = json.loads(path.read_text())
            path.unlink()
        except FileNotFoundError:
            return None
        return cls(**found)


class Book:
    """What the victims of one plot leave behind, line by line; what is written outlives the writer."""

    def __init__(self, plot: str) -> None:
        self.path = Path(f"{plot}.book")

    def write(self, what: str, **about: Any) -> None:
        line = json.dumps({"what": what, **about}).encode() + b"\n"
        with open(self.path, "ab", buffering=0) as file:
            file.write(line)

    def lines(self, what: str) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        found = [json.loads(line) for line in self.path.read_bytes().splitlines()]
        return [one for one in found if one["what"] == what]


class Victim:
    """The process that runs a plot: it watches how far its effects are, and dies where it is doomed to."""

    def __init__(self, plot: str) -> None:
        self.doom = Doom.read(plot)
        self.book = Book(plot)
        self.book.write("born", pid=os.getpid())
        self.order = -1
        self.phase = PHASES[0]
        self.left = self.doom.nth if self.doom is not None else 0
        self.watching = False
        self.counts: Counter[str] = Counter()
        self.counted: dict[str, int] = {}
        """How many instructions each phase had in the first watched effect that came through it."""
        self.another_waits = threading.Event()
        """Set when an attempt waits for the end of the call of another one, if that is watched."""
        self._dying = threading.Lock()

    def begins(self, order: int) -> None:
        """The next order comes; from the doomed one on, every instruction counts."""
        self.order, self.phase = order, PHASES[0]
        self.another_waits.clear()
        doom = self.doom
        if self.watching:
            self.counted = {**self.counts, **self.counted}
        elif doom is not None and doom.by_receiver is None and order >= doom.order:
            self.watching = True
            threading.settrace(self._in_call)
            sys.settrace(self._in_call)

    def watch_this_thread(self) -> None:
        """Let the instructions of this thread count from here on: it may be older than the watching."""
        if not self.watching:
            return
        sys.settrace(self._in_call)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename.startswith(OURS):
                frame.f_trace = self._traced(frame)
            frame = frame.f_back

    def overdue(self) -> None:
        """The call that is going on has been recorded as overdue."""
        if self.phase in PHASES[:2]:
            self.phase = OVERDUE

    def headers(self) -> dict[str, str]:
        """What the receiver is to know of this process."""
        doom = self.doom
        if doom is None or doom.by_receiver is None or self.order < doom.order:
            return {}
        phase = SENDING_LATE if self.phase == OVERDUE else "during call"
        about = {"X-Kill": doom.by_receiver, "X-Pid": str(os.getpid()), "X-Phase": phase}
        return {**about, "X-Book": str(self.book.path)}

    def _in_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        sending = self.phase in CALLING and any(one in code.co_filename for one in SENDING)
        if not (sending or code.co_filename.startswith(OURS) or code.co_filename.endswith(SENDING[0])):
            return None
        if self.phase == OVERDUE and code.co_filename.startswith(MUCH_ALIKE):
            return None
        self._entered(code.co_name, code.co_filename)
        return self._traced(frame)

    def _traced(self, frame: FrameType) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._at_instruction

    def _at_instruction(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            self.counts[self.phase] += 1
            assert self.doom is not None
            if self.phase == self.doom.phase:
                self.left -= 1
            if self.left <= 0 and not self._dying.locked():
                self._die(frame)
        elif event == "return":
            self._left(frame, arg)
        return self._at_instruction

    def _entered(self, name: str, path: str) -> None:
        if name == "post":
            self.phase = SENDING_LATE if self.phase == OVERDUE else "during call"
        elif name == "slept":
            self.another_waits.set()
        elif name == "verify":
            self.phase = ASKING
        elif name == "report" and path.endswith("effects/ledger.py"):
            self.phase = "before done"

    def _left(self, frame: FrameType, answer: Any) -> None:
        name = frame.f_code.co_name
        if name == "post" and self.phase in ("during call", SENDING_LATE):
            self.phase = SENT_LATE if self.phase == SENDING_LATE else "after call"
        elif name == "swap" and answer and isinstance(value := frame.f_locals.get("value"), dict):
            if value.get("overdue_at") is not None and value["state"] == "intended":
                self.overdue()
                return
            after = {"intended": "after intent", "done": "after done", "failed": "before intent"}
            self.phase = after.get(value.get("state", ""), self.phase)

    def _die(self, frame: FrameType) -> None:
        assert self.doom is not None
        if self.doom.pause and in_a_store():
            return  # stopped there it might hold a lock of the store: at the next instruction, perhaps
        if not self._dying.acquire(blocking=not self.doom.pause):
            return
        sys.settrace(None)
        # The lock is kept for good: no other thread is to get any further.
        where = f"{os.path.relpath(frame.f_code.co_filename, os.path.dirname(OURS))}:{frame.f_lineno}"
        counts = {p: n for p, n in self.counts.items() if p != self.phase} | self.counted
        about = {"order": self.order, "phase": self.phase, "where": where, "counts": counts}
        if self.doom.pause:
            threading.settrace(None)  # type: ignore[arg-type]
            self.book.write("paused", pid=os.getpid(), **about)
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        self.book.write("killed", pid=os.getpid(), **about)
        os.kill(os.getpid(), signal.SIGKILL)


def in_a_store() -> bool:
    """Whether any thread is in the middle of an operation of a store."""
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_code.co_filename.startswith(os.path.join(OURS, "stores")):
                return True
            frame = frame.f_back
    return False
