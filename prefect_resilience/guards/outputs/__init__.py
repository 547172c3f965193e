"""Expected outputs of a task, and the error for another output."""
