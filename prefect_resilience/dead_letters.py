"""Failed calls that can be replayed: `dead_letters.list()`, `.get(id)`, `.replay()`, `.purge()`."""

from typing import TYPE_CHECKING, Any

from prefect_resilience.durable.letters.codec import LeftOut
from prefect_resilience.durable.letters.edge.known import get_letter as get
from prefect_resilience.durable.letters.edge.known import list_letters as list  # noqa: A004 - `dead_letters.list()`
from prefect_resilience.durable.letters.edge.known import purge
from prefect_resilience.durable.letters.kinds import DeadLetterError
from prefect_resilience.durable.letters.model import (
    Claim,
    DeadLetter,
    LetterOutcome,
    Pass,
    Replay,
    ReplayReport,
)

if TYPE_CHECKING:
    from prefect_resilience.durable.letters.edge.operations import replay

__all__ = [
    "Claim",
    "DeadLetter",
    "DeadLetterError",
    "LeftOut",
    "LetterOutcome",
    "Pass",
    "Replay",
    "ReplayReport",
    "get",
    "list",
    "purge",
    "replay",
]


def __getattr__(name: str) -> Any:
    if name == "replay":  # it imports Prefect, which reading needs not
        from prefect_resilience.durable.letters.edge.operations import replay

        return replay
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
