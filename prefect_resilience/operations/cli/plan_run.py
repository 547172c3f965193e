"""`plan run`: run a plan as a Prefect flow run. The result is returned even if the plan failed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

import httpx
from prefect.settings import (
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    get_current_settings,
    temporary_settings,
)

from prefect_resilience.base.policy import nearest
from prefect_resilience.errors.exceptions import ConfigurationError, ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.graphs.plans.model import Plan
from prefect_resilience.graphs.plans.result import PlanFailed, PlanResult
from prefect_resilience.operations.cli.plan_files import PlanSource
from prefect_resilience.operations.flows import run_plan
from prefect_resilience.operations.importing import imported, output_of_others

# Inputs in templates and in the paths of conditions, as JSON: inputs.drug, inputs["drug"]
_LOOKED_AT = re.compile(r"""\binputs(?:\.|\[\\?["'])(\w+)""")


def read_inputs(pairs: Iterable[str], text: str | None) -> dict[str, Any]:
    """The inputs of `--inputs JSON`, overridden by those of every `--input name=value`.

    A value that is valid JSON is read as JSON (3, true, [1, 2], "3"); anything else is text. Raises
    ConfigurationError for a text without =, a duplicate name, and `--inputs` that is not a JSON object.
    """
    inputs = _object(text) if text is not None else {}
    written: set[str] = set()
    for pair in pairs:
        name, sign, value = pair.partition("=")
        name = name.strip()
        if not sign or not name:
            raise ConfigurationError(f"--input {pair!r} must be name=value, as in --input drug=aspirin")
        if name in written:
            raise ConfigurationError(f"--input {name}=... is given twice: give each input once")
        written.add(name)
        inputs[name] = _value(value)
    return inputs


def check_names(inputs: Iterable[str], plan: Plan) -> None:
    """Raise ConfigurationError for an input that the plan neither declares nor uses."""
    unknown = [name for name in inputs if name not in plan.inputs]
    if not unknown:
        return
    looked_at = set(_LOOKED_AT.findall(plan.model_dump_json()))
    for name in unknown:
        if name not in looked_at:
            known = looked_at | set(plan.inputs)
            raise ConfigurationError(
                f"the plan has no input {name!r}{nearest(name, known) if known else '; it has no inputs'}"
            )


def _object(text: str) -> dict[str, Any]:
    try:
        read = _json(text)
    except ValueError as error:
        raise ConfigurationError(
            f"""--inputs is not JSON ({error}): write it as in --inputs '{{"drug": "aspirin"}}'"""
        ) from None
    if not isinstance(read, dict):
        raise ConfigurationError(
            f"""--inputs must be a JSON object, as in '{{"drug": "aspirin"}}', not {type(read).__name__}"""
        )
    return cast("dict[str, Any]", read)


def _value(text: str) -> Any:
    try:
        return _json(text)
    except ValueError:
        return text


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def import_actions(modules: Iterable[str]) -> None:
    """Import each module. Raises ConfigurationError for one that cannot be imported."""
    for name in modules:
        imported(name, f"--actions {name}")


# Prefixes of the messages of Prefect's client when there is no API
OF_THE_API = ("Failed to reach API", "Timed out while attempting to connect")

PATIENCE = 90


def run(source: PlanSource, inputs: Mapping[str, Any]) -> tuple[PlanResult, str]:
    """Run the plan. Returns its result, and why it failed ("" if it did not).

    Raises the error that prevented a run.
    """
    # A plan is passed as a file if it has one, so that subplans are found in the same folder.
    plan = source.plan if source.path is None else source.path
    try:
        with _patient(), output_of_others():
            return run_plan(plan, inputs=dict(inputs)), ""
    except PlanFailed as failed:
        return failed.result, redact(str(failed))
    except (RuntimeError, httpx.HTTPError) as error:
        if isinstance(error, RuntimeError) and not str(error).startswith(OF_THE_API):
            raise
        raise ResilienceError(f"the Prefect API cannot be used ({_short(error)}): {_advice()}") from error


def _patient() -> AbstractContextManager[Any]:
    """Wait longer for an API that is started for one run: on a busy machine, its database takes > 20 s."""
    seconds = max(PATIENCE, PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.value())
    return temporary_settings({PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: seconds})


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return redact(lines[0].rstrip(".") if lines else type(error).__name__)


def _advice() -> str:
    url = get_current_settings().api.url
    if url is None:
        return "none is configured, and a temporary one did not start in time; set PREFECT_API_URL"
    return f"check that its server runs, and that PREFECT_API_URL ({redact(url)}) is correct"
