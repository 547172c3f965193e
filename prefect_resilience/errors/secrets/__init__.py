"""Secrets: what they look like, where they come from, and their removal from texts."""
