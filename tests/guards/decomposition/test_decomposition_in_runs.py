"""Work that is too big, as real runs."""

import asyncio
import threading

import cloudpickle
import pytest
from prefect import flow, tags, task
from prefect.client.orchestration import get_client

from prefect_resilience import (
    Backoff,
    Decompose,
    Fallback,
    ResourceExhausted,
    Retry,
    resilient_task,
    split_list,
    split_text,
)
from tests.contexts import context_of
from tests.prefect_runs import until

pytestmark = pytest.mark.api

LIMIT = 1_000
PARAGRAPH = "x" * 98 + "\n\n"


def paragraphs(count):
    return PARAGRAPH * count


def summary_of(document):
    if len(document) > LIMIT:
        raise ResourceExhausted("context", usage=len(document), limit=LIMIT)
    return f"{len(document)}"


def tenfold(items):
    if len(items) > 2:
        raise ResourceExhausted("turns", 3, 2)
    return [item * 10 for item in items]


def children(seen, task_run_id):
    """Task runs by name, with the name of the run that they are nested in, once all of them are final."""
    flow_run_id = seen.task_run(task_run_id).flow_run_id

    def asked():
        with get_client(sync_client=True) as client:
            body = {"flow_runs": {"id": {"any_": [str(flow_run_id)]}}}
            runs = client.request("POST", "/task_runs/filter", json=body).json()
        names = {run["id"]: run["name"] for run in runs}
        found = {}
        for run in runs:
            parents = run["task_inputs"].get("__parents__", [])
            found[run["name"]] = names.get(parents[0]["id"]) if parents else None
        return found if all(run["end_time"] for run in runs) and len(runs) >= 7 else None

    return until(asked)


@pytest.mark.smoke
@pytest.mark.requirement("001.02")
def test_a_document_four_times_too_long_is_summarised_at_depth_2(mode, seen):
    made = mode.task(
        summary_of, name="summarise", decompose=Decompose(split_text("document"), merge="join", max_depth=2)
    )
    state = mode.state(made, paragraphs(40))
    assert (state.name, state.is_completed()) == ("Decomposed", True)
    assert state.result() == "1000\n\n1000\n\n1000\n\n1000"
    assert "merged from 2 parts at depth 1" in state.message
    nested = children(seen, state.state_details.task_run_id)
    [whole] = [name for name, parent in nested.items() if parent is None]
    assert {name: parent for name, parent in nested.items() if parent} == {
        "summarise[1/2]": whole,
        "summarise[2/2]": whole,
        "summarise[1/2][1/2]": "summarise[1/2]",
        "summarise[1/2][2/2]": "summarise[1/2]",
        "summarise[2/2][1/2]": "summarise[2/2]",
        "summarise[2/2][2/2]": "summarise[2/2]",
    }
    run = str(state.state_details.task_run_id)
    [told] = seen.events("prefect-resilience.run.decomposed", lambda e: e["payload"]["task_run_id"] == run)
    assert (told["payload"]["parts"], told["payload"]["depth"]) == (2, 1)
    assert mode.value(made, paragraphs(40)) == "1000\n\n1000\n\n1000\n\n1000"


@pytest.mark.requirement("001.20")
def test_over_the_bound_it_ends_with_a_clear_error_that_holds_the_parts_already_done(mode):
    decompose = Decompose(split_text("document"), merge="join", max_depth=2, parallel=1)
    made = mode.task(summary_of, name="summarise", decompose=decompose)
    text = paragraphs(30) + "y" * 1_001  # the last quarter is one paragraph, and too long
    with pytest.raises(ResourceExhausted, match="4,001 used of 1,000") as caught:
        mode.value(made, text)
    context = context_of(caught.value)
    assert context.category == "resource_exhausted"
    assert context.kind == "resource"
    assert context.node_id == "summarise"
    assert context.details["decomposition"] == {"depth": 1, "max_depth": 2, "parts": 2, "done": 1}
    assert context.details["failed_step"] == 2
    assert context.details["partial_results"] == [
        {"part": "1", "value": "1000\n\n1000"},
        {"part": "2.1", "value": "1000"},
    ]
    assert context.partial_output.content == ["1000\n\n1000"]
    assert context.message.startswith(
        "decomposed into 2 parts (depth 1 of at most 2), 1 done; part 2 failed:"
    )
    assert (context.cause.nesting_depth, context.cause.cause.nesting_depth) == (1, 2)
    assert "not split again: max_depth=2 is reached" in context.cause.cause.message
    assert any("1 done; part 2 failed" in note for note in caught.value.__notes__)
    assert context == context_of(cloudpickle.loads(cloudpickle.dumps(caught.value)))


def test_a_resource_error_is_not_retried_and_decomposition_comes_before_fallbacks(mode):
    calls = []

    def work(items):
        calls.append(len(items))
        return tenfold(items)

    made = mode.task(
        work,
        retry=Retry(attempts=4, backoff=Backoff.none()),
        decompose=split_list("items"),
        fallback=lambda: [],
    )
    assert mode.value(made, [1, 2, 3, 4]) == [10, 20, 30, 40]
    assert calls == [4, 2, 2]


def test_a_fallback_answers_for_the_part_that_is_still_too_big(mode):
    def short(items, error):
        assert error.details["decomposition"]["why"] == "not split again: max_depth=1 is reached"
        return [sum(items)]

    halves = Decompose(lambda items: [items[:1], items[1:]], max_depth=1)
    made = mode.task(tenfold, decompose=halves, fallback=short)
    state = mode.state(made, [1, 2, 3, 4])
    assert (state.name, state.result()) == ("Decomposed", [10, 9])
    assert "merged from 2 parts at depth 1, some by short, after:" in state.message
    lesser = mode.state(made.with_options(fallback=Fallback(short, degraded=True)), [1, 2, 3, 4])
    assert (lesser.name, lesser.result()) == ("Degraded", [10, 9])


def test_the_fallback_of_the_whole_gets_the_parts_already_done(mode):
    def rest(items, error):
        if "failed_step" not in error.details:
            raise RuntimeError("only for the whole")
        return error.details["partial_results"], error.partial_output.content

    halves = Decompose(lambda items: [items[:1], items[1:]], max_depth=1, parallel=1)
    state = mode.state(mode.task(tenfold, decompose=halves, fallback=rest), [1, 2, 3, 4])
    assert (state.name, state.result()) == ("Fallback", ([{"part": "1", "value": [10]}], [[10]]))


def test_parts_keep_the_tasks_policies(mode):
    failed = []

    def work(items):
        if len(items) > 1:
            raise MemoryError
        if items[0] not in failed:
            failed.append(items[0])
            raise ConnectionResetError("cut")
        return items

    made = mode.task(
        work, retry=Retry(attempts=2, backoff=Backoff.none()), decompose=split_list("items", size=1)
    )
    assert mode.value(made, [1, 2, 3]) == [1, 2, 3]
    assert failed == [1, 2, 3]


def test_a_part_that_fails_otherwise_is_the_error(mode):
    def work(items, mode="x", *rest, key, **more):
        if len(items) > 1:
            raise ResourceExhausted("turns")
        assert (mode, rest, key, more) == ("y", (1,), "k", {"other": 2})
        if items == [2]:
            raise PermissionError("not yours")
        return items

    made = mode.task(work, decompose=Decompose(split_list("items", size=1), parallel=1))
    with pytest.raises(PermissionError, match="not yours") as caught:
        mode.value(made, [1, 2, 3], "y", 1, key="k", other=2)
    context = context_of(caught.value)
    assert (context.category, context.kind, context.retryable) == ("subtask", "permanent", False)
    assert context.cause.category == "auth"
    assert context.details["partial_results"] == [{"part": "1", "value": [1]}]
    assert context.details["decomposition"]["done"] == 1
    assert any(
        "this was part 2 of the call that failed with ResourceExhausted" in note
        for note in caught.value.__notes__
    )


def test_split_and_merge_of_ones_own_may_be_tasks_and_get_what_they_name(mode):
    heard = []

    def halves(text, error, depth):
        heard.append((error.details["resource"], depth))
        return [{"text": text[: len(text) // 2]}, {"text": text[len(text) // 2 :], "style": "long"}]

    def together(results, style):
        heard.append((results, style))
        return "+".join(results)

    def work(text, style="short"):
        if len(text) > 3:
            raise ResourceExhausted("output", limit=3)
        return f"{text}:{style}"

    decompose = Decompose(mode.function(halves), merge=task(mode.function(together)))
    made = mode.task(work, decompose=decompose)
    assert mode.value(made, "abcdef") == "abc:short+def:long"
    assert heard == [("output", 0), (["abc:short", "def:long"], "short")]


def test_a_merge_may_call_the_task_itself_as_deep_as_the_bound(mode):
    calls = []

    def work(text):
        calls.append(text)
        if len(text) > 4:
            raise ResourceExhausted("context", len(text), 4)
        return text[:3]

    def summaries_of_summaries(results):
        return made("".join(results))

    made = mode.task(
        work,
        decompose=Decompose(split_text("text", by="character"), merge=summaries_of_summaries, max_depth=2),
    )
    with pytest.raises(ResourceExhausted) as caught:
        mode.value(made, "abcdefgh")
    context = context_of(caught.value)
    assert context.details["failed_step"] == "merge"
    assert [each["value"] for each in context.details["partial_results"]] == ["abc", "efg"]
    assert len(calls) < 10


def test_what_cannot_be_split_fails_as_it_was(mode):
    def work(items):
        raise ResourceExhausted("turns", 5, 5)

    def wrong(items):
        raise KeyError("no split")

    for decompose, why in (
        (split_list("items"), "cannot be split into smaller parts"),
        (Decompose(wrong), "split failed: KeyError"),
        (
            Decompose(lambda items: ({} for _ in range(2_000))),
            "the split returned 2000 parts; at most 1000 are allowed",
        ),
    ):
        with pytest.raises(ResourceExhausted, match="turns exhausted: 5 used of 5") as caught:
            mode.value(mode.task(work, decompose=decompose), [1])
        context = context_of(caught.value)
        assert why in context.message
        assert context.details["partial_results"] == []
        assert context.details["resource"] == "turns"
        assert context.details["usage"] == 5
        assert context.details["limit"] == 5


def test_async_parts_run_at_the_same_time():
    arrived = []
    both = asyncio.Event()

    @resilient_task(decompose=split_list("items"))
    async def work(items):
        if len(items) > 1:
            raise ResourceExhausted("turns")
        arrived.append(items)
        if len(arrived) == 2:
            both.set()
        await asyncio.wait_for(both.wait(), 30)
        return items

    @flow
    async def scenario():
        return await work([1, 2])

    assert asyncio.run(scenario()) == [1, 2]


def test_parts_of_a_submitted_task_run_at_the_same_time_and_those_of_a_direct_call_in_its_thread():
    barrier = threading.Barrier(2)

    @resilient_task(decompose=split_list("items"))
    def work(items, alone):
        if len(items) > 1:
            raise ResourceExhausted("turns")
        if not alone:
            barrier.wait(30)
        return [threading.get_ident()]

    @flow
    def scenario():
        assert set(work([1, 2], True)) == {threading.get_ident()}
        return work.submit([1, 2], False).result()

    assert len(set(scenario())) == 2


def test_a_tag_with_a_limit_of_one_does_not_deadlock(mode):
    tag = f"one-{mode.name}"
    with get_client(sync_client=True) as client:
        client.create_concurrency_limit(tag, 1)
    done, alone, never = [], threading.Lock(), threading.Event()

    def work(items):
        if len(items) > 1:
            raise ResourceExhausted("turns")
        assert alone.acquire(blocking=False)  # they take turns in the place of the whole
        never.wait(0.05)
        alone.release()
        done.append(items)
        return items

    made = mode.task(work, tags=[tag], decompose=Decompose(split_list("items"), parallel=4))
    with tags(tag, "other"):
        assert mode.value(made, [1, 2, 3, 4]) == [1, 2, 3, 4]
    assert sorted(done) == [[1], [2], [3], [4]]
