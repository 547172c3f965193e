"""Agents where no run is going on: the same retries, notes, promises and parts, without Prefect's API."""

from __future__ import annotations

import asyncio

import pytest

from prefect_resilience import (
    AgentChain,
    Backoff,
    CircuitOpenError,
    Decompose,
    Expect,
    Person,
    PersonNeeded,
    ProviderChain,
    ResourceExhausted,
    Retry,
    TaskFailure,
    error_context,
    keep_partial,
    last_violations,
    previous_error,
    previous_partial,
    resilient_task,
    split_text,
)

TWICE = Retry(attempts=2, backoff=Backoff.none())


@pytest.fixture(autouse=True)
def no_api(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for the API gets no answer."""
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")


def asked(mode, chain, *args):
    return asyncio.run(chain.acall(*args)) if mode.isasync else chain.call(*args)


def test_it_retries_and_falls_back(mode):
    calls = []

    def build(spec):
        calls.append("builder")
        raise ConnectionResetError("cut")

    def simple(spec, error):
        calls.append("simple")
        if len(calls) < 4:
            raise TimeoutError("slow")
        return error.code

    agents = {
        "builder": mode.task(build, retry=TWICE),
        "simple": mode.task(simple, retry=TWICE),
    }
    chain = AgentChain("builder", ["simple"], agents=agents)
    result = asked(mode, chain, "hut")
    assert calls == ["builder", "builder", "simple", "simple"]
    assert (result.value, result.answered_by) == ("NETWORK_ERROR", "simple")
    assert result.attempts == {"builder": 2, "simple": 2}


@pytest.mark.requirement("003.11")
def test_the_last_good_answer_is_remembered_for_a_while():
    down = []

    def price(symbol):
        if down:
            raise ConnectionError("down")
        return 7

    chain = ProviderChain("prices", {"first": price}, last_known_good=3600)
    assert chain.call("ACME").value == 7
    down.append(True)
    chain._first.task.guard.circuit.reset()
    result = chain.call("ACME")
    assert (result.value, result.answered_by, result.degraded) == (7, "last_known_good", True)
    with pytest.raises((ConnectionError, CircuitOpenError)) as caught:
        chain.call("EVIL")
    assert any("no earlier result is kept for these arguments" in note for note in caught.value.__notes__)


def test_what_an_agent_kept_is_there_for_its_next_attempt_and_for_the_next_agent(mode):
    def build(spec):
        assert (previous_error() is None) == (previous_partial() is None)
        keep_partial(f"{previous_partial() or ''}{spec}")
        raise ConnectionResetError("cut")

    def simple(spec, error):
        return error.partial_output.content, previous_partial()

    agents = {"builder": mode.task(build, retry=TWICE), "simple": mode.task(simple, retry=None)}
    chain = AgentChain("builder", ["simple"], agents=agents)
    assert asked(mode, chain, "x").value == ("xx", None)
    assert previous_partial() is None
    with pytest.raises(ConnectionResetError) as caught:
        asked(mode, AgentChain("builder", agents=agents), "y")
    assert error_context(caught.value).partial_output.content == "yy"


@pytest.mark.requirement("001.08")
def test_what_a_failure_says_of_its_work_is_there_for_the_next_attempt(mode):
    seen = []

    def build(spec):
        seen.append(previous_partial())
        if len(seen) == 1:
            raise TaskFailure("context_matching_failure", "half of it", partial_output=["a"])
        if len(seen) == 2:
            keep_partial(["a", "b"])
            raise TaskFailure("context_matching_failure", "more of it", partial_output="told, and not kept")
        if len(seen) == 3:
            raise TaskFailure("context_matching_failure", "nothing new")
        return previous_partial()

    agents = {"builder": mode.task(build, retry=Retry(attempts=4, backoff=Backoff.none(), budget=None))}
    assert asked(mode, AgentChain("builder", agents=agents), "x").value == ["a", "b"]
    assert seen == [None, ["a"], ["a", "b"], ["a", "b"]]


CHAINS = {
    "builder": ["builder-simple", "manual-mode"],
    "reviewer": ["reviewer-quick", "skip-review"],
    "planner": ["planner-simple", "no-plan"],
}


@pytest.mark.requirement("003.13")
@pytest.mark.parametrize("first", CHAINS)
def test_ever_simpler_agents_down_to_one_that_does_nothing_or_to_a_person(mode, first):
    def broken(text):
        raise ConnectionError("down")

    simpler, last = CHAINS[first]
    told = []
    agents = {name: mode.task(broken, retry=None) for name in (first, simpler)}
    agents["manual-mode"] = Person(notify=told.append)
    for name in ("skip-review", "no-plan"):
        agents[name] = mode.task(lambda text: f"{text}, as it is", retry=None)
    chain = AgentChain(first, CHAINS[first], agents=agents)
    if last == "manual-mode":
        with pytest.raises(PersonNeeded, match="'manual-mode' must take over"):
            asked(mode, chain, "a hut")
        assert [notice.subject for notice in told] == ["builder: manual-mode is asked"]
    else:
        result = asked(mode, chain, "a hut")
        assert (result.value, result.answered_by) == ("a hut, as it is", last)


@pytest.mark.api
def test_a_run_inside_an_agent_has_notes_of_its_own(monkeypatch):
    monkeypatch.undo()

    @resilient_task(retry=None)
    def inner():
        return previous_partial()

    def build(spec):
        keep_partial("the agent's")
        return [inner(), keep_partial("after")]

    assert AgentChain("builder", agents={"builder": build}).call("x").value == [None, "after"]


def test_a_repair_is_told_what_was_wrong(mode):
    answers = iter(["{", '{"floors": 1}'])
    told = []

    def build(spec, violations=None):
        told.append((violations, last_violations()))
        return next(answers)

    promised = mode.task(build, expect=Expect("object", repair=True))
    assert asked(mode, AgentChain("b", agents={"b": promised}), "x").value == {"floors": 1}
    assert told[0] == (None, [])
    assert told[1][0] == told[1][1]
    assert "not JSON" in told[1][0][0]["message"]


def halving(mode, **options):
    def summarise(document, **more):
        if len(document) > 2:
            raise ResourceExhausted("context", usage=len(document), limit=2)
        if document in more.values():
            raise ConnectionError("cut")
        return document.upper()

    usual = {"split": split_text("document", by="character"), "max_depth": 2}
    return mode.task(summarise, retry=None, decompose=Decompose(**{**usual, **options}))


def test_work_that_is_too_big_is_done_in_parts(mode):
    chain = AgentChain("summarise", agents={"summarise": halving(mode)})
    result = asked(mode, chain, "abcdefgh")
    assert (result.value, result.attempts) == ("ABCDEFGH", {"summarise": 7})
    made = halving(mode, split=lambda document: [document[:2], document[2:]])
    with pytest.raises(ResourceExhausted) as caught:
        asked(mode, AgentChain("summarise", agents={"summarise": made}), "abcdefghij")
    details = error_context(caught.value).details
    assert details["decomposition"]["depth"] == 1
    assert details["partial_results"] == [{"part": "1", "value": "AB"}, {"part": "2.1", "value": "CD"}]


def test_a_part_gets_the_other_arguments_too_and_its_own_fallback(mode):
    helper = mode.function(lambda document, **more: f"({document})")
    made = halving(mode, merge="join")
    chain = AgentChain("summarise", [helper], agents={"summarise": made})
    result = asked(mode, chain, "abcd")
    assert result.value == "AB\n\nCD"
    assert asked_with(mode, chain, "abcd", worst="cd").value == "AB\n\n(cd)"


def asked_with(mode, chain, *args, **kwargs):
    return asyncio.run(chain.acall(*args, **kwargs)) if mode.isasync else chain.call(*args, **kwargs)
