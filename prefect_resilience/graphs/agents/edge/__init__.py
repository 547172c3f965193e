"""Chains of agents and providers as Prefect tasks."""
