"""What a claim needs of the place where its task runs, and what it makes of a key that is another
effect's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from prefect_resilience.durable.effects.names import CodeSource, is_gone
from prefect_resilience.durable.effects.recipes import Suspect, changed_types, same_call
from prefect_resilience.errors.exceptions import EffectKeyReused, InDoubt
from prefect_resilience.guards.limits.guarding import LimitRefused

if TYPE_CHECKING:
    from prefect_resilience.durable.effects.ledger import Ledger
    from prefect_resilience.durable.effects.model import Asker, Pass, Reused
    from prefect_resilience.durable.effects.opening import BatchMarks


class Taken(LimitRefused):
    """Somebody else claimed the effect while this one waited for a place; nothing was called."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The outcome of a call that was not made, since the effect is done."""

    value: Any
    key: str
    batch_id: str
    external_id: str | None

    @property
    def message(self) -> str:
        known = "" if self.external_id is None else f" as {self.external_id!r}"
        return f"{self.key} was done before{known} in batch {self.batch_id}"


class EffectSurroundings(Protocol):
    """What a claim needs of the place where its task runs. Only the first six may raise, and block."""

    def batch_id(self) -> str:
        """The batch that the run belongs to. Raises StoreUnavailable while that cannot be found out."""
        ...

    def passed(self) -> Pass:
        """The pass of the code that the run belongs to. Raises StoreUnavailable as `batch_id` does."""
        ...

    def marks(self) -> BatchMarks | None:
        """What is known of the batch outside of the ledger; None: nothing can be."""
        ...

    def ledger(self) -> Ledger: ...

    def kept(self, reference: str) -> Any:
        """What `keep` kept; LookupError when it is gone."""
        ...

    def keep(self, reference: str, value: Any) -> str | None:
        """Keep a result that is no JSON; what went wrong, if anything."""
        ...

    def flow(self) -> tuple[str | None, str | None]:
        """The id of the flow run and the name of the flow."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]: ...

    @property
    def identity(self) -> dict[str, Any]: ...

    def begun_external(self) -> None:
        """An external effect is recorded as intended, and its call is about to be made."""
        ...

    def replayed(self, replayed: Replayed) -> None: ...

    def in_doubt(self, key: str, batch_id: str, why: str) -> None: ...

    def overdue(self, key: str, batch_id: str) -> None:
        """The attempt is over, and its call still runs."""
        ...

    def late(self, said: str) -> None:
        """What an overdue call came to, from its own thread."""
        ...

    def unrecorded(self, why: str) -> None:
        """The store is unavailable, and the call is made all the same: it is not external."""
        ...


class OutsideRuns:
    """The half of `EffectSurroundings` of a call outside of any run: nothing is kept, and nothing told."""

    __slots__ = ()

    def kept(self, reference: str) -> Any:
        raise LookupError(reference)

    def passed(self) -> Pass:
        return ()

    def marks(self) -> BatchMarks | None:
        return None

    def flow(self) -> tuple[str | None, str | None]:
        return None, None

    def begun_external(self) -> None:
        return

    def overdue(self, key: str, batch_id: str) -> None:
        return

    def late(self, said: str) -> None:
        return

    def replayed(self, replayed: Replayed) -> None:
        return

    def in_doubt(self, key: str, batch_id: str, why: str) -> None:
        return

    def unrecorded(self, why: str) -> None:
        return


def clash(reused: Reused, asker: Asker, source: CodeSource, key: str, batch_id: str) -> Asker:
    """Who asks on, where the recorded effect is the same one under code that was changed since.

    Raises EffectKeyReused where it is another effect, and InDoubt where it may be the same one.
    """
    recorded = reused.recipe
    assert asker.recipe is not None
    if reused.why == "task":
        if not reused.same_pass and is_gone(recorded["task"], source):
            return replace(asker, names=(*asker.names, recorded["task"]))
        raise EffectKeyReused(key, batch_id, f"the task {recorded['task']!r} has used it")
    changed = changed_types(recorded, asker.recipe) or "its template was filled with other values"
    if reused.same_pass or not same_call(recorded, asker.recipe):
        raise EffectKeyReused(key, batch_id, changed)
    if recorded["task"] in asker.names[1:]:
        return replace(asker, recipe=None)
    raise InDoubt(
        key,
        batch_id,
        f"an earlier pass recorded it with other arguments ({changed}); {_mend(recorded['task'])}",
    )


def suspected(found: list[Suspect], batch_id: str) -> str:
    """Why a call whose key is new may be one that an earlier pass made."""
    first = found[0]
    more = "" if len(found) == 1 else f" and {len(found) - 1} more"
    return (
        f"an earlier pass recorded {first.key!r}{more} by the task {first.task!r}, which this pass has not "
        f"asked for: {first.why}; {_mend(first.task)}, or settle the recorded effect: "
        f"`prefect-resilience batches settle {batch_id} {first.key} done`"
    )


def _mend(task: str) -> str:
    return f'if it is the same effect, write Effect(was="{task}")'
