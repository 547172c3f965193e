"""What a function returns that is no result: awaitables, generators and failed states, for every way to guard
a call without a task run."""

import asyncio
import contextlib
import functools
import gc
import warnings
from concurrent.futures import Future
from multiprocessing.pool import ThreadPool
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import State, StateDetails
from prefect.futures import PrefectConcurrentFuture, PrefectFutureList
from prefect.states import Cancelled, Completed, Crashed, Failed, Paused, Pending

from prefect_resilience import (
    Backoff,
    Bulkhead,
    CircuitBreaker,
    ConfigurationError,
    Effect,
    Expect,
    Fallback,
    Hedge,
    InDoubt,
    NotSent,
    Retry,
    batch,
    batch_status,
    resilient,
)

FAST = Retry(attempts=3, backoff=Backoff.none())
ONCE = Effect(kind="external", key="pay:{x}", one_request=True)
LONG = 60


@pytest.fixture(autouse=True)
def store(monkeypatch):
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"memory://{uuid4().hex}")


class Client:
    """An async client whose calls fail twice, before anything is sent, and then succeed."""

    def __init__(self, failures: int = 2) -> None:
        self.failures = failures
        self.calls = 0

    async def post(self, x: int) -> str:
        self.calls += 1
        await asyncio.sleep(0)
        if self.calls <= self.failures:
            raise ConnectionRefusedError("no")
        return f"sent {x}"


class Awaitable:
    def __init__(self, made) -> None:
        self.made = made

    def __await__(self):
        return self.made().__await__()


def plain(client):
    def pay(x):
        return client.post(x)

    return pay


def an_object(client):
    class Payer:
        def __call__(self, x):
            return client.post(x)

    return Payer()


def an_async_object(client):
    class Payer:
        async def __call__(self, x):
            return await client.post(x)

    return Payer()


def wrapped(client):
    async def pay(x):
        return await client.post(x)

    @functools.wraps(pay)
    def timed(x):
        return pay(x)

    return timed


def nested(client):
    async def pay(x):
        return client.post(x)

    return pay


def nested_in_a_plain_one(client):
    async def pay(x):
        return Awaitable(lambda: client.post(x))

    return lambda x: pay(x)


AWAITABLES = {
    "a plain function": plain,
    "an object": an_object,
    "an async object": an_async_object,
    "a single dispatch": lambda client: functools.singledispatch(lambda x: client.post(x)),
    "a plain wrapper": wrapped,
    "an awaitable object": lambda client: lambda x: Awaitable(lambda: client.post(x)),
    "a task": lambda client: lambda x: asyncio.get_running_loop().create_task(client.post(x)),
    "a missing await": nested,
    "two in one": nested_in_a_plain_one,
}
KNOWN = {"an async object", "a missing await"}
"""Those with a definition that shows that they are async."""
NEEDS_A_LOOP = {"a task"}
GUARDS = {
    "retries": {},
    "circuit": {"circuit": CircuitBreaker("pay", failure_threshold=5)},
    "timeout": {"timeout": LONG},
    "bulkhead": {"limits": Bulkhead(2)},
    "hedge": {"hedge": Hedge(after=LONG)},
    "effect": {"effect": ONCE},
    "fallback": {"fallback": lambda x: "instead"},
}
IN_PLACE = [guard for guard in GUARDS if guard not in ("timeout", "hedge")]
"""The guards that call a plain function in the thread of the caller."""


@pytest.fixture
def quiet():
    """Nothing may be left that nobody awaits."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect(0)
    assert [str(one.message) for one in caught if "never awaited" in str(one.message)] == []


@pytest.mark.parametrize(
    ("kind", "guard"),
    [
        (kind, guard)
        for kind in AWAITABLES
        for guard in GUARDS
        if kind not in NEEDS_A_LOOP or guard in IN_PLACE
    ],
)
async def test_on_an_event_loop_it_is_awaited_under_the_guards(quiet, kind, guard):
    client = Client()
    pay = resilient(retry=FAST, **GUARDS[guard])(AWAITABLES[kind](client))
    for _ in range(2):
        with batch("b"):
            assert await pay(7) == "sent 7"
    assert client.calls == (3 if guard == "effect" else 4)
    if guard == "effect":
        (effect,) = batch_status("b").effects
        assert (effect.state, effect.result) == ("done", "sent 7")


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("kind", [kind for kind in AWAITABLES if kind not in KNOWN | NEEDS_A_LOOP])
def test_without_a_loop_it_is_refused_and_recorded_nowhere(quiet, kind, guard):
    client = Client()
    pay = resilient(retry=Retry(retry_on=[Exception]), **GUARDS[guard])(AWAITABLES[kind](client))
    for _ in range(2):
        with batch("b"), pytest.raises(ConfigurationError, match=r"returned .*: declare it `async def`"):
            pay(7)
    assert client.calls == 0
    assert [effect.state for effect in batch_status("b").effects if effect.state == "done"] == []
    if guard == "circuit":
        assert GUARDS["circuit"]["circuit"].snapshot().window_calls == 0


async def test_a_timeout_covers_what_is_awaited():
    @resilient(retry=1, timeout=0.05, fallback=Fallback.value("instead"))
    def pay(x):
        return asyncio.sleep(LONG, x)

    assert await pay(7) == "instead"


GENERATORS = {
    "a generator": (lambda x: (item for item in [x]), "yield from"),
    "an async generator": (lambda x: _agen(x), "async for"),
    "a future": (lambda x: Future(), r"`\.result\(\)`"),
    "a map": (lambda x: map(str, [x]), "return a list"),
    "a context manager": (lambda x: contextlib.contextmanager(_gen)(x), "in a `with`"),
    "a result of a pool": (lambda x: POOL.apply_async(str, (x,)), "return its result"),
    "results of a pool": (lambda x: POOL.imap(str, [x]), "return its result"),
    "a future of Prefect": (lambda x: PrefectConcurrentFuture(uuid4(), Future()), "return its result"),
    "futures of Prefect": (lambda x: PrefectFutureList([]), "return its result"),  # pyright: ignore[reportAbstractUsage]
}
POOL = ThreadPool(1)
MAY_HAVE_BEGUN = {
    kind for kind in GENERATORS if kind.startswith(("a future", "futures", "a result", "results"))
}


def _gen(x):
    yield x


async def _agen(x):
    yield x


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("kind", GENERATORS)
@pytest.mark.parametrize("isasync", [False, True])
def test_a_generator_that_a_plain_function_returns_is_refused(kind, guard, isasync):
    make, mend = GENERATORS[kind]

    async def pay(x):
        return make(x)

    guarded = resilient(retry=FAST, **GUARDS[guard])(pay if isasync else make)
    with batch("b"), pytest.raises(ConfigurationError, match=mend):
        asyncio.run(guarded(7)) if isasync else guarded(7)
    states = [effect.state for effect in batch_status("b").effects]
    if guard == "effect":
        assert states == ["unknown" if kind in MAY_HAVE_BEGUN else "failed"]


# -- circuits and limits by themselves

DIRECT = {
    "circuit": lambda: CircuitBreaker(uuid4().hex, failure_threshold=2),
    "bulkhead": lambda: Bulkhead(2),
}


@pytest.mark.parametrize("kind", sorted(AWAITABLES))
@pytest.mark.parametrize("guarding", DIRECT)
async def test_call_and_its_decorator_await_it_too(quiet, guarding, kind):
    made = DIRECT[guarding]()
    for ways in range(3):
        client = Client(failures=0)
        fn = AWAITABLES[kind](client)
        if ways == 0 and kind in KNOWN:
            with pytest.raises(ConfigurationError, match="acall"):
                made.call(fn, 7)
            continue
        called = (lambda fn=fn: made.call(fn, 7), lambda fn=fn: made.acall(fn, 7), lambda fn=fn: made(fn)(7))
        assert await called[ways]() == "sent 7"
        assert client.calls == 1
    if guarding == "circuit":
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                await made(AWAITABLES[kind](Client()))(7)
        assert made.state == "open"


@pytest.mark.parametrize("kind", [kind for kind in AWAITABLES if kind not in KNOWN | NEEDS_A_LOOP])
@pytest.mark.parametrize("guarding", DIRECT)
def test_call_without_a_loop_refuses_it(quiet, guarding, kind):
    made, client = DIRECT[guarding](), Client()
    for call in (lambda fn: made.call(fn, 7), lambda fn: made(fn)(7)):
        with pytest.raises(ConfigurationError, match=r"write `await .*acall"):
            call(AWAITABLES[kind](client))
    assert client.calls == 0
    if guarding == "circuit":
        assert made.snapshot().window_calls == 0


# -- states


def of_a_run(state):
    """As the state of a run inside the function, which has the ids of that run."""
    return state.model_copy(update={"state_details": StateDetails(flow_run_id=uuid4())})


TRANSIENT = {
    "failed": lambda: Failed(data=ConnectionRefusedError("no")),
    "failed, by its message": lambda: Failed(message="503 Service Unavailable"),
    "crashed": lambda: Crashed(message="the process died"),
    "of another run": lambda: of_a_run(Failed(data=ConnectionRefusedError("no"))),
    "a state in a state": lambda: Failed(data=Failed(data=ConnectionRefusedError("no"))),
    "a list": lambda: [Completed(data=1), Failed(data=ConnectionRefusedError("no"))],
    "a tuple": lambda: (of_a_run(Crashed(message="the process died")),),
}
PERMANENT = {
    "failed, by its error": (lambda: Failed(data=ValueError("bad")), "unexpected"),
    "failed, without a word": (lambda: Failed(), "unexpected"),
    "cancelled": (lambda: Cancelled(message="by hand"), "cancelled"),
    "paused": (lambda: Paused(), "unexpected"),
    "pending": (lambda: [Pending(), Completed()], "unexpected"),
    "the worst of a list": (
        lambda: [Failed(data=ConnectionRefusedError("no")), Failed(data=PermissionError("no"))],
        "auth",
    ),
}


def returning(make, isasync, calls, then="sent"):
    """A function that returns a failed state twice, and then a value."""

    def pay(x):
        calls.append(x)
        return then if len(calls) > 2 else make()

    async def apay(x):
        return pay(x)

    return apay if isasync else pay


def value_of(outcome):
    return asyncio.run(outcome) if asyncio.iscoroutine(outcome) else outcome


@pytest.mark.parametrize("isasync", [False, True])
@pytest.mark.parametrize("guard", [guard for guard in GUARDS if guard != "effect"])
@pytest.mark.parametrize("kind", TRANSIENT)
def test_a_transient_state_is_retried(kind, guard, isasync):
    calls = []
    pay = resilient(retry=FAST, **GUARDS[guard])(returning(TRANSIENT[kind], isasync, calls))
    assert value_of(pay(7)) == "sent"
    assert len(calls) == 3


@pytest.mark.parametrize("isasync", [False, True])
@pytest.mark.parametrize("kind", PERMANENT)
def test_a_permanent_state_is_not_retried_and_a_fallback_answers(kind, isasync):
    make, category = PERMANENT[kind]
    calls, heard = [], []
    pay = resilient(retry=FAST, fallback=lambda error: heard.append(error) or "instead")(
        returning(make, isasync, calls)
    )
    assert value_of(pay(7)) == "instead"
    assert len(calls) == 1
    assert heard[0].category.value == category


@pytest.mark.parametrize("isasync", [False, True])
@pytest.mark.parametrize("kind", PERMANENT)
def test_in_the_end_the_caller_gets_the_state_that_was_returned(kind, isasync):
    made = PERMANENT[kind][0]()
    pay = resilient(retry=FAST)(returning(lambda: made, isasync, []))
    given = value_of(pay(7))
    assert given is made
    assert CircuitBreaker(uuid4().hex).call(lambda: made) is made


@pytest.mark.parametrize("way", ["call", "acall", "decorator", "async decorator", "resilient"])
@pytest.mark.parametrize("kind", [kind for kind in TRANSIENT if not kind.startswith(("crashed", "a tuple"))])
def test_a_circuit_counts_a_failed_state(kind, way):
    made = CircuitBreaker(uuid4().hex, failure_threshold=2)

    def pay():
        return TRANSIENT[kind]()

    async def apay():
        return TRANSIENT[kind]()

    for _ in range(2):
        assert made.state == "closed"
        value_of(
            {
                "call": lambda: made.call(pay),
                "acall": lambda: made.acall(apay),
                "decorator": lambda: made(pay)(),
                "async decorator": lambda: made(apay)(),
                "resilient": lambda: resilient(retry=1, circuit=made)(pay)(),
            }[way]()
        )
    assert made.state == "open"


def test_without_an_effect_a_returned_error_is_a_value():
    assert isinstance(resilient(retry=FAST)(lambda: OSError("bad"))(), OSError)


@pytest.mark.parametrize("isasync", [False, True])
@pytest.mark.parametrize("make", [TRANSIENT["failed"], lambda: ConnectionRefusedError("no")])
def test_an_effect_that_returns_a_failed_state_or_an_error_is_not_done(make, isasync):
    calls = []
    pay = resilient(retry=FAST, effect=ONCE)(returning(make, isasync, calls))
    with batch("b"):
        assert value_of(pay(7)) == "sent"
    assert len(calls) == 3
    assert [effect.state for effect in batch_status("b").effects] == ["done"]


@pytest.mark.parametrize("isasync", [False, True])
@pytest.mark.parametrize(
    "make",
    [lambda: Failed(data=OSError("reset")), lambda: Crashed(), lambda: Cancelled(), lambda: OSError("reset")],
)
def test_an_effect_that_nothing_proves_is_in_doubt(make, isasync):
    calls = []
    pay = resilient(retry=FAST, effect=Effect(kind="external", key="pay:{x}"))(
        returning(make, isasync, calls)
    )
    for _ in range(2):
        with batch("b"), pytest.raises(InDoubt):
            value_of(pay(7))
    assert len(calls) == 1
    assert [effect.state for effect in batch_status("b").effects] == ["unknown"]


def test_not_sent_in_a_state_proves_as_if_it_were_raised():
    calls = []
    pay = resilient(retry=Retry(attempts=3, backoff=Backoff.none(), retry_on=[NotSent]), effect=ONCE)(
        returning(lambda: Failed(data=NotSent("no")), False, calls)
    )
    with batch("b"):
        assert pay(7) == "sent"


@pytest.mark.parametrize("isasync", [False, True])
def test_of_a_completed_state_the_data_is_the_result_of_the_effect(isasync):
    calls = []
    pay = resilient(effect=ONCE, expect=Expect(str))(
        returning(lambda: Completed(name="Paid", data="receipt"), isasync, calls)
    )
    with batch("b"):
        given = value_of(pay(7))
    assert isinstance(given, State)
    assert given.name == "Paid"
    with batch("b"):
        assert value_of(pay(7)) == "receipt"
    assert len(calls) == 1
    (effect,) = batch_status("b").effects
    assert (effect.state, effect.result) == ("done", "receipt")


def test_a_fallback_that_returns_a_failed_state_has_failed():
    @resilient(retry=1, fallback=[lambda: Failed(message="no"), lambda: Completed(data="second")])
    def pay():
        raise ConnectionError("down")

    assert pay() == "second"


def test_a_generator_that_returns_a_failed_state_has_failed():
    calls = []

    @resilient(retry=FAST)
    def chunks():
        calls.append(1)
        return Failed(data=ConnectionError("down")) if len(calls) < 3 else "end"
        yield

    def read():
        return (yield from chunks())

    with pytest.raises(StopIteration) as stop:
        next(read())
    assert stop.value.value == "end"
    assert len(calls) == 3
