"""Every way to run a Prefect flow works with a resilient one."""

from __future__ import annotations

import asyncio
import datetime

import pytest
from prefect import flow, task
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import ParameterTypeError
from pydantic import BaseModel

from prefect_resilience import TaskFailure, error_context, failed, redact, resilient_flow, resilient_task
from prefect_resilience.durable.batches.edge.tags import current_batch

pytestmark = pytest.mark.api


def ran(mode, made, *args, **kwargs):
    """Run a flow of this mode."""
    outcome = made(*args, **kwargs)
    return asyncio.run(outcome) if mode.isasync else outcome


@resilient_task(retry=None)
def double(n: int) -> int:
    return 2 * n


@task
def plain_triple(n: int) -> int:
    return 3 * n


def bought(order: Order, day: datetime.date, later: list[Order] | None = None):
    return order, day, later


async def abought(order: Order, day: datetime.date, later: list[Order] | None = None):
    return order, day, later


@pytest.mark.parametrize("function", [bought, abought])
def test_parameters_have_the_types_of_their_module(function):
    """The annotations of this module are texts, and the class stands below the functions."""
    made = resilient_flow(function)
    given = {"order": {"number": "1"}, "day": "2026-01-02", "later": [{"number": 2}]}
    expected = Order(number=1), datetime.date(2026, 1, 2), [Order(number=2)]
    assert ran(made, made, **given) == expected
    with pytest.raises(ParameterTypeError):
        ran(made, made, {"number": "one"}, "2026-01-02")


class Order(BaseModel):
    number: int


@pytest.mark.smoke
def test_called_validated_and_with_its_state(mode):
    def work(n: int, *others: int, name: str = "x", **more: int):
        return double(n) + sum(others), name, more

    made = resilient_flow(mode.function(work))
    assert ran(mode, made, "2", 1, 1, name="y", z=3) == (6, "y", {"z": 3})
    state = ran(mode, made, 2, return_state=True)
    assert isinstance(state, State)
    assert state.is_completed()
    with pytest.raises(ParameterTypeError):
        ran(mode, made, "two")


@pytest.mark.smoke
def test_retried_by_prefect(mode):
    seen: list[int] = []

    def work():
        seen.append(FlowRunContext.get().flow_run.run_count)
        if len(seen) < 3:
            raise ValueError("not yet")
        return "done"

    assert ran(mode, resilient_flow(retries=2)(mode.function(work))) == "done"
    assert seen == [1, 2, 3]


class Shop:
    name = "shop"

    @resilient_flow
    def sell(self, n: int) -> str:
        return f"{self.name} {double(n)}"

    @resilient_flow
    @classmethod
    def count(cls, n: int) -> str:
        return f"{cls.__name__} {n}"

    @resilient_flow
    @staticmethod
    def price(n: int) -> int:
        return n

    @resilient_flow(batch="shop-{n}")
    async def asell(self, n: int) -> str:
        return f"{self.name} {n} {current_batch()}"


def test_on_methods():
    assert Shop().sell(2) == "shop 4"
    assert Shop.count(3) == "Shop 3"
    assert Shop.price(4) == 4
    assert asyncio.run(Shop().asell(5)) == "shop 5 shop-5"
    assert Shop().sell.with_options(name="other")(1) == "shop 2"
    assert Shop.count.with_options(name="other")(1) == "Shop 1"


def test_generators():
    @resilient_flow(batch="g-{n}")
    def chunks(n: int):
        for part in range(n):
            yield part, current_batch()

    @resilient_flow
    async def achunks(n: int):
        for part in range(n):
            yield part

    async def all_of_them():
        return [part async for part in achunks(3)]

    assert list(chunks(2)) == [(0, "g-2"), (1, "g-2")]
    assert asyncio.run(all_of_them()) == [0, 1, 2]


def test_inside_other_flows(mode):
    def inner(n: int):
        return double(n), current_batch()

    made = resilient_flow(mode.function(inner))

    if mode.isasync:

        @flow
        async def outer():
            return await asyncio.gather(made(1), made(2)), FlowRunContext.get().flow_run.id

    else:

        @flow
        def outer():
            return [made(1), made(2)], FlowRunContext.get().flow_run.id

    values, root = ran(mode, outer)
    assert sorted(values) == [(2, str(root)), (4, str(root))]


def test_the_batch_is_named_after_the_parameters(mode):
    def work(month: str, config: dict | None = None):
        return current_batch(), inside.submit().result()

    @task
    def inside():
        return current_batch()

    made = resilient_flow(batch="invoices-{month}")(mode.function(work))
    assert ran(mode, made, "2026-11") == ("invoices-2026-11", "invoices-2026-11")


def test_a_batch_that_cannot_be_named_stops_the_run_before_anything_is_sent():
    sent = []

    @resilient_flow(batch="b-{config.missing}")
    def work(config: dict):
        sent.append(config)

    with pytest.raises(Exception, match="cannot be filled in"):
        work({})
    assert sent == []


def test_as_a_plain_function_it_is_one(mode):
    """In a flow of somebody else's it names no batch: that is the run's own."""
    batches = []

    def work(n: int):
        if FlowRunContext.get() is not None:
            batches.append(current_batch())
        return n + 1

    made = resilient_flow(batch="b-{n}")(mode.function(work))
    assert ran(mode, made.fn, 1) == 2
    assert batches == []
    if mode.isasync:

        @flow
        async def other():
            return await made.fn(1), str(FlowRunContext.get().flow_run.id)

    else:

        @flow
        def other():
            return made.fn(1), str(FlowRunContext.get().flow_run.id)

    value, run_id = ran(mode, other)
    assert (value, batches) == (2, [run_id])


@pytest.mark.requirement("001.09")
def test_what_was_completed_is_in_the_context_of_the_failure(mode):
    def work():
        double.with_options(task_run_name="twice")(4)
        plain_triple.with_options(task_run_name="thrice").submit(5).result()
        raise ConnectionError("too late")

    made = resilient_flow(name="night")(mode.function(work))
    state = ran(mode, made, return_state=True)
    context = error_context(state)
    assert context.details["partial_results"] == {"twice": 8, "thrice": 15}
    assert (context.node_id, context.code) == ("night", "NETWORK_ERROR")


@pytest.mark.requirement("001.06", "001.21")
def test_a_task_that_failed_is_a_failed_step_of_its_flow(mode):
    @resilient_task(retry=None, name="step")
    def step(drug: str) -> str:
        raise TaskFailure("execution_halted", f"no {drug}", partial_output="half")

    def work():
        double.with_options(task_run_name="twice")(4)
        step("aspirin")

    context = error_context(ran(mode, resilient_flow(name="night")(mode.function(work)), return_state=True))
    assert (context.node_id, context.category, context.reason) == ("night", "subtask", "subtask_failure")
    assert (context.cause.node_id, context.cause.reason) == ("step", "execution_halted")
    assert context.details["failed_step"] == "step"
    assert context.details["subtask_request"]["inputs"] == {"drug": "aspirin"}
    assert context.details["partial_results"] == {"twice": 8}
    assert (context.partial_output.content, context.nesting_depth) == ("half", 0)
    assert failed(category="cancelled").evaluate(None, error=context)


def test_secrets_in_a_flows_error_stay_here(mode):
    def work(key: str):
        raise ValueError(f"Authorization: Bearer {key}")

    key = "sk-ant-REDACTED"
    state = ran(mode, resilient_flow(mode.function(work)), key, return_state=True)
    assert key not in state.message
    assert redact(state.message) == state.message


def test_switched_off_while_running(monkeypatch, mode, left):
    def work():
        return FlowRunContext.get().flow_run.id, current_batch()

    made = resilient_flow(batch="b")(mode.function(work))
    monkeypatch.setenv("RESILIENCE_ENABLED", "false")
    run_id, batch = ran(mode, made)
    assert batch == str(run_id)
    assert left.by(run_id) == {}
