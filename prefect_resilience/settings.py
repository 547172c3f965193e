"""The settings of this package, and their current values."""

from prefect_resilience.base.edge.current_settings import ResilienceSettings as ResilienceSettings
from prefect_resilience.base.edge.current_settings import current_settings as current_settings
