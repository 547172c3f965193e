"""The pure part of a summary: tables, markdown and the picture, of whatever was seen."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefect_resilience.durable.batches.run_passes import RunPass, Start
from prefect_resilience.tasks.summaries.markdown import LARGEST, headline, hint_markdown, markdown, span
from prefect_resilience.tasks.summaries.rows import MOST_ROWS, tables_of, waits_of
from prefect_resilience.tasks.summaries.story import (
    MOST_BARS_OF_ALL,
    PassSeen,
    Story,
    bands_of,
    circuits_of,
    one_pass,
)
from prefect_resilience.tasks.summaries.timeline import draw, nice_step
from prefect_resilience.telemetry.model import Advice, Happening, PassFacts, RunFacts, StateSeen, TaskRunSeen

AT = 1_800_000_000.0
SECRET = "sk-ant-REDACTED"


def facts(**changes) -> RunFacts:
    known = {
        "id": "1b", "name": "tidy-newt", "flow": "night", "state_type": "COMPLETED", "state": "Completed",
        "began": AT, "ended": AT + 10,
    }  # fmt: skip
    return RunFacts(**{**known, **changes})


def run(name, *states, id=None) -> TaskRunSeen:
    """`states` are pairs of a name and the second at which it came to it."""
    types = {"Retrying": "RUNNING", "AwaitingRetry": "SCHEDULED", "TimedOut": "FAILED"}
    named = {"Fallback": "COMPLETED", "Degraded": "COMPLETED", "Replayed": "COMPLETED"}
    seen = [
        StateSeen(types.get(state) or named.get(state) or state.upper(), state, AT + at, f"{state} it is")
        for state, at in states
    ]
    return TaskRunSeen(id or name, name, "1b", seen)


def happening(name, subject="it", at=1.0, /, **payload) -> Happening:
    return Happening(f"{name}-{subject}-{at}", AT + at, name, subject, payload)


def seen(*runs, happenings=(), **more) -> PassFacts:
    retried = [one for one in runs if one.attempts > 1]
    found = PassFacts(
        task_runs=[*runs], retried=len(retried), retries=sum(one.attempts - 1 for one in retried), **more
    )
    for one in happenings:
        found.happened(one)
    for one in runs:
        if one.last:
            found.count(one.last.type, one.last.name)
    return found


def story(found: PassFacts, missing=(), **changes) -> Story:
    """A run of one pass, about whose circuits the store says what was heard last."""
    made = one_pass(facts(**changes), found)
    now = {one.name: STATES.get(one.moves[-1].name, "forced_open") for one in made.circuits}
    return replace(made, circuits=circuits_of(found.happenings, now), missing=tuple(missing))


STATES = {"circuit.opened": "open", "circuit.half-opened": "half_open", "circuit.closed": "closed"}


ONCE_AGAIN = run("ask", ("Running", 0), ("AwaitingRetry", 1), ("Retrying", 3), ("Completed", 4))
GONE = run("send", ("Running", 1), ("Failed", 2))
FINE = run("load", ("Pending", 0), ("Running", 0.5), ("Completed", 1))


def table(found, title):
    return next((one for one in tables_of(story(found)) if one.title == title), None)


def test_a_retried_run_says_what_went_wrong_and_how_long_it_waited():
    errors = [
        happening("retry.scheduled", task_run_id="ask", code="503", category="unavailable", message="busy")
    ] * 2
    rows = table(seen(ONCE_AGAIN, FINE, happenings=errors), "Retried").rows
    assert rows == (("ask", "2", "503 unavailable: busy (x2)", "2.0", "Completed"),)


def test_a_plain_task_says_what_its_states_say():
    assert table(seen(ONCE_AGAIN), "Retried").rows[0][2] == "AwaitingRetry it is"


def test_many_different_errors_are_cut():
    errors = [
        happening("retry.scheduled", "it", n, task_run_id="ask", code=str(500 + n), category="server_error")
        for n in range(6)
    ]
    said = table(seen(ONCE_AGAIN, happenings=errors), "Retried").rows[0][2]
    assert said.endswith("and 2 others")


def test_a_wait_that_was_never_over_is_none():
    assert waits_of(run("ask", ("Running", 0), ("AwaitingRetry", 1))) == []
    assert waits_of(run("ask", ("AwaitingRetry", 1), ("Retrying", 1.5))) == [0.5]


def test_failed_ones_have_their_error_from_the_event_or_the_state():
    other = run("other", ("Running", 0), ("Crashed", 1))
    failed = happening("run.failed", task_run_id="send", code="401", category="auth", message="who?\nreally")
    rows = table(seen(GONE, other, FINE, happenings=[failed]), "Failed").rows
    assert rows == (("send", "Failed", "1", "401 auth: who?"), ("other", "Crashed", "1", "Crashed it is"))


def test_refusals_are_counted_by_circuit_and_task():
    refused = {"category": "circuit_open", "code": "circuit_open", "circuit": "llm:a", "node_id": "ask"}
    events = [happening("retry.scheduled", **refused), happening("fallback.used", "it", 2, **refused)]
    events += [
        happening("run.failed", "it", 3, category="circuit_open"),
        happening("run.failed", "it", 4, category="auth"),
    ]
    rows = table(seen(happenings=events), "Rejected by a circuit").rows
    assert rows == (("llm:a", "ask", "2"), ("?", "it", "1"))


def test_replaced_ones_are_told_once_from_either_source():
    by_event = run("a", ("Running", 0), ("Fallback", 1))
    by_state = run("b", ("Running", 0), ("Degraded", 1))
    used = happening(
        "fallback.used", task_run_id="a", to="cached", degraded=True, code="X", category="timeout"
    )
    rows = table(seen(by_event, by_state, happenings=[used]), "Answered by a fallback").rows
    assert rows == (("a", "cached", "yes", "X timeout"), ("b", "", "yes", "Degraded it is"))


def test_replayed_and_doubtful_effects():
    sent = run("s", ("Running", 0), ("Replayed", 1))
    events = [
        happening("effect.replayed", "invoice:1", task_run_id="s", external_id="m-1"),
        happening("effect.in-doubt", "invoice:2", why="it was cut off"),
    ]
    found = seen(sent, happenings=events)
    assert table(found, "Replayed: done before, not repeated").rows == (("invoice:1", "s", "m-1"),)
    assert table(found, "In doubt").rows == (("invoice:2", "it was cut off"),)
    assert table(seen(sent), "Replayed: done before, not repeated").rows == (("", "s", ""),)


def test_circuits_letters_and_stores():
    events = [
        happening("circuit.opened", "llm:a", before="closed", after="open", reason="5 failures"),
        happening("dead-letter.created", "l-1", name="send", code="401", category="auth"),
        happening("store.unavailable", "sqlite", reason="locked"),
    ]
    titles = [one.title for one in tables_of(story(seen(happenings=events)))]
    assert titles == ["Circuit changes", "Dead letters", "Unavailable stores"]
    text = markdown(story(seen(happenings=events)))
    assert "closed → open" in text
    assert "`prefect-resilience dead-letters replay l-1`" in text
    assert "1 dead letter" in text
    # A letter whose call succeeded in a later pass needs nothing any more.
    settled = [*events, happening("dead-letter.settled", "l-1", name="send")]
    assert "Dead letters" not in [one.title for one in tables_of(story(seen(happenings=settled)))]
    assert "dead letter" not in markdown(story(seen(happenings=settled)))


def test_rows_are_bounded_and_the_rest_is_counted():
    runs = [run(f"ask-{n}", ("Running", 0), ("Failed", 1)) for n in range(MOST_ROWS + 5)]
    found = seen(*runs)
    found.states["Failed"] = 10_000
    text = markdown(story(found, state_type="FAILED", state="Failed"))
    assert "and 9,950 more." in text
    assert "and 9,970 more task runs" in picture_in(text)


def much_of_everything() -> PassFacts:
    """As much as is kept of a run, each row as long as it can be."""
    again = [
        (name, at + step) for at in range(0, 120, 2) for name, step in (("Running", 0), ("AwaitingRetry", 1))
    ]
    again += [("Running", 120), ("Failed", 121)]
    runs = [run(f"ask-{n}-{'x' * 400}", *again, id=f"{n}") for n in range(500)]
    said = {"code": "c" * 300, "category": "network", "message": "m" * 300, "why": "w" * 300, "to": "t" * 300}
    kinds = ("retry.scheduled", "run.failed", "fallback.used", "effect.replayed", "effect.in-doubt")
    kinds += ("dead-letter.created", "circuit.opened", "store.unavailable")
    told = [
        happening(
            kind, f"{n}-{'s' * 300}", n, **{**said, "code": f"{n}-{'c' * 300}", "task_run_id": f"{n % 500}"}
        )
        for kind in kinds
        for n in range(300)
    ]
    return seen(*runs, happenings=told)


def test_a_summary_is_never_larger_than_a_page_should_be(monkeypatch):
    found = much_of_everything()
    failed = story(found, state_type="FAILED", state="Failed", message="m" * 10_000)
    text = markdown(failed)
    assert len(text.encode()) <= LARGEST
    assert "and 480 more." in text
    ET.fromstring(picture_in(text))
    # The picture's own bound: the end of each lane is what is left.
    (band,) = bands_of(failed)
    lanes = band.lanes
    assert sum(len(lane.bars) for lane in lanes) <= MOST_BARS_OF_ALL
    assert all(lane.bars[-1].look == "failed" for lane in lanes if not lane.circuit and len(lane.bars) > 9)
    # What cannot be made small enough is made as small as it can be.
    monkeypatch.setattr("prefect_resilience.tasks.summaries.markdown.LARGEST", 1_000)
    assert len(markdown(failed)) < len(text)


def picture_in(text):
    return base64.b64decode(re.search(r"data:image/svg\+xml;base64,([^)]+)", text)[1]).decode()


def test_the_headline_counts():
    found = seen(
        ONCE_AGAIN, GONE, run("f", ("Running", 0), ("Fallback", 1)), run("r", ("Running", 0), ("Replayed", 1))
    )
    found.counts |= Counter({"effect.in-doubt": 1})
    moves = [happening("circuit.opened", name, at) for name, at in (("a", 1), ("b", 2))]
    for one in [*moves, happening("dead-letter.created", "l-1")]:
        found.happened(one)
    found.inner_runs = 2
    assert headline(story(found, times_run=2)) == (
        "The run of `night` ended **Completed** after 10.0 s, when it was run for the 2nd time: 4 task runs, "
        "1 retried (1 retry), 1 answered by a fallback, 1 replayed, 1 failed, 1 in doubt, 2 circuits opened, "
        "1 dead letter, in 3 flow runs."
    )
    assert headline(story(PassFacts(), began=None, times_run=11)) == (
        "The run of `night` ended **Completed**, when it was run for the 11th time: 0 task runs."
    )


@pytest.mark.parametrize(("seconds", "said"), [(3, "3.0 s"), (600, "10 min"), (7_200, "2.0 h")])
def test_spans(seconds, said):
    assert span(seconds) == said


def test_how_to_go_on_is_told_with_its_commands():
    advice = Advice(
        "restart_batch", "it failed", (("Run it again", "prefect-resilience ..."),), "It is automatic."
    )
    failed = story(seen(GONE), state_type="FAILED", state="Failed", message="went | wrong")
    text = markdown(failed, advice)
    assert "**restart\\_batch**: it failed." in text
    assert "```\nprefect-resilience ...\n```" in text
    assert "> went ¦ wrong" in text
    assert "It is automatic." in hint_markdown("tidy-newt", "night", "Failed", advice)


def test_what_was_completed_is_told_after_a_failure_alone():
    found = seen(FINE, outputs={f"t{n}": {"n": n} for n in range(25)}, outputs_left_out=3)
    assert "Completed task runs" not in markdown(story(found))
    text = markdown(story(found, state_type="FAILED", state="Failed"))
    assert '| `t0` | `{"n": 0}` |' in text
    assert "and 8 more." in text


def test_links_and_what_is_missing():
    found = story(seen(FINE), missing=["the API was slow"])
    text = markdown(found, links=[("plan-a", "http://u/artifacts/artifact/1"), ("plan-b", None)])
    assert "[plan-a](http://u/artifacts/artifact/1), `plan-b`" in text
    assert "*the API was slow*" in text


def test_a_run_is_quiet_when_nothing_of_note_happened():
    assert not seen(FINE).remarkable
    assert not seen(FINE, happenings=[happening("plan.branched")]).remarkable
    assert seen(ONCE_AGAIN).remarkable
    assert seen(GONE).remarkable
    assert seen(happenings=[happening("circuit.closed")]).remarkable
    assert seen().total == 0


# -- the picture


def looks(found, **changes):
    (band,) = bands_of(story(found, **changes))
    return {lane.label: [bar.look for bar in lane.bars] for lane in band.lanes}


def test_each_attempt_has_the_look_of_its_outcome():
    runs = [
        ONCE_AGAIN,
        GONE,
        FINE,
        run("swapped", ("Running", 0), ("Degraded", 1)),
        run("kept", ("Running", 0), ("Replayed", 1)),
        run("at once", ("Running", 0), ("Retrying", 1), ("TimedOut", 2)),
        run("unfinished", ("Running", 8)),
        run("never begun", ("Pending", 0)),
    ]
    assert looks(seen(*runs)) == {
        "ask": ["failed", "wait", "ok"],
        "send": ["failed"],
        "load": ["ok"],
        "swapped": ["replaced"],
        "kept": ["replayed"],
        "at once": ["failed", "failed"],
        "unfinished": ["running"],
    }


def test_circuits_are_open_until_they_move_again():
    moves = [
        happening("circuit.opened", "a", 1),
        happening("circuit.half-opened", "a", 3),
        happening("circuit.closed", "a", 4),
        happening("circuit.forced", "b", 2, after="forced_open"),
        happening("circuit.forced", "c", 2, after="disabled"),
    ]
    (band,) = bands_of(story(seen(FINE, happenings=moves)))
    bars = {
        lane.label: [(bar.look, bar.start - AT, bar.end - AT) for bar in lane.bars] for lane in band.lanes
    }
    assert bars["a"] == [("open", 1, 3), ("half-open", 3, 4)]
    assert bars["b"] == [("open", 2, 10)]
    assert "c" not in bars


def test_what_went_wrong_has_a_lane_before_what_did_not():
    fine = [run(f"fine-{n}", ("Running", n / 100), ("Completed", 1)) for n in range(50)]
    labels = looks(seen(*fine, GONE, ONCE_AGAIN))
    assert {"send", "ask"} < set(labels)
    assert len(labels) == 30


def test_nothing_that_ran_is_no_picture():
    assert draw(story(seen())) is None
    assert "![" not in markdown(story(seen()))


@pytest.mark.parametrize(
    ("least", "step"),
    [
        (0.00001, 0.001),
        (0.13, 0.2),
        (0.5, 0.5),
        (3, 5),
        (8, 10),
        (31, 60),
        (4_000, 7_200),
        (200_000, 259_200),
    ],
)
def test_the_axis_has_round_steps(least, step):
    assert nice_step(least) == pytest.approx(step)


def test_hours_minutes_and_parts_of_a_second_are_on_the_axis():
    for ended, shown in ((36_000, ">2 h<"), (1_200, ">5 min<"), (0.5, ">0.1 s<"), (20, ">5 s<")):
        whole = seen(run("a", ("Running", 0), ("Completed", ended)))
        assert shown in draw(story(whole, ended=AT + ended))


def test_labels_are_cut_by_their_width():
    wide = seen(
        run("工" * 40, ("Running", 0), ("Completed", 1)), run("m" * 400, ("Running", 0), ("Completed", 1))
    )
    texts = [one.text for one in ET.fromstring(draw(story(wide))).iter("{http://www.w3.org/2000/svg}text")]
    assert "工" * 18 + "…" in texts
    assert all(len(one) < 60 for one in texts)


def test_a_legend_of_everything_breaks_its_line():
    every = [
        ONCE_AGAIN,
        run("a", ("Running", 0), ("Fallback", 1)),
        run("b", ("Running", 0), ("Replayed", 1)),
        run("c", ("Running", 0)),
    ]
    moves = [happening("circuit.opened", "x", 1), happening("circuit.half-opened", "x", 2)]
    svg = draw(story(seen(*every, happenings=moves)))
    assert "circuit half-open" in svg
    assert 'y="18"' in svg  # the legend's second line


words = st.text(max_size=60) | st.sampled_from(
    [SECRET, "a|b", "`x`", "</text>", "\x00\x1b[31m", "]]>", "&amp;"]
)
names = st.sampled_from(
    ["Running", "Retrying", "AwaitingRetry", "Completed", "Failed", "Fallback", "Replayed", "Odd"]
)
runs = st.builds(
    lambda name, states: run(name, *sorted(states, key=lambda one: one[1])),
    words,
    st.lists(st.tuples(names, st.floats(0, 1e6)), max_size=8),
)
kinds = st.sampled_from(
    ["retry.scheduled", "fallback.used", "run.failed", "circuit.opened", "effect.in-doubt", "x"]
)
payloads = st.dictionaries(
    st.sampled_from(["task_run_id", "message", "code", "category", "circuit", "to", "why", "reason"]), words
)
events = st.builds(
    lambda name, subject, at, payload: happening(name, subject, at, **payload),
    kinds, words, st.floats(0, 1e6), payloads,
)  # fmt: skip


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(st.lists(runs, max_size=12), st.lists(events, max_size=12), words, words)
def test_whatever_was_seen_is_a_bounded_summary_without_secrets(found, happened, name, message):
    whole = seen(*found, happenings=happened, outputs={name: message})
    given_ = story(whole, name=name, flow=name or "f", message=message, state_type="FAILED", state="Failed")
    advice = Advice("manual_only", message, (("Look", message),))
    start = Start("recovery", name, message)
    before = RunPass(1, AT - 100, start, AT - 50, name, "CRASHED", message, over=True)
    again = RunPass(2, AT, start)
    given_ = replace(given_, passes=(PassSeen(before, whole), PassSeen(again, whole)))
    text = markdown(given_, advice)
    assert SECRET not in text
    assert len(text) < 300_000
    if "data:image" in text:
        svg = picture_in(text)
        assert SECRET not in svg
        ET.fromstring(svg)
