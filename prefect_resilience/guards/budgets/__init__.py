"""Error budgets: how many runs of a fleet may fail in a window, and an alarm when it goes too fast."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
