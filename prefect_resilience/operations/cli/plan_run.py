"""`plan run`: a plan as a Prefect flow run, and what became of it even if it failed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import httpx
from prefect.settings import (
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    get_current_settings,
    temporary_settings,
)

from prefect_resilience.errors.exceptions import ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.graphs.plans.failures import PlanFailed
from prefect_resilience.graphs.plans.result import PlanResult
from prefect_resilience.operations.cli import plan_progress
from prefect_resilience.operations.cli.plan_files import Source
from prefect_resilience.operations.cli.plan_modules import output_of_others
from prefect_resilience.operations.flows import run_plan

# How Prefect's client begins what it says when there is no API
OF_THE_API = ("Failed to reach API", "Timed out while attempting to connect")

PATIENCE = 90


@dataclass(frozen=True)
class Ended:
    """The result of a run, and in a sentence why it failed, "" if it did not."""

    result: PlanResult
    failure: str = ""


def run(source: Source, inputs: Mapping[str, Any]) -> Ended:
    """Run the plan to its end, with a bar in a terminal. Raises what kept it from being run at all."""
    # By its file where it has one: plans inside it are found beside it.
    plan = source.plan if source.path is None else source.path
    try:
        with _patient(), plan_progress.bar(), output_of_others():
            return Ended(run_plan(plan, inputs=dict(inputs)))
    except PlanFailed as failed:
        return Ended(failed.result, redact(str(failed)))
    except (RuntimeError, httpx.HTTPError) as error:
        if isinstance(error, RuntimeError) and not str(error).startswith(OF_THE_API):
            raise
        raise ResilienceError(f"the Prefect API cannot be used ({_short(error)}): {_advice()}") from error


def _patient() -> AbstractContextManager[Any]:
    """An API that is started for one run makes its database first: where much goes on, more than 20 s."""
    seconds = max(PATIENCE, PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.value())
    return temporary_settings({PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: seconds})


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return redact(lines[0].rstrip(".") if lines else type(error).__name__)


def _advice() -> str:
    url = get_current_settings().api.url
    if url is None:
        return "none is configured, and one that is started here takes too long; set PREFECT_API_URL"
    return f"check that its server runs, and that PREFECT_API_URL ({redact(url)}) is right"
