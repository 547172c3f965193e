"""The settings of this package, and what they are at the moment."""

from prefect_resilience.base.edge.settings import ResilienceSettings as ResilienceSettings
from prefect_resilience.base.edge.settings import current_settings as current_settings
