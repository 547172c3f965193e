"""`doctor`: find the problems of a project, a fleet and a server, and how to fix them."""

from prefect_resilience.operations.diagnosis.examining import examine
from prefect_resilience.operations.diagnosis.findings import Diagnosis, DiagnosisFinding

__all__ = ["Diagnosis", "DiagnosisFinding", "examine"]
