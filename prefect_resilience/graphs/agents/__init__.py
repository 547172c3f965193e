"""Agents and providers in chains: the able one first, simpler ones after it, a person last."""

from prefect_resilience.graphs.agents.edge.alone import Memories
from prefect_resilience.graphs.agents.edge.chain import AgentChain, ChainResult, ProviderChain
from prefect_resilience.graphs.agents.edge.person import Notice, Person
from prefect_resilience.graphs.agents.edge.registry import agent, provider
from prefect_resilience.graphs.agents.trace import PersonNeeded

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
]
