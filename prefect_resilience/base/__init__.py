"""Helpers for all subpackages: policies, sync and async drivers, names, durations, plain data."""
