"""Agents, providers and people: chains of them, and approvals."""

from prefect_resilience.graphs.agents.edge.asking import Approval
from prefect_resilience.graphs.agents.edge.chain import AgentChain, ChainResult, ProviderChain
from prefect_resilience.graphs.agents.edge.person import Notice, Person, aapprove, approve
from prefect_resilience.graphs.agents.edge.registry import agent, provider
from prefect_resilience.graphs.agents.trace import NotAnswered, PersonNeeded, Rejected
from prefect_resilience.guards.fallbacks import Memories
from prefect_resilience.tasks.edge.task_config import task_config

__all__ = [
    "AgentChain",
    "Approval",
    "ChainResult",
    "Memories",
    "NotAnswered",
    "Notice",
    "Person",
    "PersonNeeded",
    "ProviderChain",
    "Rejected",
    "aapprove",
    "agent",
    "approve",
    "provider",
    "task_config",
]
