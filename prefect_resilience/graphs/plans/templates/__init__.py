"""Expressions and `{{ templates }}` in plans."""
