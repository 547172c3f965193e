"""Secrets: their formats, their collection, and their removal from texts."""
