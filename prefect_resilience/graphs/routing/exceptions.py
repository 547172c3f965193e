"""The exceptions of routing.

    ResilienceError
    ├── NoRoute            a value came that no branch is for
    ├── NoQuorum           not enough handlers gave the same answer
    ├── TooManyFailures    more items failed than were allowed to
    ├── NoProgress         rounds passed and nothing changed
    └── RoundsExhausted    the last round that was allowed did not bring it to an end

Each can be pickled, and its message stands in `args` once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect_resilience.errors.exceptions import ResilienceError

if TYPE_CHECKING:
    from prefect_resilience.graphs.routing.edge.gathering import Outcome
    from prefect_resilience.graphs.routing.rounds import Round


class _Told(ResilienceError):
    """An exception that is made again from its arguments wherever it is sent."""

    def __init__(self, message: str, *told: Any) -> None:
        super().__init__(message)
        self._told = told

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._told, self._kept()

    def _kept(self) -> dict[str, Any]:
        """What was put on the exception after it was made, such as its ErrorContext and its notes."""
        return {name: value for name, value in self.__dict__.items() if name != "_told"}


class NoRoute(_Told):
    """No branch is for this value, and there is no `otherwise`. `branches` are the conditions asked."""

    error_category = "validation"

    def __init__(self, value: str, branches: tuple[str, ...]) -> None:
        self.value = value
        self.branches = branches
        super().__init__(
            f"no branch is for {value}: none of ({', '.join(branches)}) holds, and there is no otherwise",
            value,
            branches,
        )


class NoQuorum(_Told):
    """Fewer than `need` handlers gave the same answer, and no more can.

    `votes` has each answer, in short, with the names of the handlers that gave it; `errors` the handlers that
    failed, each with its error in one line.
    """

    error_category = "subtask"

    def __init__(self, need: int, votes: dict[str, tuple[str, ...]], errors: dict[str, str]) -> None:
        self.need = need
        self.votes = votes
        self.errors = errors
        said = [f"{', '.join(names)} said {answer}" for answer, names in votes.items()]
        said += [f"{name} failed ({error})" for name, error in errors.items()]
        super().__init__(
            f"{need} handlers were to give the same answer: {'; '.join(said)}", need, votes, errors
        )


class TooManyFailures(_Told):
    """More items failed than were allowed to: `failed` of `total`. `failures` has the first 100 of them."""

    error_category = "subtask"

    def __init__(self, failures: tuple[Outcome[Any], ...], failed: int, total: int, allowed: int) -> None:
        self.failures = failures
        self.failed = failed
        self.total = total
        self.allowed = allowed
        first = failures[0].error
        example = f"; the first, item {failures[0].name}: {first.summary()}" if first else ""
        super().__init__(
            f"{failed} of {total} items failed, and {allowed} may{example}", failures, failed, total, allowed
        )


class _Halted(_Told):
    """A loop that ended without being done. Its last round is the last of `iteration_history`."""

    def __init__(self, message: str, rounds: int, value: Any, history: tuple[Round[Any], ...]) -> None:
        self.rounds = rounds
        self.value = value
        self.iteration_history = history
        super().__init__(message, rounds, value, history)


class NoProgress(_Halted):
    """Rounds passed and nothing changed: `rounds` were made, and `value` is what the last one gave."""

    error_category = "no_progress"

    def __init__(self, rounds: int, value: Any, history: tuple[Round[Any], ...], patience: int = 1) -> None:
        self.patience = patience
        last = "the last round" if patience == 1 else f"the last {patience} rounds"
        super().__init__(f"{last} of {rounds} changed nothing", rounds, value, history)
        self._told = (rounds, value, history, patience)


class RoundsExhausted(_Halted):
    """All `rounds` that may be were made, and it is still not done; `value` is what the last one gave."""

    error_category = "resource_exhausted"

    def __init__(self, rounds: int, value: Any, history: tuple[Round[Any], ...]) -> None:
        times = "1 round was" if rounds == 1 else f"{rounds} rounds were"
        super().__init__(f"{times} made, and it is still not done", rounds, value, history)
