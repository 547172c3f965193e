"""What must not happen twice: a ledger of what tasks did to the world outside, and how to go on from it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
