"""First attempts take a shorter way, and later ones wait for the probe of a half-open circuit."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from prefect_resilience import Bulkhead, CircuitBreaker, Retry, resilient
from prefect_resilience.calls.edge.call_options import make_guard
from prefect_resilience.calls.edge.local import LocalRun, call_guarded, current_call
from prefect_resilience.calls.first import FirstAttempt
from prefect_resilience.errors.exceptions import CircuitOpenError
from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.testing import inject
from prefect_resilience.testing.stores import wait_until

NUMBERS = itertools.count()
TWICE = Retry(2, backoff=Backoff.none())


class Interrupted(BaseException):
    pass


@pytest.fixture
def breaker() -> CircuitBreaker:
    return CircuitBreaker(f"first-{next(NUMBERS)}", failure_threshold=3, open_for=60, store="memory://first")


def outcomes(breaker: CircuitBreaker) -> tuple[int, int]:
    seen = breaker.snapshot()
    return seen.window_calls, seen.window_failures


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Calls a plain function, decorated with these options, or a coroutine that does the same."""

    def made(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        if request.param == "sync":
            return resilient(**options)(fn)

        async def coroutine(*args: Any) -> Any:
            await asyncio.sleep(0)
            return fn(*args)

        guarded = resilient(**options)(coroutine)
        return lambda *args: asyncio.run(guarded(*args))

    return made


def test_each_outcome_is_counted(call: Callable[..., Any], breaker: CircuitBreaker) -> None:
    errors: list[BaseException | None] = []

    def work() -> int:
        if errors and (error := errors.pop(0)) is not None:
            raise error
        return 1

    guarded = call(work, retry=TWICE, circuit=breaker)
    assert [guarded() for _ in range(5)] == [1] * 5
    assert outcomes(breaker) == (5, 0)
    errors[:] = [ConnectionError(), None]
    assert guarded() == 1
    assert outcomes(breaker) == (7, 1)
    errors[:] = [Interrupted()]
    with pytest.raises(Interrupted):
        guarded()
    assert outcomes(breaker) == (7, 1), "an interrupted call has no outcome"
    errors[:] = [ConnectionError(), ConnectionError()]
    with pytest.raises(ConnectionError) as raised:
        guarded()
    assert "gave up after 2 attempts" in raised.value.__notes__[0]
    assert outcomes(breaker) == (9, 3)
    assert current_call.get() is None


def test_faults_are_injected(call: Callable[..., Any], breaker: CircuitBreaker) -> None:
    def work() -> int:
        return 1

    for options in ({"circuit": breaker}, {}):
        guarded = call(work, retry=None, name=f"faulty-{next(NUMBERS)}", **options)
        assert guarded() == 1
        with inject(fault=ConnectionError), pytest.raises(ConnectionError):
            guarded()


def test_a_success_after_a_change_does_not_count(breaker: CircuitBreaker) -> None:
    steps: list[str] = []

    def change() -> int:
        breaker.force_closed("again")
        return 1

    def with_generators(run: LocalRun, failed: object) -> Any:
        steps.append("asked")
        return call_guarded(run)

    guard = make_guard(change, False, TWICE, {"circuit": breaker})
    for _ in range(2):
        run = LocalRun("first", guard, (), {})
        assert FirstAttempt(guard).call(run, (), {}, with_generators) == 1
        breaker.call(int)
    assert steps == ["asked"], "the first time, the circuit had not been seen yet"
    breaker.reset()
    breaker.call(int)
    assert outcomes(breaker) == (1, 0)
    assert FirstAttempt(guard).call(run, (), {}, with_generators) == 1
    assert outcomes(breaker) == (0, 0)


PATIENCE = 30.0
CALLERS = 6
_numbers = itertools.count()


class Outage:
    """A circuit that is half-open, with a probe on its way until `end`."""

    def __init__(self, **policy: Any) -> None:
        policy = {
            "failure_threshold": 1,
            "open_for": 0.05,
            "success_threshold": 1,
            "sync_interval": 0.1,
            **policy,
        }
        url = f"memory://probes-{next(_numbers)}"
        self.breaker = CircuitBreaker("service", store=url, **policy)
        self.breaker.record_failure(ConnectionError("down"))
        self.calls = 0
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._error: BaseException | None = None

    def probe(self) -> None:
        wait_until(lambda: self.breaker.state == "half_open", PATIENCE)
        self.thread = threading.Thread(target=self._probe, daemon=True)
        self.thread.start()
        wait_until(lambda: self.breaker.snapshot().probes_in_flight == 1, PATIENCE)

    def _probe(self) -> None:
        def fn() -> None:
            assert self._ends.wait(2 * PATIENCE)
            if self._error is not None:
                raise self._error

        with suppress(BaseException):
            while True:
                with suppress(CircuitOpenError):
                    return self.breaker.call(fn)
                time.sleep(0.01)

    def end(self, error: BaseException | None = None) -> None:
        self._error = error
        self._ends.set()
        self.thread.join(PATIENCE)

    @property
    def waiting(self) -> int:
        return len(vars(self.breaker)["_circuit"].shown._waiting)

    def called(self) -> int:
        with self._lock:
            self.calls += 1
            return self.calls


class Callers:
    """Six calls at once, in threads or as tasks of one loop; what each came to."""

    def __init__(self, outage: Outage, isasync: bool, **options: Any) -> None:
        options = {"retry": Retry(attempts=2), "circuit": outage.breaker, **options}
        self.outcomes: list[Any] = []

        @resilient(**options)
        def plain() -> str:
            outage.called()
            return "made"

        @resilient(**options)
        async def later() -> str:
            outage.called()
            return "made"

        def one() -> None:
            try:
                self.outcomes.append(plain())
            except CircuitOpenError:
                self.outcomes.append("rejected")

        def together() -> None:
            async def main() -> list[Any]:
                return await asyncio.gather(*(later() for _ in range(CALLERS)), return_exceptions=True)

            for outcome in asyncio.run(main()):
                self.outcomes.append("rejected" if isinstance(outcome, CircuitOpenError) else outcome)

        targets = [together] if isasync else [one] * CALLERS
        self.threads = [threading.Thread(target=target, daemon=True) for target in targets]
        for thread in self.threads:
            thread.start()

    def end(self) -> list[Any]:
        for thread in self.threads:
            thread.join(PATIENCE)
        return self.outcomes


@pytest.fixture(params=[False, True], ids=["threads", "loop"])
def isasync(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture
def outages() -> Iterator[Callable[..., Outage]]:
    made: list[Outage] = []

    def make(**policy: Any) -> Outage:
        made.append(Outage(**policy))
        made[-1].probe()
        return made[-1]

    yield make
    for outage in made:
        outage.end()


@pytest.mark.parametrize(
    ("error", "expected", "calls"),
    [
        (None, "made", CALLERS),
        (ConnectionError("still down"), "rejected", 0),
        (KeyboardInterrupt(), "made", CALLERS),
    ],
    ids=["the service is back", "it is not", "no outcome"],
)
def test_it_goes_as_the_probe_went(
    outages: Any, isasync: bool, error: BaseException | None, expected: str, calls: int
) -> None:
    outage = outages(open_for=0.05, open_max=3600, open_backoff=1000)
    callers = Callers(outage, isasync)
    wait_until(lambda: outage.waiting == CALLERS, PATIENCE)
    assert outage.calls == 0
    if expected == "rejected":
        merger = vars(vars(outage.breaker)["_circuit"])["_merger"]
        merger._policy = merger._policy.model_copy(update={"open_for": 3600.0})
    outage.end(error)
    assert callers.end() == [expected] * CALLERS
    assert (outage.calls, outage.waiting) == (calls, 0)
    assert outage.breaker.snapshot().probes_in_flight == 0


def test_a_prober_that_died_gives_its_place_to_one_of_them(outages: Any, isasync: bool) -> None:
    outage = outages(probe_lease=0.3)
    assert Callers(outage, isasync).end() == ["made"] * CALLERS


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({"retry": Retry(attempts=1)}, {}),
        ({"retry": Retry(attempts=9, max_elapsed=0)}, {}),
        ({"retry": Retry(attempts=9, max_elapsed=0.2)}, {}),
    ],
    ids=["one attempt", "no time", "its time is up"],
)
def test_it_does_not_wait_for_longer_than_it_may(
    outages: Any, isasync: bool, options: dict[str, Any], policy: dict[str, Any]
) -> None:
    outage = outages(**policy)
    assert Callers(outage, isasync, **options).end() == ["rejected"] * CALLERS
    assert outage.calls == 0
    assert outage.breaker.snapshot().probes_in_flight == 1


def test_a_command_ends_the_waiting(outages: Any, isasync: bool) -> None:
    for command, expected in (("force_open", "rejected"), ("force_closed", "made"), ("disable", "made")):
        outage = outages()
        callers = Callers(outage, isasync)
        wait_until(lambda outage=outage: outage.waiting == CALLERS, PATIENCE)
        getattr(outage.breaker, command)("maintenance")
        assert callers.end() == [expected] * CALLERS


def test_nothing_is_held_meanwhile(outages: Any, isasync: bool) -> None:
    """No place of a limit, and no thread of the loop: the call of another function goes through."""
    outage = outages()
    place = Bulkhead(1, name=f"place-{next(_numbers)}", max_wait=0)
    callers = Callers(outage, isasync, limits=[place])
    wait_until(lambda: outage.waiting == CALLERS, PATIENCE)
    assert place.call(int) == 0
    outage.breaker.force_open("maintenance")
    assert callers.end() == ["rejected"] * CALLERS


def test_a_cancelled_caller_leaves_nothing_behind(outages: Any) -> None:
    outage = outages()

    @resilient(circuit=outage.breaker)
    async def later() -> None:
        outage.called()

    async def main() -> None:
        tasks = [asyncio.create_task(later()) for _ in range(CALLERS)]
        await asyncio.to_thread(wait_until, lambda: outage.waiting == CALLERS, PATIENCE)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)

    asyncio.run(main())
    assert (outage.waiting, outage.calls) == (0, 0)
    outage.end()
    wait_until(lambda: outage.breaker.state == "closed", PATIENCE)
    assert outage.breaker.snapshot().probes_in_flight == 0


def test_the_timeout_does_not_count_the_waiting(outages: Any, isasync: bool) -> None:
    outage = outages()
    callers = Callers(outage, isasync, timeout=0.2)
    wait_until(lambda: outage.waiting == CALLERS, PATIENCE)
    time.sleep(0.4)  # longer than the timeout
    outage.end()
    assert set(callers.end()) == {"made"}
