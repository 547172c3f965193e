"""What let a call in is left again, also when one of them fails at it."""

import asyncio
from collections.abc import Mapping
from typing import Any, Self

import pytest

from prefect_resilience.base.drive import Blocking, Steps, drive
from prefect_resilience.base.wrapping import Guarding
from prefect_resilience.calls.attempt import leave
from prefect_resilience.calls.model import Guard


class Recorder(Guarding):
    """A guard that keeps the errors it was left with, and then may fail."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.failure = failure
        self.seen: list[BaseException | None] = []

    @property
    def fields(self) -> tuple[str, ...]:
        return ()

    def bind(self, parameters: Mapping[str, Any], /) -> Self:
        return self

    def acquire(self) -> Steps[None]:
        yield from ()

    def finish(self, ticket: Any, error: BaseException | None = None, **_: Any) -> Steps[None]:
        self.seen.append(error)
        if self.failure is not None:
            raise self.failure
        if not isinstance(error, asyncio.CancelledError):
            yield Blocking(int)


def held(*guards: Recorder) -> list[tuple[Guarding, Any]]:
    return [(each, None) for each in guards]


GUARD = Guard(int, isasync=False)


@pytest.mark.parametrize("error", [None, ValueError("the call's")])
def test_the_others_are_left_when_one_fails(error):
    first, broken, last = Recorder(), Recorder(RuntimeError("no")), Recorder()
    with pytest.raises(RuntimeError, match="no"):
        drive(leave(GUARD, held(first, broken, last), error))
    assert first.seen == broken.seen == last.seen == [error]


def test_when_several_fail_none_of_the_failures_is_lost():
    one, two = Recorder(RuntimeError("one")), Recorder(RuntimeError("two"))
    with pytest.raises(RuntimeError, match="one") as caught:
        drive(leave(GUARD, held(one, two), None))
    assert str(caught.value.__context__) == "two"
    assert len(one.seen) == len(two.seen) == 1
