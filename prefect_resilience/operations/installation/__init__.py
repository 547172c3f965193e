"""What an installation brings onto a Prefect server: blocks, a work pool, deployments and automations."""

from prefect_resilience.operations.installation.catalog import InstallationChange
from prefect_resilience.operations.installation.installing import install, uninstall

__all__ = ["InstallationChange", "install", "uninstall"]
