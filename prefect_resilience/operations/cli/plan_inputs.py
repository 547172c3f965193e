"""`--input` and `--inputs`: what a plan is given from a command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, cast

from prefect_resilience.base.policy import nearest
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.graphs.plans.model import Plan

# In a template or in a condition's path, as it stands in JSON: inputs.drug, inputs["drug"]
_LOOKED_AT = re.compile(r"""\binputs(?:\.|\[\\?["'])(\w+)""")


def read_inputs(pairs: Iterable[str], text: str | None) -> dict[str, Any]:
    """The inputs of `--inputs JSON` and, over them, those of every `--input name=value`.

    A value that reads as JSON is meant so (3, true, [1, 2], "3"); anything else is text. Raises
    ConfigurationError for what is no pair, written twice, or no JSON object.
    """
    inputs = _object(text) if text is not None else {}
    written: set[str] = set()
    for pair in pairs:
        name, sign, value = pair.partition("=")
        name = name.strip()
        if not sign or not name:
            raise ConfigurationError(f"--input {pair!r} is no name=value, as in --input drug=aspirin")
        if name in written:
            raise ConfigurationError(f"--input {name}=... is written twice: name each input once")
        written.add(name)
        inputs[name] = _value(value)
    return inputs


def check_names(inputs: Iterable[str], plan: Plan) -> None:
    """Raise ConfigurationError for an input that the plan neither declares nor looks at."""
    unknown = [name for name in inputs if name not in plan.inputs]
    if not unknown:
        return
    looked_at = set(_LOOKED_AT.findall(plan.model_dump_json()))
    for name in unknown:
        if name not in looked_at:
            known = looked_at | set(plan.inputs)
            raise ConfigurationError(
                f"the plan has no input {name!r}{nearest(name, known) if known else ', nor any other'}"
            )


def _object(text: str) -> dict[str, Any]:
    try:
        read = _json(text)
    except ValueError as error:
        raise ConfigurationError(
            f"""--inputs is no JSON ({error}): write it as in --inputs '{{"drug": "aspirin"}}'"""
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
    raise ValueError(f"{name} is no JSON")
