"""Chains of agents and providers: the best one first, then simpler ones, a person last."""

from prefect_resilience.graphs.agents.edge.chain import AgentChain, ChainResult, ProviderChain
from prefect_resilience.graphs.agents.edge.person import Notice, Person
from prefect_resilience.graphs.agents.edge.registry import agent, provider
from prefect_resilience.graphs.agents.trace import PersonNeeded
from prefect_resilience.guards.fallbacks import Memories
from prefect_resilience.tasks.edge.task_config import task_config

__all__ = [
    "AgentChain",
    "ChainResult",
    "Memories",
    "Notice",
    "Person",
    "PersonNeeded",
    "ProviderChain",
    "agent",
    "provider",
    "task_config",
]
