"""Sagas: compensations for the effects of a batch, in reverse order."""
