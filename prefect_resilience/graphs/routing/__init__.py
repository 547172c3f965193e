"""Routing between tasks: branches, error handlers, votes, partial failure, and loops."""

from prefect_resilience.graphs.routing.edge.gathering import Gathered as Gathered
from prefect_resilience.graphs.routing.edge.gathering import Outcome as Outcome
from prefect_resilience.graphs.routing.edge.gathering import agather as agather
from prefect_resilience.graphs.routing.edge.gathering import gather as gather
from prefect_resilience.graphs.routing.edge.handlers import on_error as on_error
from prefect_resilience.graphs.routing.edge.loops import ProgressGuard as ProgressGuard
from prefect_resilience.graphs.routing.edge.loops import aiterate as aiterate
from prefect_resilience.graphs.routing.edge.loops import iterate as iterate
from prefect_resilience.graphs.routing.edge.route import Branch as Branch
from prefect_resilience.graphs.routing.edge.route import otherwise as otherwise
from prefect_resilience.graphs.routing.edge.route import route as route
from prefect_resilience.graphs.routing.edge.route import when as when
from prefect_resilience.graphs.routing.edge.voting import Quorum as Quorum
from prefect_resilience.graphs.routing.edge.voting import quorum as quorum
from prefect_resilience.graphs.routing.rounds import Iteration as Iteration
from prefect_resilience.graphs.routing.rounds import NoProgress as NoProgress
from prefect_resilience.graphs.routing.rounds import NoQuorum as NoQuorum
from prefect_resilience.graphs.routing.rounds import NoRoute as NoRoute
from prefect_resilience.graphs.routing.rounds import Round as Round
from prefect_resilience.graphs.routing.rounds import RoundsExhausted as RoundsExhausted
from prefect_resilience.graphs.routing.rounds import TooManyFailures as TooManyFailures
