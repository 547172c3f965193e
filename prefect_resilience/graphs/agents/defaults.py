"""The chains that agent systems commonly have. Data: nothing here takes effect by itself.

AgentChain("builder", AGENT_CHAINS["builder"])
ProviderChain("llm", PROVIDERS)
"""

from __future__ import annotations

from collections.abc import Mapping

AGENT_CHAINS: Mapping[str, tuple[str, ...]] = {
    "builder": ("builder-simple", "manual-mode"),
    "reviewer": ("reviewer-quick", "skip-review"),
    "planner": ("planner-simple", "no-plan"),
}
"""By the agent: who is asked after it, from the able to the simple."""

PROVIDERS: tuple[str, ...] = ("claude", "openai", "xai")
"""Providers of models, the first one first."""
