"""Failed calls that can be replayed: `dead_letters.list()`, `.get(id)`, `.replay()`, `.purge()`."""

from prefect_resilience.durable.letters.codec import LeftOut
from prefect_resilience.durable.letters.edge.operations import get_letter as get
from prefect_resilience.durable.letters.edge.operations import list_letters as list  # noqa: A004 - `dead_letters.list()`
from prefect_resilience.durable.letters.edge.operations import purge, replay
from prefect_resilience.durable.letters.kinds import DeadLetterError
from prefect_resilience.durable.letters.model import Claim, DeadLetter, Pass, Replay
from prefect_resilience.durable.letters.report import LetterOutcome, ReplayReport

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
