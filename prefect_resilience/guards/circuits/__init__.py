"""Circuit breakers: they stop calls to a failing service for the whole fleet."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
