"""Example: a paged HTTP API into a database, and one webhook a day."""
