"""What stands around one call."""
