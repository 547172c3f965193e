"""From JSON or YAML to a checked plan, with errors that name their place."""
