"""Decomposition of work that is too big for one call: split it, run the parts, merge the results."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
