"""Agents and providers in chains: the able one first, simpler ones after it, a person last."""

from .alone import Memories
from .chain import AgentChain, ChainResult, ProviderChain
from .defaults import AGENT_CHAINS, PROVIDERS
from .exceptions import PersonNeeded
from .notices import Notice
from .person import Person
from .registry import agent, provider

__all__ = [
    "AGENT_CHAINS",
    "PROVIDERS",
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
