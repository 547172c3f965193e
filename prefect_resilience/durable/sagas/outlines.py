"""What a rollback undoes and what it does not, before and after it, in the words that people read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from prefect_resilience.durable.effects.model import EffectDocument
from prefect_resilience.durable.sagas.report import Compensation, RollbackReport
from prefect_resilience.durable.sagas.undo import to_undo, unsettled

KEYS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class NotUndone:
    """An effect that a rollback does not undo.

    how: "skipped" (it stays done), "failed" (its compensation failed) or "in_doubt" (nothing can tell).
    """

    key: str
    how: Literal["skipped", "failed", "in_doubt"]
    why: str


@dataclass(frozen=True, slots=True)
class Outline:
    """What of a batch is undone, or is to be, in that order, and what is not."""

    undone: tuple[str, ...] = ()
    not_undone: tuple[NotUndone, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether nothing is left for a person: what has no compensation does not count."""
        return all(one.how == "skipped" for one in self.not_undone)

    def told(self, *, planned: bool = False) -> str:
        """Both as one phrase."""
        yes, no = ("to undo", "not to be undone") if planned else ("undone", "not undone")
        if not self.undone and not self.not_undone:
            return "there is nothing to undo"
        parts = [f"{yes}: {_named([repr(key) for key in self.undone])}" if self.undone else f"{yes}: nothing"]
        if self.not_undone:
            parts.append(f"{no}: {_named([f'{one.key!r} ({one.why})' for one in self.not_undone])}")
        return "; ".join(parts)


def outline_of(report: RollbackReport) -> Outline:
    """What a rollback came to; what an earlier one had undone counts too."""
    left = [
        *_left(report.failed, "failed"),
        *_left(report.in_doubt, "in_doubt"),
        *_left(report.skipped, "skipped"),
    ]
    return Outline(tuple(one.key for one in (*report.already, *report.compensated)), tuple(left))


def planned(documents: Iterable[EffectDocument], since: float | None) -> Outline:
    """What a rollback would undo of these effects, down to a savepoint's time or to the beginning."""
    effects = list(documents)
    todo = to_undo(effects, since)
    left = [NotUndone(one["key"], "in_doubt", _doubt(one)) for one in unsettled(effects, since)]
    left += [NotUndone(one["key"], "skipped", why_it_stays(one)) for one in todo.skipped]
    return Outline(tuple(one["key"] for one in todo.effects), tuple(left))


def why_it_stays(effect: EffectDocument) -> str:
    """Why no rollback undoes an effect that is done."""
    held: dict[str, Any] | None = effect.get("compensation")
    return "it has no compensation" if held is None else f"it was given up ({held['given_up']})"


def _doubt(effect: EffectDocument) -> str:
    held: dict[str, Any] = effect.get("compensation") or {}
    asked = "its verify is asked first" if held.get("verify") else "there is no verify to ask"
    return f"whether it took place is unknown: {asked}"


def _left(found: Iterable[Compensation], how: Any) -> Iterable[NotUndone]:
    return (NotUndone(one.key, how, one.why) for one in found)


def _named(items: Sequence[str]) -> str:
    more = len(items) - KEYS_SHOWN
    return ", ".join(items[:KEYS_SHOWN]) + (f" and {more} more" if more > 0 else "")
