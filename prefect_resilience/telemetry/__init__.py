"""Events, metrics, and notes for summaries."""
