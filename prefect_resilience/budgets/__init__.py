"""Error budgets: how many runs of a fleet may fail in a window, and an alarm when it goes too fast."""

from prefect_resilience.budgets.fleet import get_budgets
from prefect_resilience.budgets.model import BudgetStatus
from prefect_resilience.budgets.policy import ErrorBudget

__all__ = ["BudgetStatus", "ErrorBudget", "get_budgets"]
