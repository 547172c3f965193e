"""`@resilient` around every kind of function, without Prefect's API."""

from __future__ import annotations

import asyncio
import inspect
import logging
import pickle
import subprocess
import sys
import threading

import pytest

from prefect_resilience import (
    AttemptTimeout,
    Bulkhead,
    BulkheadFullError,
    CircuitBreaker,
    CircuitOpenError,
    ConfigurationError,
    Decompose,
    Expect,
    Fallback,
    OutputFormatError,
    Retry,
    error_context,
    keep_partial,
    on,
    previous_error,
    previous_partial,
    resilient,
    resilient_task,
    split_list,
)
from tests.calls.plain.ways import BLOCKS, CALLS, FAST, STREAMS, Script, coroutine, every_way, function

CUT = ConnectionError("cut")


@every_way()
def test_a_transient_error_is_retried(way):
    script = Script(CUT, CUT, 7)
    assert way(script, retry=FAST)() == 7
    assert script.calls == 3


@every_way()
def test_the_functions_own_error_is_raised_when_the_attempts_are_used(way):
    script = Script(CUT)
    with pytest.raises(ConnectionError, match="cut") as raised:
        way(script, retry=FAST)()
    assert raised.value is CUT
    assert script.calls == 3
    context = error_context(raised.value)
    assert context is not None
    assert (context.attempt, context.exhausted, len(context.history)) == (3, True, 3)


@every_way()
def test_an_open_circuit_rejects_at_once(way):
    circuit = CircuitBreaker(f"opens-{way.__name__}", failure_threshold=2)
    script = Script(CUT)
    call = way(script, retry=Retry(attempts=2, backoff=FAST.backoff), circuit=circuit)
    with pytest.raises(ConnectionError):
        call()
    assert circuit.state == "open"
    with pytest.raises(CircuitOpenError):
        call()
    assert script.calls == 2


@every_way(*CALLS, *BLOCKS)
def test_a_place_of_a_bulkhead_is_given_back(way):
    bulkhead = Bulkhead(1, max_wait=0)
    call = way(Script(CUT, 1), retry=FAST, limits=bulkhead)
    assert call() == 1
    assert call() == 1


@every_way(*CALLS, *STREAMS)
def test_a_fallback_answers(way):
    call = way(Script(CUT), retry=FAST, fallback=Fallback.value("instead"))
    assert call() == "instead"


@every_way(*CALLS)
def test_a_name_with_a_field_is_filled_from_the_arguments(way):
    @resilient(circuit="host:{host}", retry=None)
    def call(host: str) -> str:
        raise CUT

    for _ in range(5):
        with pytest.raises(ConnectionError):
            call("a")
    with pytest.raises(CircuitOpenError):
        call("a")
    with pytest.raises(ConnectionError):
        call("b")


def test_the_last_good_result_is_remembered_for_the_same_arguments():
    script = Script(1, CUT)

    @resilient(retry=None, fallback=Fallback.last_known_good())
    def call(key: str) -> int:
        return script()

    assert call("a") == 1
    assert call(key="a") == 1
    with pytest.raises(ConnectionError):
        call("b")


@every_way(function, coroutine)
def test_an_output_is_checked(way):
    assert way(Script("x", 5), retry=FAST, expect=Expect(int, repair=True))() == 5
    with pytest.raises(OutputFormatError):
        way(Script("x"), retry=FAST, expect=int)()


def test_work_that_is_too_big_is_divided():
    @resilient(decompose=Decompose(split_list("items", size=2), merge=sum), retry=None)
    def total(items: list[int]) -> int:
        if len(items) > 2:
            raise MemoryError("too much")
        return sum(items)

    assert total([1, 2, 3, 4, 5]) == 15


def test_the_next_attempt_reads_what_the_last_one_kept():
    seen = []

    @resilient(retry=FAST)
    def read() -> list[int]:
        error = previous_error()
        seen.append((previous_partial(), error is not None and "in read" in error.stack_trace))
        keep_partial(len(seen), append=True)
        raise CUT

    with pytest.raises(ConnectionError):
        read()
    assert seen == [(None, False), ([1], True), ([1, 2], True)]


def test_a_stream_that_broke_after_a_chunk_is_not_restarted():
    begun = []

    @resilient(retry=FAST)
    def numbers():
        begun.append(1)
        yield 1
        raise CUT

    read = numbers()
    assert next(read) == 1
    with pytest.raises(ConnectionError):
        next(read)
    assert len(begun) == 1


# Waiting


def test_a_call_in_an_abandoned_attempt_is_not_retried():
    script, ended = Script(CUT), threading.Event()

    @resilient(retry=Retry(attempts=9, backoff={"kind": "constant", "initial": 30.0, "jitter": 0}))
    def inner() -> None:
        script()

    @resilient(timeout={"total": 0.05, "mode": "thread"}, retry=None)
    def outer() -> None:
        try:
            inner()
        finally:
            ended.set()

    with pytest.raises(AttemptTimeout):
        outer()
    assert ended.wait(5)
    assert script.calls == 1


# A guard inside a guard


@every_way(*CALLS, *BLOCKS)
def test_what_an_inner_guard_has_tried_to_the_end_is_not_tried_again(way):
    script = Script(CUT)
    inner = way(script, retry=FAST)

    @resilient(retry=FAST)
    def outer() -> None:
        inner()

    with pytest.raises(ConnectionError) as raised:
        outer()
    assert script.calls == 3
    assert "retry_exhausted=True" in " ".join(raised.value.__notes__)


def test_it_is_when_the_policy_says_so():
    script = Script(CUT)
    inner = function(script, retry=FAST)

    @resilient(retry=FAST.model_copy(update={"retry_exhausted": True}))
    def outer() -> None:
        inner()

    with pytest.raises(ConnectionError):
        outer()
    assert script.calls == 9


# The log and the metrics


def test_the_first_line_of_a_kind_is_logged_and_the_others_are_counted(caplog, monkeypatch):
    from prefect_resilience.calls.edge import reports

    kinds = reports.Seldom()
    monkeypatch.setattr(reports, "_seldom", kinds)
    caplog.set_level(logging.INFO)
    call = function(Script(*[CUT, 1] * 50), retry=FAST, name="page")
    for _ in range(50):
        call()
    told = [record.getMessage() for record in caplog.records if "page" in record.getMessage()]
    assert [line.partition(", after")[0] for line in told] == [
        "page: Retrying (2/3) in 0.0 s: NETWORK_ERROR network: cut",
        "page: Recovered at attempt 2",
    ]


@pytest.mark.parametrize(
    ("asked", "line"), [(0.2, "in 0.2 s (the service asks for 0.2 s): 429"), (0, "in 0.0 s: 429")]
)
def test_the_log_says_what_the_service_asked_for(asked, line, caplog, monkeypatch):
    from prefect_resilience.calls.edge import reports

    monkeypatch.setattr(reports, "_seldom", reports.Seldom())

    class Busy(Exception):
        status_code, retry_after = 429, asked

    reasons: list[str] = []
    stop = on("retry.scheduled", lambda event: reasons.append(event.payload["why"]))
    function(Script(Busy(), 1), retry=Retry(2, backoff="none"), name="page")()
    stop()
    assert any(line in record.getMessage() for record in caplog.records)
    assert ["the service asks for" in why for why in reasons] == [asked > 0]


@pytest.mark.parametrize(("retry", "level"), [(None, logging.WARNING), (FAST, logging.ERROR)])
def test_a_guard_with_one_attempt_leaves_the_error_to_an_outer_one(retry, level, caplog, monkeypatch):
    from prefect_resilience.calls.edge import reports

    monkeypatch.setattr(reports, "_seldom", reports.Seldom())
    with pytest.raises(ConnectionError):
        function(Script(*[CUT] * 3), retry=retry, name="page")()
    [last] = [record for record in caplog.records if "page: Giving up after" in record.getMessage()]
    assert last.levelno == level


# Decoration


def test_a_function_keeps_its_signature_and_its_kind():
    @resilient
    def plain(a: int, *, b: str = "x") -> int:
        """Text."""
        return a

    @resilient
    async def later(a: int) -> int:
        return a

    assert str(inspect.signature(plain)) == "(a: 'int', *, b: 'str' = 'x') -> 'int'"
    assert plain.__doc__ == "Text."
    assert inspect.iscoroutinefunction(later)
    assert plain(3) == 3
    assert asyncio.run(later(4)) == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retries": 3}, "@resilient has no option 'retries'; did you mean 'retry'?"),
        ({"dead_letter": True}, "dead_letter= needs a task run"),
        ({"policy": "llm"}, "policy= needs a task run"),
        ({"name": " "}, "is not a name"),
        ({"retry": "many"}, "is not a retry policy"),
        ({"circuit": "host:{nosuch}"}, "names 'nosuch', which is not a parameter"),
    ],
)
def test_a_wrong_option_is_an_error_at_decoration(options, said):
    with pytest.raises(ConfigurationError) as raised:

        @resilient(**options)
        def call(host: str) -> None: ...

    assert said in str(raised.value)


@pytest.mark.parametrize("wrong", [3, type("Client", (), {})])
def test_only_functions_are_guarded(wrong):
    with pytest.raises(ConfigurationError, match="guards a function"):
        resilient(retry=3)(wrong)


def test_a_resilient_task_is_guarded_already():
    @resilient_task
    def work() -> None: ...

    with pytest.raises(ConfigurationError, match="is already a resilient task"):
        resilient(work)


def test_a_block_takes_only_what_needs_no_function():
    with pytest.raises(ConfigurationError, match="fallback= needs a function"):
        for _ in resilient(fallback=Fallback.value(1)):
            pass


def test_an_attempt_must_be_entered():
    bulkhead = Bulkhead(1, max_wait=0)
    with pytest.raises(ConfigurationError, match="`with attempt:`"):
        for _ in resilient(limits=bulkhead):
            pass
    with bulkhead:
        pass


def test_leaving_the_loop_of_a_block_gives_its_place_back():
    bulkhead = Bulkhead(1, max_wait=0)
    for attempt in resilient(limits=bulkhead):
        with attempt:
            with pytest.raises(BulkheadFullError), bulkhead:
                pass
            break
    with bulkhead:
        pass


@every_way()
def test_switched_off_it_is_the_function_alone(way, monkeypatch):
    monkeypatch.setenv("PREFECT_RESILIENCE_ENABLED", "false")
    script = Script(CUT)
    with pytest.raises(ConnectionError):
        way(script, retry=FAST)()
    assert script.calls == 1


def test_a_decorated_function_is_pickled_by_value(tmp_path):
    """As a task runner does with the functions of a script."""
    code = """
import pickle, sys, cloudpickle
from prefect_resilience import resilient

@resilient(retry=2, circuit="pages")
def page(number):
    return number + 1

@resilient
async def later(number):
    return number + 1

@resilient
def pages(number):
    yield number

sys.stdout.buffer.write(cloudpickle.dumps((page, later, pages)))
"""
    made = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.PIPE)
    page, later, pages = pickle.loads(made.stdout)
    assert (page(1), asyncio.run(later(1)), [*pages(1)]) == (2, 2, [1])
