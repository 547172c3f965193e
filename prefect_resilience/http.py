"""Guards behind HTTP clients: httpx transports, and an adapter for requests.

client = httpx.Client(transport=ResilientTransport())
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub("prefect_resilience", __file__)
