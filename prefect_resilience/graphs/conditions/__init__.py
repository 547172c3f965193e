"""Conditions on results and errors, written in Python or in JSON. Import each name from its own module."""
