"""Outcomes and copies of what functions seldom return or get."""

from functools import partial
from typing import Any

import pytest
from prefect.states import Completed, Failed

from prefect_resilience import Bulkhead
from prefect_resilience.base.drive import Invoke, Steps, drive
from prefect_resilience.base.outcomes import UnawaitedResult, as_coroutine_function, mask_state, settling
from prefect_resilience.base.plain import snapshot
from prefect_resilience.errors.exceptions import ConfigurationError

SECRET = "sk-ant-api03-abcdefghijklmnop"


class Lookup:
    __name__ = "lookup"

    async def __call__(self) -> int:
        return 1


def test_a_callable_object_keeps_the_name_that_it_has() -> None:
    assert as_coroutine_function(Lookup()).__name__ == "lookup"


def test_a_returned_state_is_masked() -> None:
    error, clean = ValueError(SECRET), ValueError("***")
    state = mask_state(Failed(message=f"key {SECRET}", data=error), error, clean)
    assert SECRET not in state.message
    assert state.data is clean
    assert mask_state(state, clean, clean) is state
    done = Completed(data=1)
    assert mask_state([done], error, clean) == [done]


def test_what_cannot_be_copied_is_the_object_itself() -> None:
    class Stubborn(dict[str, Any]):
        def __deepcopy__(self, _: Any) -> Any:
            raise TypeError("not copied")

    stubborn, endless = Stubborn(), []
    endless.append(endless)
    assert snapshot(stubborn) is stubborn
    assert snapshot(endless) is endless


def test_the_driver_of_plain_functions_refuses_what_must_be_awaited() -> None:
    def steps() -> Steps[Any]:
        return (yield Invoke(Lookup()))

    with pytest.raises(ConfigurationError, match="is not awaited"):
        drive(steps())


def test_the_mistake_of_an_inner_function_stays_its_own() -> None:
    error = UnawaitedResult(iter(()), len)

    def outer() -> None:
        raise error

    with pytest.raises(UnawaitedResult) as raised:
        Bulkhead(1).call(outer)
    assert raised.value is error


@pytest.mark.parametrize("isasync", [False, True])
@pytest.mark.parametrize("fn", [divmod, partial(divmod, 7)], ids=["function", "partial"])
def test_a_checked_function_keeps_its_name_for_messages(fn: Any, isasync: bool) -> None:
    checked = settling(fn, isasync)
    assert {checked.__name__, checked.__qualname__} == {getattr(fn, "__name__", "partial")}
