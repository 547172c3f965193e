"""The table of strict comparison, row by row."""

from contextlib import suppress
from typing import Any

import pytest

from prefect_resilience import Condition, ConditionError, ConfigurationError
from tests.graphs.conditions.strictness import ERROR, NOTHING, TABLE

ROWS = [(name, row) for name, rows in TABLE.items() for row in rows]
LAWS = {"equals": "not_equals", "not_equals": "equals"}
MIRRORED = {"equals": "equals", "gt": "lt", "lt": "gt", "gte": "lte", "lte": "gte"}


def asks(operator: str, value: Any) -> Condition:
    if operator in ("exists", "not_exists"):
        return Condition(operator=operator, path="it")
    return Condition(operator=operator, path="it", value=value)


@pytest.mark.requirement("000.03", "000.04")
@pytest.mark.parametrize(("name", "row"), ROWS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(ROWS)])
def test_row(name: str, row: tuple[Any, str, Any, Any]) -> None:
    there, operator, value, holds = row
    result = {} if there is NOTHING else {"it": there}
    condition = asks(operator, value)
    if holds is ERROR:
        with pytest.raises(ConditionError, match="'it'"):
            condition.evaluate(result)
        return
    assert condition.evaluate(result) is holds
    assert condition.explain(result).holds is holds
    if operator in LAWS:
        assert asks(LAWS[operator], value).evaluate(result) is not holds
    assert (~condition).evaluate(result) is not holds
    if operator in MIRRORED:
        with suppress(ConfigurationError):  # a condition does not hold every value
            mirrored = asks(MIRRORED[operator], there)
            assert type(mirrored.value) is not type(there) or mirrored.evaluate({"it": value}) is holds
