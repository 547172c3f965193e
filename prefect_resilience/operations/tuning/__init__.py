"""Advice from recorded runs: which numbers of a policy to change, and what that would have done."""
