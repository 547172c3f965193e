"""The error budgets of a whole fleet, as their store knows them."""

from __future__ import annotations

from prefect_resilience.guards.budgets import arithmetic
from prefect_resilience.guards.budgets.counting import PREFIX, flush, place_of
from prefect_resilience.guards.budgets.model import BudgetStatus
from prefect_resilience.guards.budgets.policy import ErrorBudget
from prefect_resilience.guards.circuits import registry
from prefect_resilience.stores import Store

PAGE = 100


def read_status(budget: ErrorBudget, name: str, store: registry.StoreReference = None) -> BudgetStatus:
    """How a budget stands under its policy. Raises StoreUnavailable."""
    flush(name)

    def read(opened: Store) -> BudgetStatus:
        found = opened.load(place_of(name))
        known = arithmetic.read(found.value) if found else None
        document = arithmetic.fitting(known, budget.objective, budget.window, budget.minimum_runs)
        return arithmetic.status_of(name, document, opened.now())

    return registry.link_to(store).exchange(read)


def get_budgets(store: registry.StoreReference = None) -> list[BudgetStatus]:
    """Every error budget in the store, by name. Raises StoreUnavailable when it does not answer."""
    flush()
    return registry.link_to(store).exchange(_read_all)


def _read_all(store: Store) -> list[BudgetStatus]:
    now = store.now()
    found: list[BudgetStatus] = []
    after = None
    while page := store.scan(PREFIX, after, PAGE):
        for _, document in page:
            known = arithmetic.read(document.value)
            if known is not None:
                found.append(arithmetic.status_of(known["name"], known, now))
        after = page[-1][0]
    return found
