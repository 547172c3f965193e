"""Error budgets: the share of a fleet's runs that may fail in a window, and an alarm for a high burn rate."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
