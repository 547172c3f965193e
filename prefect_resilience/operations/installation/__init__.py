"""Installs blocks, a work pool, deployments and automations on a Prefect server."""

from prefect_resilience.operations.installation.catalog import InstallationChange
from prefect_resilience.operations.installation.installing import install, uninstall

__all__ = ["InstallationChange", "install", "uninstall"]
