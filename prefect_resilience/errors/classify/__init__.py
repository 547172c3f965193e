"""From an exception to its category: HTTP statuses, cloud SDKs, databases, messages."""
