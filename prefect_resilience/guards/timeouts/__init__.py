"""Timeouts: in the event loop, on a thread, by alarm, or in a process of their own."""
