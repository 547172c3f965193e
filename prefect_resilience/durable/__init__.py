"""What outlives a process: effects, sagas, batches and dead letters."""
