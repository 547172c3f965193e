"""What agents of other libraries need from this package; chains of agents are in `prefect_resilience`."""

from prefect_resilience.tasks.edge.task_config import task_config as task_config
