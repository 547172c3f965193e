"""Plans: flows as data. Import each name from its own module; this package imports nothing."""
