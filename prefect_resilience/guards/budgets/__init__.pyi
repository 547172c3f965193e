from .model import BudgetStatus as BudgetStatus
from .policy import ErrorBudget as ErrorBudget
from .policy import count as count
from .policy import get_budgets as get_budgets
