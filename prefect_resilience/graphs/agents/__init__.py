"""Agents, providers and people: chains of them, and approvals."""

from prefect_resilience.graphs.agents.edge.asking import Approval as Approval
from prefect_resilience.graphs.agents.edge.chain import AgentChain as AgentChain
from prefect_resilience.graphs.agents.edge.chain import ChainResult as ChainResult
from prefect_resilience.graphs.agents.edge.chain import ProviderChain as ProviderChain
from prefect_resilience.graphs.agents.edge.person import Notice as Notice
from prefect_resilience.graphs.agents.edge.person import Person as Person
from prefect_resilience.graphs.agents.edge.person import aapprove as aapprove
from prefect_resilience.graphs.agents.edge.person import approve as approve
from prefect_resilience.graphs.agents.edge.registry import agent as agent
from prefect_resilience.graphs.agents.edge.registry import provider as provider
from prefect_resilience.graphs.agents.trace import NotAnswered as NotAnswered
from prefect_resilience.graphs.agents.trace import PersonNeeded as PersonNeeded
from prefect_resilience.graphs.agents.trace import Rejected as Rejected
from prefect_resilience.guards.fallbacks import Memories as Memories
from prefect_resilience.tasks.edge.task_config import task_config as task_config
