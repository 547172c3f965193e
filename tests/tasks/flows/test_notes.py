"""Notes are bounded whatever a run does, and their counts stay exact."""

import time
import tracemalloc

import pytest

from prefect_resilience.durable.batches.run_passes import RunPass, Start
from prefect_resilience.tasks.summaries.markdown import markdown
from prefect_resilience.tasks.summaries.story import PassSeen, Story
from prefect_resilience.telemetry import notes
from prefect_resilience.telemetry.model import MOST_OF_A_KIND, Happening, StateSeen
from prefect_resilience.telemetry.notes import RunNotes, show


@pytest.fixture(autouse=True)
def empty():
    notes._passes.notes.clear()
    yield
    notes._passes.notes.clear()


def came(flow_run, task_run, *states, at=0.0):
    types = {"Retrying": "RUNNING", "AwaitingRetry": "SCHEDULED", "RolledBack": "COMPLETED"}
    for number, name in enumerate(states):
        seen = StateSeen(types.get(name, name.upper()), name, at + number)
        notes.task_run_came_to(flow_run, task_run, f"task {task_run}", seen)


def test_ten_thousand_runs_are_counted_and_a_few_kept():
    began = time.process_time()
    tracemalloc.start()
    for number in range(10_000):
        way = (
            ("Pending", "Running", "AwaitingRetry", "Retrying") if number % 4 == 0 else ("Pending", "Running")
        )
        came("f", str(number), *way, "Failed" if number % 8 == 0 else "Completed", at=number)
        event = Happening(str(number), number, "retry.scheduled", "ask", {"task_run_id": str(number)})
        notes.note_event("f", event)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    seen = notes.last_notes("f")
    assert (seen.total, seen.retried, seen.retries) == (10_000, 2_500, 2_500)
    assert +seen.states == {"Completed": 8_750, "Failed": 1_250}
    assert seen.counts["retry.scheduled"] == 10_000
    assert len(seen.task_runs) == notes.MOST_REMARKABLE
    assert len(seen.events) == MOST_OF_A_KIND
    only = RunPass(1, 0, Start("unknown"), 10_000, "Failed", "FAILED", over=True)
    text = markdown(Story("f", "f", (PassSeen(only, seen),)))
    assert "10,000 task runs, 2,500 retried (2,500 retries), 1,250 failed" in text
    assert len(text) < 100_000
    assert peak < 20_000_000
    assert time.process_time() - began < 20


def test_a_run_that_was_rolled_back_is_one_run():
    came("f", "1", "Running", "Completed", "RolledBack")
    assert +notes.last_notes("f").states == {"RolledBack": 1}


def test_states_of_one_run_are_bounded():
    came("f", "1", *["Retrying"] * 500, "Completed")
    run = notes.last_notes("f").task_runs["1"]
    assert (len(run.states), run.starts) == (notes.MOST_STATES, 500)
    assert run.last.name == "Completed"


def test_the_quietest_flow_runs_give_way(monkeypatch):
    monkeypatch.setattr(notes, "MOST_ROWS", 3 * notes.ROWS_OF_A_PASS - 1)
    for name in "abc":
        notes.begin(name)
    notes.begin("a")
    notes.begin("d")
    assert [notes.last_notes(name) is not None for name in "abcd"] == [True, False, True, True]


def test_outputs_are_kept_by_name_and_bounded():
    noted = RunNotes(keeps_outputs=True)
    for number in range(25):
        state = StateSeen("COMPLETED", "Completed", number)
        label = noted.came_to(str(number), f"same-{number:03}", "f", state, f"{number:03}-key").label
        noted.add_output(label, "x" * 1_989)
    assert [*noted.partial_results][:2] == ["same", "same (2)"]
    assert (len(noted.outputs), noted.outputs_left_out) == (20, 5)
    assert noted.partial_results["…"] == {"truncated": True, "left_out": 5}


def test_only_who_asks_keeps_outputs():
    notes.begin("f")
    assert not notes.last_notes("f").keeps_outputs
    notes.begin("f", keeps_outputs=True)
    notes.begin("f")
    assert notes.last_notes("f").keeps_outputs


def test_a_value_that_is_cut_says_so():
    assert show("x" * 50_000) == {"truncated": True, "content": "x" * 1_999 + "… (50000 characters)"}
    assert show({"a": [1, 2]}) == {"a": [1, 2]}
    assert show([1] * 100) == {"truncated": True, "content": [1] * 60}
    assert show([{"password": "hunter2"}]) == [{"password": "***"}]
