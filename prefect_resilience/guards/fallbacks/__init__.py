"""Who answers when the work itself could not."""

from prefect_resilience.guards.fallbacks.model import Fallback

__all__ = ["Fallback"]
