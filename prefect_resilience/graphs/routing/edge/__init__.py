"""Branches, handlers, votes and loops as Prefect task runs."""
