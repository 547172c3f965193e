"""Dead letters: calls that failed for good, kept to be replayed or purged."""
