"""What is told about calls: events, metrics, notes for summaries."""
