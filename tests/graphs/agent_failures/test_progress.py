"""Loops that get nowhere, and rounds of several steps."""

import asyncio

import pytest
from prefect import flow

from prefect_resilience import ConfigurationError, aiterate, iterate, subtask_request
from tests.prefect_runs import until


@pytest.mark.requirement("001.15")
def test_director_execution_evaluation(mode):
    def director(evaluation=None):
        return "write" if evaluation is None else f"improve {evaluation['score']}"

    def execution(instructions, *, round):
        return f"{instructions} ({round})"

    def evaluator(draft):
        return {"score": len(draft)}

    steps = {name: mode.function(fn) for name, fn in locals().items() if callable(fn) and name != "mode"}
    done = (
        asyncio.run(aiterate(steps, lambda value: value["score"] > 9, 5))
        if mode.isasync
        else iterate(steps, lambda value: value["score"] > 9, 5)
    )
    assert (done.rounds, done.value) == (2, {"score": 13})
    assert done.steps == {"director": "improve 9", "execution": "improve 9 (2)", "evaluator": {"score": 13}}
    assert done.iteration_history[0].steps["execution"] == "write (1)"


def test_a_parent_asks_the_failed_step_again_with_a_changed_request():
    def draft(value=None, *, words=100):
        if words > 50:
            raise RuntimeError("too long")
        return {"words": words}

    with pytest.raises(RuntimeError) as caught:
        iterate(draft, lambda value: True, 3)
    request = subtask_request(caught.value)
    assert (request.name, request.kind) == ("draft", "step")
    assert request.replace(words=20).call() == {"words": 20}
    with pytest.raises(
        ConfigurationError,
        match="cannot change 'word', which is not a parameter of 'draft'; did you mean 'words'",
    ):
        request.replace(word=20)


@pytest.mark.smoke
@pytest.mark.api
def test_every_step_is_a_task_run():
    def director(before=0):
        return before + 1

    def evaluator(made):
        return made

    @flow
    def scenario():
        from prefect.runtime import flow_run

        return flow_run.get_id(), iterate({"director": director, "evaluator": evaluator}, lambda n: n == 2, 5)

    run, done = scenario()
    assert done.rounds == 2

    def names():
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            body = {"flow_runs": {"id": {"any_": [run]}}}
            found = client.request("POST", "/task_runs/filter", json=body).json()
        shown = sorted(each["name"] for each in found)
        # A run is created under another name, and renamed when it begins.
        return shown if len(shown) == 4 and all(name.endswith("]") for name in shown) else None

    assert until(names) == ["director[1]", "director[2]", "evaluator[1]", "evaluator[2]"]


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: iterate({}, bool, 3), "write the steps"),
        (lambda: iterate({"one": lambda a, b: 1}, bool, 3), r"step\['one'\]"),
        (lambda: iterate({"one": 5}, bool, 3), "needs a function"),
    ],
)
def test_mistakes(made, says):
    with pytest.raises(ConfigurationError, match=says):
        made()
