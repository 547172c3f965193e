"""A run of several passes, told from the documents that there are of it: pure."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.durable.batches.run_passes import (
    RECOVERED,
    RunOrigin,
    RunPass,
    RunState,
    Start,
    passes_of,
)
from prefect_resilience.tasks.summaries.markdown import headline, markdown
from prefect_resilience.tasks.summaries.rows import MOST_PASSES, passes_table, started_by, tables_of
from prefect_resilience.tasks.summaries.story import (
    LANES_OF_THE_LAST,
    MOST_BANDS,
    PassRead,
    PassSeen,
    Story,
    bands_of,
    circuits_met,
    circuits_of,
    one_pass,
    story_of,
)
from prefect_resilience.tasks.summaries.timeline import draw
from prefect_resilience.telemetry.model import (
    Happening,
    PassFacts,
    RunFacts,
    StateSeen,
    TaskRunSeen,
    outcome_of,
    together,
)

AT = 1_800_000_000.0
TYPES = {"Retrying": "RUNNING", "AwaitingRetry": "SCHEDULED", "Fallback": "COMPLETED", "Cached": "COMPLETED"}
BY = "automation 'prefect-resilience: recover crashed runs' in flow run 'recover 1b'"


def state(name, at, message="") -> RunState:
    return RunState(TYPES.get(name, name.upper()), name, AT + at, message, f"{name}-{at}")


RUN_STATES = [
    state("Scheduled", 0),
    state("Running", 10),
    state("Crashed", 51, "Flow run process exited with non-zero status code -9."),
    state("AwaitingRetry", 62, RECOVERED.format(by=BY, why="its run crashed")),
    state("Running", 85),
    state("Failed", 125, "ValueError: 7 pages are missing"),
    state("AwaitingRetry", 900, "Retry from the UI"),
    state("Pending", 910),
    state("Running", 913),
    state("Completed", 925),
]
PASSES = passes_of(RUN_STATES, RunOrigin("SCHEDULE", "nightly", deployed=True), run_count=3)
FACTS = RunFacts(
    "1b", "tidy-newt", "etl", "COMPLETED", "Completed", began=AT + 10, ended=AT + 925, times_run=3
)


def row(name, *states, begun=1, id=None) -> TaskRunSeen:
    seen = [
        StateSeen(TYPES.get(state, state.upper()), state, AT + at, f"{state} it is") for state, at in states
    ]
    return TaskRunSeen(id or f"{name}-{states[0][1]}", name, "1b", seen, begun=begun)


def happening(name, subject="it", at=1.0, /, **payload) -> Happening:
    return Happening(f"{name}-{subject}-{at}", AT + at, name, subject, payload)


def etl() -> Story:
    """As the API has it: 4 pages, of which the first pass ended with two Running and one Pending."""
    first = PassRead(
        Counter({("COMPLETED", "Completed"): 1, ("CRASHED", "Crashed"): 3}),
        retried=1,
        retries=2,
        rows=[
            row("page 1", ("Running", 11), ("Completed", 12)),
            row("page 2", ("Running", 13), ("Crashed", 70)),
        ],
        happenings=[happening("circuit.opened", "api", 30), happening("dead-letter.created", "l-1", 40)],
        counts=Counter({"circuit.opened": 1, "dead-letter.created": 1}),
    )
    second = PassRead(
        Counter({("COMPLETED", "Cached"): 1, ("COMPLETED", "Completed"): 2, ("FAILED", "Failed"): 1}),
        rows=[row("page 4", ("Running", 86), ("Failed", 90))],
        happenings=[happening("circuit.closed", "api", 88), happening("circuit.opened", "api", 95)],
    )
    third = PassFacts(
        task_runs=[
            row("page 4", ("Running", 914), ("AwaitingRetry", 915), ("Retrying", 916), ("Fallback", 917))
        ],
        states=Counter({"Completed": 3, "Fallback": 1}),
        types={"Completed": "COMPLETED", "Fallback": "COMPLETED"},
        retried=1,
        retries=1,
    )
    third.happened(happening("dead-letter.settled", "l-1", 917))
    third.happened(happening("dead-letter.created", "l-2", 918))
    third.happened(happening("dead-letter.created", "l-2", 919))
    return story_of(FACTS, PASSES, {3: [third]}, {1: first, 2: second})


def cells(markdown_: str, title: str) -> list[list[str]]:
    part = markdown_.split(f"## {title}\n", 1)[1].split("\n## ")[0]
    rows = [line for line in part.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def picture(text: str) -> str:
    return base64.b64decode(re.search(r"data:image/svg\+xml;base64,([^)]+)", text)[1]).decode()


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_the_headline_tells_of_the_last_pass_and_of_what_is_left():
    assert headline(etl()) == (
        "The run of `etl` ended **Completed** in its 3rd pass, 15 min after it first began: 4 task runs, "
        "1 retried (1 retry), 1 answered by a fallback, 1 circuit opened 2 times, 1 dead letter."
    )


def test_each_pass_has_a_row_with_who_started_it_and_how_it_ended():
    rows = cells(markdown(etl()), "Passes")
    assert [row[:3] for row in rows] == [
        ["1", "08:00:10 UTC", "a schedule, nightly"],
        ["2", "08:01:25 UTC, 34.0 s later", f"a recovery by {BY}: its run crashed"],
        ["3", "08:15:13 UTC, 13 min later", "the Retry button of Prefect's UI"],
    ]
    assert [row[3:] for row in rows] == [
        ["Crashed: Flow run process exited with non-zero status code -9.", "41.0 s", "4", "2",
         "3 Crashed, 1 Completed"],
        ["Failed: ValueError: 7 pages are missing", "40.0 s", "4", "0", "2 Completed, 1 Cached, 1 Failed"],
        ["Completed", "12.0 s", "4", "1", "3 Completed, 1 Fallback"],
    ]  # fmt: skip


def test_tables_tell_what_the_calls_of_the_last_pass_came_to():
    told = {table.title: table.rows for table in tables_of(etl())}
    assert set(told) == {"Retried", "Answered by a fallback", "Circuit changes", "Dead letters"}
    assert [one[0] for one in told["Retried"]] == ["page 4"]
    assert [one[0] for one in told["Dead letters"]] == ["l-2"], "once, and none that was settled"
    assert len(told["Circuit changes"]) == 3


def test_a_run_of_several_passes_is_always_worth_telling():
    assert etl().remarkable
    quiet = one_pass(FACTS, PassFacts())
    assert not quiet.remarkable
    assert replace(quiet, passes=quiet.passes * 2).remarkable


def test_the_store_knows_better_which_letters_wait():
    known = replace(etl(), waiting=frozenset({"l-2", "l-9"}))
    told = {table.title: table.rows for table in tables_of(known)}
    assert told["Dead letters"] == (("l-2", "", ""), ("l-9", "", ""))
    assert "2 dead letters" in headline(known)
    assert "dead letter" not in headline(replace(etl(), waiting=frozenset()))


def test_the_picture_has_a_band_for_each_pass_and_folds_what_is_between():
    bands = bands_of(etl())
    assert [(band.start - AT, band.end - AT, band.pause) for band in bands] == [
        (10, 51, None),
        (85, 125, 34.0),
        (913, 925, 788.0),
    ]
    labels = [[(lane.label, [bar.look for bar in lane.bars]) for lane in band.lanes] for band in bands]
    assert labels == [
        [("api", ["open"]), ("page 1", ["ok"]), ("page 2", ["crashed"])],
        [("api", ["open", "unknown"]), ("page 4", ["failed"])],
        [("api", ["unknown"]), ("page 4", ["failed", "wait", "replaced"])],
    ]
    # What was closed long after its pass ends with it.
    assert bands[0].lanes[2].bars[0].end == AT + 51
    assert bands[0].outcomes == {"ok": 1, "crashed": 3}
    svg = draw(etl())
    for said in ("Pass 1", "Pass 3", "34.0 s in between", "13 min in between", "4 task runs", "! 3"):
        assert said in texts(svg)
    assert any("Ended: Crashed: Flow run process exited" in one for one in texts(svg))
    assert any("Started by: the Retry button" in one for one in texts(svg))
    ET.fromstring(svg)


def test_a_run_of_one_pass_has_no_table_of_passes_and_no_heading():
    only = one_pass(FACTS, PassFacts(task_runs=[row("page 1", ("Running", 11), ("Completed", 12))]))
    assert passes_table(only) is None
    assert not any(one.startswith("Pass ") for one in texts(draw(only)))


def circuit_bars(moves, now, ended=60.0):
    facts = replace(FACTS, ended=AT + ended, began=AT)
    told = one_pass(facts, PassFacts(task_runs=[row("page 1", ("Running", 1), ("Completed", 2))]))
    names = {} if now is None else {"api": now}
    (band,) = bands_of(replace(told, circuits=circuits_of(moves, names)))
    lane = next((lane for lane in band.lanes if lane.circuit), None)
    return [] if lane is None else [(bar.look, bar.start - AT, bar.end - AT) for bar in lane.bars]


@pytest.mark.parametrize(
    ("now", "look"),
    [
        ("open", "open"),
        ("forced_open", "open"),
        ("half_open", "open"),
        ("closed", "unknown"),
        (None, "unknown"),
    ],
)
def test_an_opening_that_nobody_saw_end_goes_on_only_if_the_store_says_so(now, look):
    assert circuit_bars([happening("circuit.opened", "api", 20)], now) == [(look, 20, 60)]


def test_an_opening_that_another_process_ended_ends_there():
    moves = [happening("circuit.half-opened", "api", 20), happening("circuit.closed", "api", 25)]
    assert circuit_bars(moves, None) == [("half-open", 20, 25)]
    assert circuit_bars(moves[:1], "closed") == [("unknown", 20, 60)]
    assert circuit_bars(moves[:1], "half_open") == [("half-open", 20, 60)]
    assert circuit_bars([happening("circuit.opened", "api", -50), moves[1]], "closed") == [("open", 0, 25)]
    assert circuit_bars([happening("circuit.opened", "api", 70)], "open") == [], "after the run"


def test_circuits_that_were_met():
    refused = happening("retry.scheduled", category="circuit_open", circuit="llm")
    assert circuits_met([refused, happening("circuit.opened", "api", 2), happening("x")]) == ["llm", "api"]
    (circuit,) = circuits_of([happening("circuit.opened", "a", 2)] * 2 + [refused])
    assert circuit.opened == 1, "one event is one change"
    forced = happening("circuit.forced", "a", 3, after="forced_open")
    assert circuits_of([forced, happening("circuit.forced", "a", 4, after="disabled")])[0].opened == 1


def test_two_circuits_that_opened_once_each_are_two_circuits():
    told = replace(etl(), circuits=circuits_of([happening("circuit.opened", name, 1) for name in "ab"]))
    assert "2 circuits opened," in headline(told)


def test_what_the_api_knows_and_what_was_noted_here_become_one():
    noted = PassFacts(
        task_runs=[row("a", ("Running", 914), id="a")],
        states=Counter({"Completed": 2}),
        types={"Completed": "COMPLETED"},
        noted={"a"},
        retried=2,
        retries=3,
    )
    noted.happened(happening("retry.scheduled", "ask", 915))
    behind = PassRead(
        Counter({("COMPLETED", "Completed"): 1}),
        retried=1,
        retries=1,
        rows=[row("a", ("Running", 914), id="a"), row("b", ("Running", 914), id="b")],
        happenings=[happening("retry.scheduled", "ask", 915), happening("fallback.used", "ask", 916)],
        counts=Counter({"retry.scheduled": 7}),
    )
    seen = story_of(FACTS, PASSES[2:], {3: [noted, PassFacts()]}, {3: behind}).last
    assert (seen.total, seen.retried, seen.retries) == (2, 2, 3), "the API had not heard of all of it"
    assert [one.id for one in seen.task_runs] == ["a", "b"]
    assert (len(seen.happenings), seen.counts["retry.scheduled"]) == (2, 7)
    ahead = replace(behind, states=Counter({("COMPLETED", "Completed"): 5, ("FAILED", "Odd"): 1}))
    seen = story_of(FACTS, PASSES[2:], {3: [together([noted])]}, {3: ahead}).last
    assert seen.total == 6
    assert seen.outcomes == {"ok": 5, "failed": 1}


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (Start("unknown"), "unknown"),
        (Start("unknown", why="somebody's script"), "unknown: somebody's script"),
        (Start("person", "ada"), "ada"),
        (Start("person", why="in the Prefect UI"), "a person: in the Prefect UI"),
        (Start("automation", "on a file"), "an automation, on a file"),
        (Start("recovery", "root@box", "it is\ntime"), "a recovery by root@box: it is time"),
        (Start("recovery"), "a recovery"),
        (Start("parent"), "its parent flow run"),
    ],
)
def test_who_started_a_pass_in_words(start, said):
    assert started_by(start) == said


def test_ends_that_nobody_reported_and_passes_that_go_on():
    found = passes_of([state("Running", 0), state("Pending", 5), state("Running", 6)])
    told = Story(FACTS, tuple(PassSeen(one, PassFacts()) for one in found))
    rows = cells(markdown(told), "Passes")
    assert [row[3] for row in rows] == ["unknown: its end was not reported", "still running"]
    assert [row[4] for row in rows] == ["", ""]
    assert "![" not in markdown(told), "nothing is there to be drawn"


def many(passes: int) -> Story:
    whole = PassFacts(
        states=Counter({f"S{n}": 1 for n in range(12)}), types={f"S{n}": "FAILED" for n in range(12)}
    )
    made = []
    for number in range(1, passes + 1):
        at = 100.0 * number
        rows = [row(f"ok {n}", ("Running", at + n), ("Completed", at + n + 1)) for n in range(30)]
        rows += [row(f"bad {n}", ("Running", at + n), ("Failed", at + n + 1)) for n in range(30)]
        one = RunPass(number, AT + at, Start("retry button"), AT + at + 50, "Failed", "FAILED", over=True)
        made.append(PassSeen(one, replace(whole, task_runs=rows)))
    return Story(FACTS, tuple(made))


def test_many_passes_are_bounded():
    bands = bands_of(many(40))
    assert [band.part.run_pass.number for band in bands] == [1, 36, 37, 38, 39, 40]
    assert [band.left_out for band in bands] == [0, 34, 0, 0, 0, 0]
    assert len(bands) == MOST_BANDS
    assert len(bands[-1].lanes) == LANES_OF_THE_LAST
    assert any("34 passes" in one for one in texts(draw(many(40))))
    rows = cells(markdown(many(40)), "Passes")
    assert [row[0] for row in rows[:2]] == ["1", "12"]
    assert len(rows) == MOST_PASSES
    assert "and 10 more." in markdown(many(40))
    assert rows[0][-1].endswith("1 S5, 1 S6, 1 S7, 4 others") or "4 others" in rows[0][-1]


def test_beside_what_went_wrong_something_of_what_went_well_has_a_lane():
    (*_, last) = bands_of(many(3))
    labels = [lane.label for lane in last.lanes]
    assert sum(label.startswith("ok") for label in labels) == LANES_OF_THE_LAST // 4
    assert sum(label.startswith("bad") for label in labels) == LANES_OF_THE_LAST - LANES_OF_THE_LAST // 4


@pytest.mark.parametrize(
    ("kind", "name", "outcome"),
    [
        ("COMPLETED", "Completed", "ok"),
        ("COMPLETED", "Cached", "ok"),
        ("COMPLETED", "Degraded", "replaced"),
        ("COMPLETED", "Replayed", "replayed"),
        ("FAILED", "InDoubt", "failed"),
        ("CRASHED", "Crashed", "crashed"),
        ("RUNNING", "Retrying", "running"),
    ],
)
def test_what_a_state_means(kind, name, outcome):
    assert outcome_of(kind, name) == outcome


# -- properties

KINDS = {"Completed": "COMPLETED", "Failed": "FAILED", "Crashed": "CRASHED", "Running": "RUNNING"}
COUNTS = st.dictionaries(st.sampled_from(sorted(KINDS)), st.integers(1, 5_000), max_size=4)
READS = st.lists(COUNTS, min_size=3, max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["created", "settled"])), max_size=12)


@settings(deadline=None, max_examples=60)
@given(READS, CALLS, st.lists(st.sampled_from("xy"), max_size=8))
def test_numbers_count_things_and_not_their_repetitions(reads, letters, openings):
    events = [happening(f"dead-letter.{kind}", name, place) for place, (name, kind) in enumerate(letters)]
    events += [happening("circuit.opened", name, 20 + place) for place, name in enumerate(openings)]
    known = {
        number: PassRead(Counter({(KINDS[name], name): times for name, times in counts.items()}))
        for number, counts in enumerate(reads, start=1)
    }
    known[2].happenings = events * 2
    told = story_of(FACTS, PASSES, {}, known)
    assert [part.seen.total for part in told.passes] == [sum(counts.values()) for counts in reads]
    created = {name for name, kind in letters if kind == "created"}
    assert told.letters == created - {name for name, kind in letters if kind == "settled"}
    assert sum(one.opened for one in told.circuits) == len(openings)
    said = headline(told)
    assert f": {sum(reads[2].values()):,} task run" in said
    if openings:
        many = len(set(openings))
        assert f"{many} circuit{'s' if many > 1 else ''} opened" in said
    for band, counts in zip(bands_of(told), reads, strict=False):
        assert band.outcomes.total() == sum(counts.values())
    rows = cells(markdown(told), "Passes")
    assert [row[5] for row in rows] == [f"{sum(counts.values()):,}" for counts in reads]
