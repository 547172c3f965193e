"""Plans: flows as data. Import what is needed from its file; nothing is imported here."""
