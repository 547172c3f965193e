"""Effects of real tasks in real runs: done once, replayed, asked about, or left for a person."""

from __future__ import annotations

import httpx
import pytest
from prefect import flow, task

from prefect_resilience import Backoff, CircuitBreaker, CircuitOpenError, Fallback, Retry, resilient_task
from prefect_resilience.durable.effects.ledger import open_ledger, place_of
from prefect_resilience.durable.effects.model import Intend, decide
from prefect_resilience.durable.effects.opening import change_batch, new_batch
from prefect_resilience.effects import Done, Effect, Unknown, batch, batch_status, idempotency_key
from prefect_resilience.errors.exceptions import InDoubt

pytestmark = pytest.mark.api

QUICK = Retry(attempts=3, backoff=Backoff.none())
INVOICE = Effect(key="invoice:{order}")


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


def states(batch_id: str) -> dict[str, str]:
    return {effect.key: effect.state for effect in batch_status(batch_id).effects}


def abandoned(batch_id: str, key: str, owner: str = "somebody who died") -> None:
    """An intention whose owner has no lease any more, in a batch that the ledger knows."""
    document, _ = decide(None, Intend(owner, "c0", False, about={"key": key, "batch": batch_id}), 0.0)
    open_ledger().store.swap(place_of(batch_id, key), 0, document)
    change_batch(open_ledger(), batch_id, lambda there: there or new_batch(batch_id))


@pytest.fixture
def sender(mode, post):
    """A task that sends an invoice; its options."""

    def make(effect=INVOICE, retry=QUICK, body=None, **options):
        def send(order, fail=False):
            made = post()
            if fail:
                raise ValueError("after it was sent")
            return made

        return mode.task(body or send, effect=effect, retry=retry, **options)

    return make


@pytest.mark.smoke
@pytest.mark.requirement("004.02")
def test_it_is_sent_once_and_replayed_from_then_on(mode, sender, receiver, seen):
    send = sender()
    with batch("b"):
        assert mode.value(send, 1) == "m-invoice:1"
        again = mode.state(send, 1)
        assert mode.value(send, 2) == "m-invoice:2"
    assert (again.name, again.type.value) == ("Replayed", "COMPLETED")
    assert "invoice:1" in again.message
    assert mode.value(send, 1) == "m-invoice:1", "another batch: its root flow run"
    assert receiver.taken == {"invoice:1": 2, "invoice:2": 1}
    assert seen.states(again.state_details.task_run_id)[-1].name == "Replayed"
    run = str(again.state_details.task_run_id)
    told = seen.events(
        "prefect-resilience.effect.replayed", lambda event: event["payload"].get("task_run_id") == run
    )
    assert told[0]["payload"]["batch_id"] == "b"


@pytest.mark.requirement("004.05")
@pytest.mark.parametrize(
    ("mode", "line"), [("sync", "cut"), ("async", "cut"), ("sync", 503)], indirect=["mode"]
)
def test_an_outcome_that_is_unknown_is_left_for_a_person(mode, sender, receiver, seen, line):
    receiver.says(line)
    send = sender(retry=Retry(attempts=3, backoff=Backoff.none(), retry_on=Exception))
    with batch("b"):
        with pytest.raises(InDoubt, match="there is no verify to ask") as caught:
            mode.value(send, 1)
        assert isinstance(caught.value.__cause__, httpx.HTTPError)
        assert "is unknown, and an external effect without verify is not repeated" in notes(caught.value)
        assert states("b") == {"invoice:1": "unknown"}
        with pytest.raises(InDoubt, match=r"'invoice:1' of batch 'b'.*no verify") as doubt:
            mode.value(send, 1)
    assert (doubt.value.key, doubt.value.batch_id) == ("invoice:1", "b")
    assert receiver.taken == {"invoice:1": 1}
    assert seen.events(
        "prefect-resilience.effect.in-doubt", lambda event: event["payload"]["key"] == "invoice:1"
    )


class Asked:
    """A verify that answers by a script."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.calls = []

    def __call__(self, key, order):
        self.calls.append((key, order))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.smoke
def test_verify_is_asked_before_the_next_attempt(mode, sender, receiver):
    receiver.says("cut")
    verify = Asked(Done("m-1", external_id="x-1"))
    with batch("b"):
        state = mode.state(sender(INVOICE.model_copy(update={"verify": verify})), 1)
    assert (state.name, verify.calls) == ("Replayed", [("invoice:1", 1)])
    effect = batch_status("b").effects[0]
    assert (effect.state, effect.result, effect.external_id) == ("done", "m-1", "x-1")
    assert receiver.taken == {"invoice:1": 1}


@pytest.mark.parametrize(
    ("mode", "answer", "raises", "says"),
    [
        ("async", Unknown(), InDoubt, "verify cannot tell"),
        ("sync", "yes", Exception, r"returned 'yes': write Done\(result\), NotDone\(\) or Unknown\(\)"),
        ("async", KeyError("in verify"), KeyError, "in verify"),
    ],
    indirect=["mode"],
)
def test_verify_that_is_no_help(mode, sender, receiver, answer, raises, says):
    receiver.says("cut")
    verify = Asked(answer)
    with batch("b"), pytest.raises(raises, match=says):
        mode.value(sender(INVOICE.model_copy(update={"verify": verify})), 1)
    assert receiver.taken == {"invoice:1": 1}
    with batch("b"):
        assert states("b") == {"invoice:1": "unknown"}


def test_an_intention_whose_owner_died(mode, sender, receiver):
    abandoned("b", "invoice:1")
    abandoned("b", "invoice:2")
    assert states("b") == {"invoice:1": "unknown", "invoice:2": "unknown"}
    with batch("b"):
        with pytest.raises(InDoubt, match="ended, or fell silent, before"):
            mode.value(sender(), 1)
        verify = Asked(Done("m-2"))
        assert mode.value(sender(INVOICE.model_copy(update={"verify": verify})), 2) == "m-2"
    assert not receiver.taken


@pytest.mark.requirement("004.04")
@pytest.mark.parametrize(
    ("mode", "kind"), [("sync", "conditional"), ("async", "idempotent")], indirect=["mode"]
)
def test_what_may_be_done_again(mode, sender, receiver, kind):
    receiver.says("cut", 500, 200)
    send = sender(Effect(kind=kind, key="page:{order}"))
    abandoned("b", "page:1")
    with batch("b"):
        assert mode.value(send, 1) == "m-page:1"
        assert mode.state(send, 1).name == "Replayed"
    assert receiver.taken == {"page:1": 3}


def test_fallbacks_do_not_send_the_same_a_second_time(mode, sender, receiver):
    sent = []

    def other_way(order):
        sent.append(order)
        return "by pigeon"

    receiver.says("cut", 429, 500)
    with batch("b"):
        with pytest.raises(InDoubt):
            mode.value(sender(fallback=other_way, retry=None), 1)
        with pytest.raises(InDoubt):
            mode.value(sender(fallback=Fallback(other_way, when=["network"]), retry=None), 1)
        assert sent == []
        assert mode.value(sender(fallback=other_way, retry=None), 2) == "by pigeon", "429: nothing was sent"
        named = Fallback(other_way, when=["InDoubt"])
        assert mode.value(sender(fallback=named, retry=None), 1) == "by pigeon"
        assert mode.value(sender(fallback=named, retry=None), 3) == "by pigeon"
    assert states("b") == {"invoice:1": "unknown", "invoice:2": "failed", "invoice:3": "unknown"}


def test_a_replay_asks_no_circuit_and_a_refusal_leaves_no_doubt(mode, sender, receiver):
    circuit = CircuitBreaker(f"mail-{mode.name}", failure_threshold=1, open_for=60)
    send = sender(circuit=circuit, retry=None)
    with batch("b"):
        mode.value(send, 1)
        circuit.force_open("maintenance")
        assert mode.state(send, 1).name == "Replayed"
        with pytest.raises(CircuitOpenError):
            mode.value(send, 2)
    assert states("b") == {"invoice:1": "done"}


def test_an_effect_that_calls_itself(receiver):
    @resilient_task(effect=INVOICE, retry=None)
    def send(order, depth=1):
        return send(order, 0) if depth else 1

    @flow
    def scenario():
        return send(1)

    with pytest.raises(InDoubt, match="calls itself"):
        scenario()


def test_an_effect_inside_a_task_that_has_no_flow(receiver, post, until):
    """The outermost task run is the batch: the same for every attempt of it."""
    batches = []

    @resilient_task(effect=INVOICE, retry=None)
    def send(order):
        return post()

    @task(retries=1)
    def outer():
        send(1)
        batches.append(None)
        if len(batches) == 1:
            raise RuntimeError("after it was sent")
        return "done"

    assert outer() == "done"
    assert receiver.taken == {"invoice:1": 1}

    @resilient_task(retry=None, effect="external")
    def alone():
        return idempotency_key()

    state = alone(return_state=True)
    (effect,) = batch_status(str(state.state_details.task_run_id)).effects
    assert effect.key == state.result()


def test_switched_off_it_is_a_plain_task(mode, sender, monkeypatch):
    monkeypatch.setenv("RESILIENCE_ENABLED", "false")

    def plain(order):
        return order

    send = mode.task(plain, effect=INVOICE)
    with batch("b"):
        assert mode.value(send, 1) == 1
        assert batch_status("b").effects == ()
