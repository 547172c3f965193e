"""The actions of a plan as the handlers of a quorum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from prefect_resilience.base.policy import nearest
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.graphs.plans.actions import Action, Actions
from prefect_resilience.graphs.plans.voting import Ask, common_part
from prefect_resilience.graphs.routing.edge.targets import Request, call
from prefect_resilience.graphs.routing.edge.upstream import Failed, Gave
from prefect_resilience.graphs.routing.edge.voting import Quorum


def asking_of(actions: Actions) -> Ask:
    """How a plan with these actions asks them."""
    return partial(_ask, actions)


def _ask(
    actions: Actions,
    of: list[str],
    given: dict[str, Any],
    need: int,
    key: str | None,
    error: ErrorContext | None,
) -> Any:
    voters: list[_Voter] = []
    for name in of:
        found = actions.get(name)
        if found is None:
            raise ConfigurationError(f"quorum: there is no action {name!r}{nearest(name, actions.names())}")
        voters.append(_Voter(found, found.converted(given)))
    if not 1 <= need <= len(of):
        raise ConfigurationError(f"quorum: {need} of {len(of)} actions cannot agree")
    return Quorum(tuple(voters), need, common_part(key)).ask(Request(named={"error": error}))


@dataclass(frozen=True)
class _Voter:
    """An action with its own input."""

    action: Action
    given: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.action.name

    def ask(self, request: Request) -> Any:
        ended = call(self.action.target, Request((), self.given, named=request.named))
        if isinstance(ended, Gave):
            return ended.value
        raise ended.error if isinstance(ended, Failed) else RuntimeError(ended.context.summary())

    def check(self, what: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], offers: bool) -> None:
        """Its input was looked at with the plan."""
