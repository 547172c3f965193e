"""Every spelling of a guarded call: it holds the guard while it runs, and tells it how it ended."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, ClassVar, Self

import pytest

from prefect_resilience.base.drive import Steps
from prefect_resilience.base.wrapping import Guarding


class Closed(Exception):
    pass


class Gate(Guarding):
    """Counts the calls in it, and how they ended. When it is closed, it refuses."""

    _kind: ClassVar[str] = "gate"

    def __init__(self) -> None:
        self.is_open, self.inside, self.ends = True, 0, list[Any]()

    @property
    def fields(self) -> tuple[str, ...]:
        return ()

    def bind(self, parameters: Mapping[str, Any], /) -> Self:
        return self

    def acquire(self) -> Steps[str]:
        if not self.is_open:
            raise Closed
        self.inside += 1
        return "ticket"
        yield

    def finish(self, ticket: Any, error: BaseException | None = None, **_: Any) -> Steps[None]:
        assert ticket == "ticket"
        self.inside -= 1
        self.ends.append(None if error is None else type(error))
        yield from ()


Work = Callable[[], Any]


def block(gate: Gate, work: Work) -> Any:
    with gate as held:
        assert held is gate
        return work()


async def async_block(gate: Gate, work: Work) -> Any:
    async with gate as held:
        assert held is gate
        return work()


def function(gate: Gate, work: Work) -> Any:
    @gate
    def guarded(a: int, /, *, b: int) -> Any:
        """Words."""
        assert (a, b) == (1, 2)
        return work()

    assert (guarded.__name__, guarded.__doc__) == ("guarded", "Words.")
    return guarded(1, b=2)


def method(gate: Gate, work: Work) -> Any:
    class Client:
        @gate
        def guarded(self) -> Any:
            return work()

    return Client().guarded()


async def coroutine_function(gate: Gate, work: Work) -> Any:
    @gate
    async def guarded() -> Any:
        return work()

    return await guarded()


def generator(gate: Gate, work: Work) -> Any:
    @gate
    def guarded() -> Any:
        return (yield work())

    chunks = guarded()
    first = next(chunks)
    with pytest.raises(StopIteration, match="end"):
        chunks.send("end")
    return first


async def async_generator(gate: Gate, work: Work) -> Any:
    @gate
    async def guarded() -> AsyncIterator[Any]:
        yield work()

    (first,) = [chunk async for chunk in guarded()]
    return first


async def of_an_awaitable(gate: Gate, work: Work) -> Any:
    async def later() -> Any:
        await asyncio.sleep(0)
        return work()

    return await gate.acall(later)


SPELLINGS: dict[str, Callable[[Gate, Work], Any]] = {
    "call": lambda gate, work: gate.call(work),
    "acall": lambda gate, work: gate.acall(work),
    "acall of a coroutine function": of_an_awaitable,
    "block": block,
    "async block": async_block,
    "function": function,
    "method": method,
    "coroutine function": coroutine_function,
    "generator": generator,
    "async generator": async_generator,
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_a_call_holds_the_guard_and_tells_it_how_it_ended(spelling: Callable[[Gate, Work], Any]) -> None:
    gate, mine, made = Gate(), KeyError("mine"), list[int]()

    def use(work: Work) -> Any:
        async def awaited(outcome: Any) -> Any:
            return await outcome

        outcome = spelling(gate, work)
        return asyncio.run(awaited(outcome)) if asyncio.iscoroutine(outcome) else outcome

    def fail() -> Any:
        raise mine

    assert use(lambda: gate.inside) == 1
    with pytest.raises(KeyError) as caught:
        use(fail)
    assert caught.value is mine
    gate.is_open = False
    with pytest.raises(Closed):
        use(lambda: made.append(1))
    assert (gate.inside, gate.ends, made) == (0, [None, KeyError], [])


async def test_a_generator_that_is_left_is_told_so() -> None:
    gate = Gate()

    @gate
    def chunks() -> Any:
        yield 1

    @gate
    async def later_chunks() -> Any:
        yield 1

    left, later_left = chunks(), later_chunks()
    next(left)
    left.close()
    await anext(later_left)
    await later_left.aclose()
    assert gate.ends == [GeneratorExit, GeneratorExit]
