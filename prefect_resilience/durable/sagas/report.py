"""What a rollback came to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Compensation:
    """One effect of a batch that was rolled back.

    `function` is what undoes it, as "module:name"; None: it has no compensation. `why` says what went wrong,
    or what is to be known. `generation` counts how often the effect was begun from nothing.
    """

    key: str
    task: str | None
    function: str | None
    external_id: str | None
    generation: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class RollbackReport:
    """What a rollback did, in the order in which it did it.

    compensated: undone now. already: undone by an earlier rollback, also by one that was cut off.
    failed: the compensation raised, or could not be called: a person must see to it.
    in_doubt: nothing can tell whether the effect, or its compensation, took place: a person must.
    skipped: done, and has no compensation, or a person gave it up: it stays done.
    """

    batch_id: str
    to: str | None
    compensated: tuple[Compensation, ...] = ()
    already: tuple[Compensation, ...] = ()
    failed: tuple[Compensation, ...] = ()
    in_doubt: tuple[Compensation, ...] = ()
    skipped: tuple[Compensation, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How many there are of each."""
        return {how: len(getattr(self, how)) for how in _SAID}

    @property
    def complete(self) -> bool:
        """Whether nothing is left for a person: what was skipped does not count."""
        return not self.failed and not self.in_doubt

    def __str__(self) -> str:
        said = ", ".join(f"{count} {_SAID[how]}" for how, count in self.counts.items() if count)
        where = "" if self.to is None else f" to {self.to!r}"
        return f"batch {self.batch_id!r} rolled back{where}: {said or 'nothing to undo'}"


_SAID = {
    "compensated": "compensated",
    "already": "compensated before",
    "failed": "failed",
    "in_doubt": "in doubt",
    "skipped": "without a compensation",
}
