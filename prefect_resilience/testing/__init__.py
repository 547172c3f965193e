"""What users' own tests need: faults on purpose, no waiting, a service that answers by a script.

The contract of `Store`, for stores of your own, is in `prefect_resilience.testing.stores`, which needs pytest
and hypothesis; nothing else here does.
"""

from prefect_resilience.guards.faults import InjectedFault
from prefect_resilience.testing.injecting import inject, no_wait
from prefect_resilience.testing.services import Reply, ScriptedService

__all__ = ["InjectedFault", "Reply", "ScriptedService", "inject", "no_wait"]
