from .counting import count as count
from .fleet import get_budgets as get_budgets
from .model import BudgetStatus as BudgetStatus
from .policy import ErrorBudget as ErrorBudget
