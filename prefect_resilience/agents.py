"""Agents and providers in chains; see `prefect_resilience.graphs.agents`."""

from prefect_resilience.graphs.agents import *  # noqa: F403

__path__: tuple[str, ...] = ()  # old pickles name modules that were below this one
