"""The policies around one call: retries, circuits, limits, timeouts, fallbacks and others."""
