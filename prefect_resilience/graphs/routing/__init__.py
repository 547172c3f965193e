"""Routing between tasks: branches, error handlers, votes, loops. Import each name from its own module."""
