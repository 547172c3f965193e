"""ErrorBudget: how many runs may fail in a window."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from pydantic import Field, ValidationInfo, field_validator

from prefect_resilience.base.durations import seconds_of
from prefect_resilience.base.policy import Policy
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.budgets.model import BudgetStatus
from prefect_resilience.stores.base import Store

SHORTEST = 60.0
LONGEST = 90 * 86_400.0


class ErrorBudget(Policy):
    """How large a share of runs must go well in a window, counted for the whole fleet.

    objective: that share, as in 0.99: then 1 % of the runs may fail, which is the budget.
    window: how far back it looks: "7d" (also "1w", "12h"), a timedelta, or seconds; a minute to 90 days.
    name: what it is called, and counted under; without one, by the name of the task or flow.
    degraded_counts: whether a run that a fallback answered with `degraded=True` counts as failed.
    minimum_runs: so many runs must be in a span before it can raise an alarm.

        @resilient_task(error_budget=ErrorBudget(objective=0.99, window="7d"))

        budget = ErrorBudget(objective=0.999, window="30d", name="nightly")
        @flow(on_completion=[budget.watch], on_failure=[budget.watch], on_crashed=[budget.watch])

    A run counts once, when its task (with retries and fallbacks) or flow has ended; what Prefect answers
    from its cache, a cancelled run and a process that was killed in a task are not counted. Runs are counted
    in this process and merged into the store every few seconds, at once after a failure. When the budget
    begins to burn too fast (see `budgets.arithmetic`), `prefect-resilience.budget.burned` is sent, once.
    """

    by_position: ClassVar[tuple[str, ...]] = ("objective",)

    objective: float = 0.99
    window: float = 7 * 86_400.0
    name: str | None = Field(default=None, min_length=1, max_length=200)
    degraded_counts: bool = True
    minimum_runs: int = Field(default=10, ge=1)

    @field_validator("objective", mode="before")
    @classmethod
    def _share(cls, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
            raise ValueError(
                f"objective={value!r} must be above 0 and below 1: "
                "write 0.99 where 99 of 100 runs must go well"
            )
        return value

    @field_validator("window", mode="before")
    @classmethod
    def _seconds(cls, value: Any, info: ValidationInfo) -> float:
        seconds = seconds_of(value)
        if seconds is None or not SHORTEST <= seconds <= LONGEST:
            raise ValueError(f'window={value!r} must be between a minute and 90 days: write "7d" or seconds')
        return seconds

    @classmethod
    def of(cls, value: Any) -> ErrorBudget | None:
        """What the option `error_budget=` means: a budget, its JSON, an objective, or None."""
        if value is None or isinstance(value, ErrorBudget):
            return value
        if isinstance(value, dict):
            return cls(**cast("dict[str, Any]", value))
        if isinstance(value, float):
            return cls(objective=value)
        raise ConfigurationError(f"error_budget={value!r} is no budget: write ErrorBudget(objective=0.99)")

    def status(self, name: str | None = None, store: Store | str | None = None) -> BudgetStatus:
        """How the budget stands for the fleet, with what this process has counted.

        `name` is the task's or flow's, where the budget has none of its own. Raises StoreUnavailable.
        """
        from prefect_resilience.guards.budgets.fleet import read_status

        return read_status(self, self._called(name), store)

    def count(self, good: bool, name: str | None = None) -> None:
        """Count a run that ended, by hand; never raises because of the store."""
        from prefect_resilience.guards.budgets.counting import count

        due = count(self, self._called(name), good)
        if due is not None:
            due()

    def watch(
        self,
        task: Any = None,
        task_run: Any = None,
        state: Any = None,
        *,
        flow: Any = None,
        flow_run: Any = None,
    ) -> None:
        """A hook of Prefect's that counts runs of a flow or a plain task; for `on_completion`, `on_failure`,
        and for flows `on_crashed`."""
        # Prefect hands over a flow by position while it runs here, by name when its process has died.
        subject = task if flow is None else flow
        good = state.is_completed() and not (self.degraded_counts and state.name == "Degraded")
        self.count(good, subject.name)

    def _called(self, name: str | None) -> str:
        called = self.name or name
        if not called:
            raise ConfigurationError(
                'this ErrorBudget has no name: write ErrorBudget(name="..."), or say which task is meant'
            )
        return called
