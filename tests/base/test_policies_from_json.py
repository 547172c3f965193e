"""Policies as other documents write them: names in camel case, comments, the nearest name of an event."""

from typing import Any

import pytest

from prefect_resilience import (
    CircuitPolicy,
    Condition,
    ConfigurationError,
    ErrorBudget,
    Expect,
    Hedge,
    Retry,
    RetryBudget,
    on,
)
from prefect_resilience.base.policy import snake_case
from prefect_resilience.durable.batches.strategies import RecoveryPolicy

POLICIES = [CircuitPolicy, ErrorBudget, Hedge, RecoveryPolicy, Retry, RetryBudget]
NEEDED = {ErrorBudget: {"name": "shop"}, Hedge: {"after": 1}}


def camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_option_may_be_written_in_camel_case(policy: Any) -> None:
    usual = policy(**NEEDED.get(policy, {}))
    written = {camel_case(name): getattr(usual, name) for name in type(usual).model_fields}
    assert policy.model_validate(written) == usual
    assert {snake_case(name) for name in written} == set(type(usual).model_fields)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ({"failureThreshold": 3, "failure_threshold": 3}, "both 'failure_threshold' and 'failureThreshold'"),
        ({"failurThreshold": 3}, "no option 'failurThreshold'; did you mean 'failure_threshold'?"),
        ({"timeout": 3}, "no option 'timeout'"),
        ({"failureThreshold": 3, "timeout": "soon"}, "'soonms' is not a duration"),
    ],
)
def test_a_mistake_names_what_was_written(written: Any, says: str) -> None:
    with pytest.raises(ValueError, match="(?s)" + says):
        CircuitPolicy.model_validate(written)


@pytest.mark.parametrize(
    "text", ['{"type": "exists", "path": "a//b"} // its place', b'{"type": "exists", "path": "a//b"}']
)
def test_a_condition_with_comments(text: str | bytes) -> None:
    assert Condition.model_validate_json(text).path == "a//b"


def test_an_output_format_as_the_documents_write_it() -> None:
    assert Expect(type="json", schema="array") == Expect("array") == Expect(schema="array")
    shape = Expect(type="json").shape
    assert shape.of('[1, {"a": null}]') == [1, {"a": None}]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"type": "xml"}, 'write type="json"'),
        ({"type": "json", "schema": "arry"}, "did you mean 'array'"),
        ({"what": "array", "type": "json"}, "leave type= and schema= out"),
        ({}, "cannot be checked"),
    ],
)
def test_a_wrong_output_format(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Expect(**options)


@pytest.mark.parametrize(
    ("name", "nearest"),
    {
        "degraded": "'run.degraded'",
        "recovered": "'run.recovered'",
        "failed": "'run.failed'",
        "node_failed": "'run.failed'",
        "circuit-state-change": "'circuit'",
        "agent-fallback": "'fallback'",
    }.items(),
)
def test_an_event_of_the_documents_is_answered_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ConfigurationError, match=f"did you mean.*{nearest}"):
        on(name, print)
