"""ProgressGuard: a loop that gets nowhere is ended, with the rounds that it made."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from prefect.runtime import flow_run, task_run

from prefect_resilience.base.plain import plain
from prefect_resilience.errors.context import attach_context
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.graphs.routing.edge.upstream import context_of
from prefect_resilience.graphs.routing.exceptions import NoProgress, RoundsExhausted
from prefect_resilience.graphs.routing.rounds import History, Round, history_details, partial_output, same

E = TypeVar("E", NoProgress, RoundsExhausted)

_NEVER: Any = object()


class ProgressGuard:
    """Ends a loop when so many rounds in a row have come to the same state.

    rounds: how many, from 2.
    key: what of the state must change, as a function of it; by default all of it. States are compared
        strictly, as conditions compare values.

    For a loop of your own, and as `progress=` of `iterate`:

        guard = ProgressGuard(rounds=3, key=lambda answer: answer["score"])
        while not good(answer):
            answer = revise(answer)
            guard.check(answer)
    """

    def __init__(self, rounds: int = 3, key: Callable[[Any], Any] | None = None) -> None:
        if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 2:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"ProgressGuard(rounds={rounds!r}): write a whole number from 2")
        if key is not None and not callable(key):  # pyright: ignore[reportUnnecessaryComparison]
            raise ConfigurationError(f"ProgressGuard(key={key!r}): write a function of the state")
        self.rounds = rounds
        self.key = key
        self.reset()

    def reset(self) -> None:
        """Forget the rounds so far."""
        self._history: History[Any] = History()
        self._mark: Any = _NEVER
        self._same = 0
        self._since = time.monotonic()

    @property
    def iteration_history(self) -> tuple[Round[Any], ...]:
        """The rounds so far; of the older ones without their values."""
        return self._history.told()

    def check(self, state: Any) -> int:
        """Note a round that came to `state`; how many rounds in a row have come to that, 1 if it is new.

        Raises `NoProgress` at the last round that there may be, with `iteration_history`.

        Example:
            >>> guard = ProgressGuard(rounds=3)
            >>> [guard.check(0.5), guard.check(0.5), guard.check(0.6)]
            [1, 2, 1]
        """
        now = time.monotonic()
        mark = plain(state if self.key is None else self.key(state))
        number = len(self._history.told()) + 1
        self._history.add(Round(number, state, mark, now - self._since))
        self._same = self._same + 1 if self._mark is not _NEVER and same(self._mark, mark) else 1
        self._mark, self._since = mark, now
        if self._same >= self.rounds:
            raise halted("loop", NoProgress(number, state, self._history.told(), self.rounds - 1))
        return self._same

    def __repr__(self) -> str:
        return f"ProgressGuard(rounds={self.rounds})"


def halted(name: str, error: E) -> E:
    """A loop's end without being done, with its rounds in the error's context."""
    found = context_of(error)
    rounds = {"rounds": error.rounds, "iteration_history": history_details(error.iteration_history)}
    changes = {
        "details": {**found.details, **rounds},
        "partial_output": partial_output(error.value),
        **place_of(name),
    }
    attach_context(error, found.model_copy(update=changes))
    return error


def place_of(name: str) -> dict[str, Any]:
    """Which loop it is, and the run that is going on."""
    ids = {"task_run_id": task_run.get_id(), "flow_run_id": flow_run.get_id()}
    return {"node_id": name, **{name: str(value) for name, value in ids.items() if value}}
