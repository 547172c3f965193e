"""Errors: categories, classification, contexts, redaction and the exceptions of this package."""
