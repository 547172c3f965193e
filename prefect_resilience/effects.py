"""Side effects, batches and sagas."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub("prefect_resilience", __file__)
