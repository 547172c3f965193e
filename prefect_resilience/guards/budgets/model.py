"""What is known of an error budget."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field


class BudgetStatus(BaseModel):
    """An error budget as its store knows it.

    objective: the share of runs that must go well; window: seconds that it looks back.
    good, bad: the runs in the window. remaining: the share of the budget that is left: 1 when nothing failed,
        0 when just as many failed as may, below 0 when more did.
    burn_rates: by span, as in {"1h": 14.2}, how many times faster than allowed the budget was used up in
        it: at 1 it lasts for exactly the window.
    burned: whether it burns too fast at this moment, or is used up; since when (seconds since the epoch, by
        the store's clock), and why.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    name: str
    objective: float
    window: float
    good: int = 0
    bad: int = 0
    remaining: float = 1.0
    burn_rates: dict[str, float] = Field(default_factory=dict[str, float])
    burned: bool = False
    burning_since: float | None = None
    why: str | None = None

    @property
    def runs(self) -> int:
        """How many runs there were in the window."""
        return self.good + self.bad
