"""Side effects, batches and sagas."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub("prefect_resilience", __file__)
__path__: tuple[str, ...] = ()  # old pickles name modules that were below this one
