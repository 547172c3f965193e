"""What is wrong with a project, a fleet and a server, each with its mend."""

from prefect_resilience.operations.diagnosis.examining import examine
from prefect_resilience.operations.diagnosis.findings import Diagnosis, DiagnosisFinding

__all__ = ["Diagnosis", "DiagnosisFinding", "examine"]
