"""Several tasks together: conditions, routing, plans and agents."""
