"""Limits: how many calls at a time, how many in a period, and hedged calls."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
