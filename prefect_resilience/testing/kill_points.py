"""The points at which a rehearsal kills a program, and the verdict on what its receivers got.

points ── choose ──> one case for each ── judge ──> a verdict for each thing ── worst ──> rows
"""

from __future__ import annotations

import inspect
import json
import os
import re
import select
import signal
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from prefect_resilience.testing.services import Answering, ReceivedRequest, Reply, ScriptedService

Outcome = Literal["once", "twice", "never", "stopped"]
SEVERITY: Sequence[Outcome] = ("once", "stopped", "never", "twice")
CHANGING = frozenset({"POST", "PATCH", "PUT", "DELETE"})
HOSTS = "PREFECT_RESILIENCE_REHEARSAL_HOSTS"
"""The variable with the allowed hosts, for each Python that the program starts."""
REPEATABLE = frozenset({"PUT", "DELETE"})
"""Methods of requests that HTTP allows to be repeated: two of them are no mistake, none is."""

_CHANGES = re.compile(
    r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:[\d:.]+(?:Z|[+-]\d\d:\d\d)?|\d{9,}(?:\.\d+)?|[0-9a-f]{24,}"
    r"|(?<=\btmp)[a-z0-9_]{8}\b"
)


def stable(text: str) -> str:
    """The text without ids and times, which are others in each run."""
    return _CHANGES.sub("*", text)


def write_line(book: Path, **fields: Any) -> None:
    """Add a line to the book of a case, which outlives its processes: fields of the `Case`."""
    with open(book, "ab", buffering=0) as file:
        file.write(json.dumps(fields).encode() + b"\n")


class Point(NamedTuple):
    """A place at which a run is disturbed: the nth time that something of this name happens.

    how: "before" and "after" kill the process; "cut" takes a request, and loses its answer.
    """

    how: str
    name: str
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.how} {self.name}" + (f" #{self.nth}" if self.nth > 1 else "")


UNDISTURBED = Point("without", "a kill")
"""The point of the second run that nothing disturbs: what it shows, no kill has made."""


class CodePlace(NamedTuple):
    """The task and the line of code from which something was sent; empty if they are unknown."""

    task: str = ""
    line: str = ""


@dataclass(frozen=True)
class Thing:
    """One thing that a receiver got: a request, or what a receiver of the user's names so."""

    name: str
    """The method and the path, or the receiver's own name."""
    key: str = ""
    body: str = ""
    method: str = ""
    place: CodePlace = field(default=CodePlace(), compare=False)

    @property
    def group(self) -> str:
        return stable(self.name)

    @property
    def label(self) -> str:
        """The thing for a person: its name, and its key or the beginning of its body."""
        return " ".join(filter(None, (self.group, stable(self.key) or stable(self.body)[:60])))


@dataclass
class Case:
    """A run that is disturbed at `point`, the runs that recover it, and what the receivers got from them.

    book: what the runs write. pid: the process of the run. ask: the line of code that waits for a receiver.
    passed: the points that its runs passed, as they wrote them.
    rejected: what was rejected, and from which line.
    libraries: the modules of libraries that were imported.
    state: the state in which the last run ended; None if it did not end in time.
    effects: the kind, state and task of each effect in the ledger, by its key.
    """

    point: Point = UNDISTURBED
    book: Path = Path(os.devnull)
    pid: int = 0
    ask: Callable[[], CodePlace] = CodePlace
    lock: threading.RLock = field(default_factory=threading.RLock)
    counts: Counter[str] = field(default_factory=Counter[str])
    things: list[Thing] = field(default_factory=list["Thing"])
    kills: int = 0
    passed: list[Any] = field(default_factory=list[Any])
    rejected: list[str] = field(default_factory=list[str])
    libraries: list[str] = field(default_factory=list[str])
    state: str | None = None
    message: str = ""
    stopped: bool = False
    effects: dict[str, tuple[str, str, str]] = field(default_factory=dict[str, tuple[str, str, str]])

    def answer(self, request: ReceivedRequest, take: Answering) -> Reply:
        """Answer a request to a ScriptedService, or lose it or its answer."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        name, body = f"{request.method} {request.path}", request.body.decode(errors="replace")
        with self.lock:
            struck = self._meet(Thing(name, headers.get("idempotency-key", ""), body, request.method))
            reply = Reply() if struck == "before" else take(request)
        return Reply(drop=True) if struck in ("before", "cut") else reply

    def took(self, name: str, key: str = "") -> None:
        """Say that a receiver of the user's takes something now. Raises ConnectionAbortedError if the sender
        was killed before: then it is not taken."""
        with self.lock:
            if self._meet(Thing(name, key)) == "before":
                raise ConnectionAbortedError("the sender was killed before this was taken")

    def _meet(self, thing: Thing) -> str:
        """Count a thing, and kill its sender at the case's point. Returns how the point disturbs it."""
        name = f"{'request' if thing.method else 'receiver'} {thing.group}"
        self.counts[name] += 1
        changes = not thing.method or thing.method in CHANGING
        hows = ("before", "after", "cut") if thing.method and changes else ("before", "after")
        points = [Point(how, name, self.counts[name]) for how in hows]
        write_line(self.book, passed=points)
        place = self.ask()
        struck = self.point.how if self.point in points else ""
        if struck in ("before", "after") and self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        if changes and struck != "before":
            self.things.append(replace(thing, place=place))
        return struck

    def read(self, book: Iterable[str]) -> None:
        """Take what a run wrote to the book: lists grow, other fields are replaced."""
        for line in book:
            for name, value in json.loads(line).items():
                before = getattr(self, name)
                setattr(self, name, [*before, *value] if isinstance(before, list) else value)

    @property
    def points(self) -> list[Point]:
        """The points that its runs passed."""
        return [*dict.fromkeys(Point(*passed) for passed in self.passed)]

    @property
    def doubts(self) -> dict[str, str]:
        """The task of each effect that is in doubt, by its key."""
        return {key: task for key, (_, state, task) in self.effects.items() if state == "unknown"}

    @property
    def trouble(self) -> str:
        """Why the case has no verdict; "" if it has one."""
        if self.state == "COMPLETED" or self.stopped:
            return ""
        return f"{self.point}: the flow does not end well: {self.message}"

    @property
    def taken(self) -> list[Thing]:
        """The things as their receivers count them: an idempotent effect's key counts once."""
        things: dict[Any, Thing] = {}
        for number, thing in enumerate(self.things):
            is_external = self.effects.get(thing.key, ("external",))[0] == "external"
            things.setdefault(number if is_external else (thing.name, thing.key), thing)
        return list(things.values())


@contextmanager
def stack_questions(folder: Path) -> Generator[Callable[[], CodePlace]]:
    """Ask the process of a first run which line of its code waits for a receiver; empty without an answer."""
    for name in ("questions", "answers"):
        os.mkfifo(folder / name)
    attributed: list[Any] = []
    with (
        open(folder / "questions", "r+b", buffering=0) as questions,
        open(folder / "answers", "r+b", buffering=0) as answers,
    ):

        def ask() -> CodePlace:
            questions.write(b"?")
            is_answered = select.select([answers], [], [], 5.0)[0]
            stacks: list[Any] = json.loads(answers.readline()) if is_answered else []
            # Of several stacks that wait, the one that no request was attributed to is the new one.
            fresh = [stack for stack in stacks if stack not in attributed] or stacks
            attributed[:] = [stack for stack in stacks if stack in [*attributed, *fresh[:1]]]
            return CodePlace(*fresh[0][1:]) if fresh else CodePlace()

        yield ask


def receiver_of(receiver: Any, took: Callable[..., None]) -> AbstractContextManager[Any]:
    """The receivers of one case as a context manager."""
    if isinstance(receiver, ScriptedService):
        return nullcontext(receiver)
    wants = receiver is not ScriptedService and inspect.signature(receiver).parameters
    make: Any = contextmanager(receiver) if inspect.isgeneratorfunction(receiver) else receiver
    started = make(took) if wants else make()
    return started if hasattr(started, "__enter__") else nullcontext(started)


class RehearsedThing(BaseModel):
    """A row of the result. `kill`: the first point that showed it; "" if every point showed "once"."""

    thing: str
    verdict: Outcome
    task: str = ""
    line: str = ""
    kill: str = ""

    def __str__(self) -> str:
        return f"{self.thing}: {self.verdict}, {self.line}, shown by: {self.kill}"


def choose(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many points, in their order: an even sample if there are more."""
    count = min(len(points), most)
    return [points[number * len(points) // count] for number in range(count)]


def judge(expected: Case, case: Case) -> dict[Thing, Outcome]:
    """The verdict on each thing of the first run, by what the case's receivers got."""
    surplus, doubts = _surplus(expected.taken, case.taken), case.doubts
    verdicts: dict[Thing, Outcome] = {}
    for thing in dict.fromkeys(expected.taken):
        if surplus[thing] > 0 and thing.method not in REPEATABLE:
            verdicts[thing] = "twice"
        elif surplus[thing] < 0:
            verdicts[thing] = "stopped" if case.stopped or doubts else "never"
        elif thing.key in doubts or (not thing.key and thing.place.task in doubts.values()):
            verdicts[thing] = "stopped"
        else:
            verdicts[thing] = "once"
    return verdicts


LIKENESSES: Sequence[Callable[[Thing], object]] = (
    lambda thing: thing,
    lambda thing: (thing.group, stable(thing.key) or stable(thing.body)),
    lambda thing: (thing.group, stable(thing.body)),
    lambda thing: thing.group,
)
"""How a thing is found again that may be another one in each run, as by an id in it: the closest first."""


def _surplus(expected: Sequence[Thing], taken: Sequence[Thing]) -> Counter[Thing]:
    """How many of each thing of the first run are too many; below 0 for those that are missing."""
    surplus = Counter[Thing]()
    surplus.subtract(expected)
    for likeness in LIKENESSES:
        like: dict[object, list[Thing]] = {}
        for thing in surplus:
            like.setdefault(likeness(thing), []).append(thing)
        for thing in taken:
            if same := like.get(likeness(thing)):  # fill what is missing first
                surplus[min(same, key=surplus.__getitem__)] += 1
        taken = [thing for thing in taken if likeness(thing) not in like]
    return surplus


def rows_of(expected: Case, cases: Iterable[Case]) -> Iterator[RehearsedThing]:
    """A row for each thing of the first run, with its worst verdict and the first point that shows it."""
    judged = [(judge(expected, case), str(case.point)) for case in cases]
    for thing in dict.fromkeys(expected.taken):
        shown: list[tuple[Outcome, str]] = [("once", "")]
        shown.extend((verdicts[thing], point) for verdicts, point in judged)
        verdict, kill = max(shown, key=lambda one: SEVERITY.index(one[0]))
        yield RehearsedThing(thing=thing.label, verdict=verdict, kill=kill, **thing.place._asdict())
