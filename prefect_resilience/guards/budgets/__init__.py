"""Error budgets: the share of a fleet's runs that may fail in a window, and an alarm for a high burn rate."""
