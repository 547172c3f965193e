"""Breadth first through every state, then over the graph of them: can it, and must it, close again?"""

import time
from collections import deque
from dataclasses import dataclass, field

from tests.guards.model.actions import edges, first, unsafe
from tests.guards.model.states import Doc, Proc, Setup, State, canonical

NEVER_STUCK = "never stuck: from every state there is a way to closed"
ALWAYS_CLOSED = "always closed in the end while the service is well, whoever is scheduled"


@dataclass
class Found:
    """What an exploration came to. `wrong` is None when every property holds; `trace` then is empty.

    A trace is the shortest way to the mistake: what happened, and the state it led to.
    """

    setup: Setup
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    wrong: str | None = None
    trace: list[tuple[str, State]] = field(default_factory=list)


def told(found: Found) -> str:
    """What is wrong, and the shortest way there, one step a line."""
    fault = f" with {found.setup.broken}" if found.setup.broken else ""
    lines = [f"{found.wrong}{fault}:"]
    for number, (label, state) in enumerate(found.trace):
        lines.append(f"{number:4d}  {label:46s} {_state(state)}")
    return "\n".join(lines)


def _state(state: State) -> str:
    procs = " ".join(_proc(proc) for proc in state.procs)
    return f"{_doc(state.doc)} | service {'up' if state.up else 'down'} | {procs}"


def _doc(doc: Doc) -> str:
    leases = ",".join(f"{lease.owner} until {lease.until:+d}" for lease in doc.leases)
    return f"{doc.state} gen {doc.generation}{f' leases {leases}' if leases else ''}"


def _proc(proc: Proc) -> str:
    permit = "" if proc.generation is None else f"(gen {proc.generation}{', lease' if proc.owner else ''})"
    return f"{proc.phase}{permit}"


class TooLarge(Exception):
    """There are more states than were asked for: nothing is proved."""


class Exploration:
    """Every reachable state under one setup, each with a number, and how it was first reached."""

    def __init__(self, setup: Setup, most_states: int) -> None:
        self.setup = setup
        self.most_states = most_states
        # A trace should call a process by one name from end to end.
        self.symmetric = setup.broken is None
        self.numbers: dict[State, int] = {}
        self.states: list[State] = []
        self.parents: list[tuple[int, str]] = []
        self.depths: list[int] = []
        self.well: list[list[int]] = []
        self.transitions = 0

    def run(self) -> Found:
        """Explore, and judge."""
        began = time.monotonic()
        wrong, trace = self._search() or self._judge_closing() or (None, [])
        return Found(
            self.setup,
            len(self.states),
            self.transitions,
            max(self.depths),
            time.monotonic() - began,
            wrong,
            trace,
        )

    def _number(self, state: State, parent: int, label: str) -> int:
        state = canonical(state, self.symmetric)
        known = self.numbers.get(state)
        if known is None:
            known = self.numbers[state] = len(self.states)
            if known >= self.most_states:
                raise TooLarge(f"more than {self.most_states} states")
            self.states.append(state)
            self.parents.append((parent, label))
            self.depths.append(self.depths[parent] + 1 if parent >= 0 else 0)
            self.well.append([])
        return known

    def _search(self) -> tuple[str, list[tuple[str, State]]] | None:
        self._number(first(self.setup), -1, "at first")
        at = 0
        while at < len(self.states):
            state = self.states[at]
            for edge in edges(state, self.setup):
                self.transitions += 1
                number = self._number(edge.state, at, edge.label)
                wrong = edge.wrong or unsafe(edge.state, self.setup)
                if wrong:
                    return wrong, [*self._trace(at), (edge.label, self.states[number])]
                if edge.well and state.up:
                    # One bit tells a tick from a move of a process.
                    self.well[at].append(number * 2 + (edge.label == "a tick passes"))
            at += 1
        return None

    def _trace(self, number: int) -> list[tuple[str, State]]:
        steps: list[tuple[str, State]] = []
        while number >= 0:
            parent, label = self.parents[number]
            steps.append((label, self.states[number]))
            number = parent
        return steps[::-1]

    def _judge_closing(self) -> tuple[str, list[tuple[str, State]]] | None:
        stuck = self._stuck()
        if stuck is not None:
            return f"not {NEVER_STUCK}", self._trace(stuck)
        circling = self._circling()
        if circling is not None:
            return f"not {ALWAYS_CLOSED}", self._trace(circling)
        return None

    def _stuck(self) -> int | None:
        """The first state with the service up from where no well-behaved way leads to closed."""
        back: list[list[int]] = [[] for _ in self.states]
        for at, nexts in enumerate(self.well):
            for coded in nexts:
                back[coded // 2].append(at)
        good = bytearray(len(self.states))
        queue = deque(n for n, state in enumerate(self.states) if state.doc.state == "closed")
        for number in queue:
            good[number] = 1
        while queue:
            for before in back[queue.popleft()]:
                if not good[before]:
                    good[before] = 1
                    queue.append(before)
        return next((n for n, state in enumerate(self.states) if state.up and not good[n]), None)

    def _circling(self) -> int | None:
        """A state on a fair circle of well-behaved steps that never meets closed.

        Fair means no more than: time passes again and again, and so does a step of some process. Which
        process, is left to the worst of schedulers; what holds under that holds under a fair one.
        """
        avoiding = [
            [] if state.doc.state == "closed" else [c for c in nexts if not self._closed(c // 2)]
            for state, nexts in zip(self.states, self.well, strict=True)
        ]
        component = _components([[coded // 2 for coded in nexts] for nexts in avoiding])
        ticks, moves = set[int](), set[int]()
        for at, nexts in enumerate(avoiding):
            for coded in nexts:
                if component[at] == component[coded // 2]:
                    (ticks if coded % 2 else moves).add(component[at])
        fair = ticks & moves
        return next((n for n in range(len(self.states)) if component[n] in fair), None)

    def _closed(self, number: int) -> bool:
        return self.states[number].doc.state == "closed"


def explore(setup: Setup, most_states: int = 5_000_000) -> Found:
    """Every state under `setup`, and what is wrong with them; TooLarge if there are too many."""
    return Exploration(setup, most_states).run()


def _components(graph: list[list[int]]) -> list[int]:
    """The strongly connected component of each node (Tarjan, 1972, without recursion)."""
    count = len(graph)
    order, low, component = [-1] * count, [0] * count, [-1] * count
    stack: list[int] = []
    clock = found = 0
    for root in range(count):
        if order[root] >= 0:
            continue
        path = [(root, 0)]
        while path:
            node, edge = path.pop()
            if edge == 0:
                order[node] = low[node] = clock
                clock += 1
                stack.append(node)
            else:
                low[node] = min(low[node], low[graph[node][edge - 1]])
            for at in range(edge, len(graph[node])):
                after = graph[node][at]
                if order[after] < 0:
                    path += [(node, at + 1), (after, 0)]
                    break
                if component[after] < 0:
                    low[node] = min(low[node], order[after])
            else:
                if low[node] == order[node]:
                    while component[node] < 0:
                        component[stack.pop()] = found
                    found += 1
    return component
