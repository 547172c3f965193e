from .edge.flow import ResilientFlow as ResilientFlow
from .edge.flow import resilient_flow as resilient_flow
from .edge.task import ResilientTask as ResilientTask
from .edge.task import resilient_task as resilient_task
