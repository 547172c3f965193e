"""Agents, providers and people: chains of them, and approvals. Import each name from its own module."""
