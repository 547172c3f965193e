"""A call's arguments as JSON and back."""
