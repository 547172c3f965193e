"""Conditions: what a result or an error says, asked in Python or in JSON."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
