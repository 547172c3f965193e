"""Limits: how many calls at a time, how many in a period, and hedged calls."""
