"""The operator's tools: the command line, the dashboard, reports, and the flows that an operator deploys.

A deployment's entrypoint names a flow by this module: `prefect_resilience.operations.set_circuit`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
