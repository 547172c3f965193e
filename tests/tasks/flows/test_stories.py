"""The pure part of a summary: passes, the list of calls, the picture and the text, of whatever was seen."""

import base64
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefect_resilience.durable.batches.run_passes import RECOVERED, RunOrigin, RunPass, Start, passes_of
from prefect_resilience.tasks.edge.artifacts import artifact_key
from prefect_resilience.tasks.summaries.markdown import describe_start, headline, markdown, text
from prefect_resilience.tasks.summaries.story import CallRow, PassSeen, Story, divide, list_calls
from prefect_resilience.tasks.summaries.timeline import MOST_LANES, draw
from prefect_resilience.telemetry.model import Advice, Happening, PassFacts, StateSeen, TaskRunSeen

AT = 1_800_000_000.0
SECRET = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"
TYPES = {
    "Retrying": "RUNNING",
    "AwaitingRetry": "SCHEDULED",
    "TimedOut": "FAILED",
    "NotReady": "PENDING",
    **dict.fromkeys(("Fallback", "Degraded", "Replayed", "Cached"), "COMPLETED"),
}
BY = "automation 'prefect-resilience: recover crashed runs' in flow run 'recover 1b'"


def state(name, at, message="") -> StateSeen:
    return StateSeen(TYPES.get(name, name.upper()), name, AT + at, message)


def run(name, *states, id=None, **more) -> TaskRunSeen:
    """`states` are pairs of a name and the second at which it came to it."""
    seen = [
        StateSeen(TYPES.get(state, state.upper()), state, AT + at, f"{state} it is") for state, at in states
    ]
    return TaskRunSeen(id or name, name, "1b", seen, **more)


def happening(name, subject="it", at=1.0, /, **payload) -> Happening:
    return Happening(f"{name}-{subject}-{at}", AT + at, name, subject, payload)


def seen(*runs, happenings=(), **more) -> PassFacts:
    found = PassFacts(**more)
    for one in runs:
        found.add(replace(one, events=[]))
    for one in happenings:
        found.add_event(one)
    return found


def story(
    found: PassFacts, state_type="COMPLETED", state="Completed", message="", ended=AT + 10, **more
) -> Story:
    """A run of one pass."""
    only = RunPass(1, AT, Start("unknown"), ended, state, state_type, message, over=True)
    return Story(**{"name": "tidy-newt", "flow": "night", "passes": (PassSeen(only, found),)} | more)


def told(name, passes, **more) -> Story:
    """A run of several passes."""
    return Story("tidy-newt", name, tuple(passes), **more)


def cells(written: str, title: str) -> list[list[str]]:
    part = written.split(f"## {title}\n", 1)[1].split("\n## ")[0]
    rows = [line for line in part.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.removeprefix("|").removesuffix("|").split(" | ")] for row in rows]


def picture(written: str) -> str:
    return base64.b64decode(re.search(r"data:image/svg\+xml;base64,([^)]+)", written)[1]).decode()


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def sentences(written: str) -> list[str]:
    """What started each pass, and how it ended."""
    return [line.removeprefix("- ") for line in written.splitlines() if line.startswith("- Pass ")]


ONCE_AGAIN = run("ask", ("Running", 0), ("AwaitingRetry", 1), ("Retrying", 3), ("Completed", 4))
GONE = run("send", ("Running", 1), ("Failed", 2))
FINE = run("load", ("Pending", 0), ("Running", 0.5), ("Completed", 1))

# -- a run that was killed, recovered and retried

RUN_STATES = [
    state("Scheduled", 0),
    state("Running", 10),
    state("Crashed", 651, "Flow run process exited with non-zero status code -9."),
    state("AwaitingRetry", 662, RECOVERED.format(by=BY, why="its run crashed")),
    state("Running", 685),
    state("Failed", 725, "ValueError: 7 pages are missing"),
    state("AwaitingRetry", 900, "Retry from the UI"),
    state("Pending", 910),
    state("Running", 913),
    state("Completed", 925),
]
PASSES = passes_of(RUN_STATES, RunOrigin("SCHEDULE", "nightly", deployed=True), run_count=3)


def etl() -> Story:
    """The process of the first pass was killed while it loaded page 2, and reported ten minutes later."""
    first = seen(
        run("page 1", ("Running", 11), ("Completed", 12), id="1"),
        run("page 2", ("Running", 13), ("Crashed", 655), id="2"),
        run("page 3", ("Pending", 14), id="3"),
        happenings=[happening("circuit.opened", "api", 45, after="open")],
    )
    second = seen(
        run("page 1", ("Cached", 686), id="4"),
        run("page 4", ("Running", 686), ("Failed", 690), id="5"),
        happenings=[
            happening("circuit.closed", "api", 688, after="closed"),
            happening("circuit.opened", "api", 695, after="open"),
        ],
    )
    third = seen(
        run("page 4", ("Running", 914), ("AwaitingRetry", 915), ("Retrying", 916), ("Fallback", 917), id="6"),
        run("page 5", ("Running", 918), ("Completed", 919), id="7"),
    )
    noted = {("1b", number): facts for number, facts in enumerate((first, second, third), start=1)}
    parts = divide(PASSES, "1b", noted)
    return told("etl", parts, letters=(("l-2", "send", "401 auth"),))


def test_the_headline_tells_of_the_last_pass_and_of_what_is_left():
    assert headline(etl()) == (
        "The run of `etl` ended **Completed** in pass 3, 15 min after it first began: 2 task runs, "
        "1 retried (1 retry), 1 answered by a fallback, 1 dead letter."
    )


def test_each_pass_has_its_cause_and_its_end_and_a_dead_one_ends_at_its_last_sign_of_life():
    written = markdown(etl())
    assert cells(written, "Passes") == [
        ["1", "08:00:10 UTC", "35 s", "3", "0", "1 Completed, 1 Crashed, 1 Pending"],
        ["2", "08:11:25 UTC", "40 s", "2", "0", "1 Cached, 1 Failed"],
        ["3", "08:15:13 UTC", "12 s", "2", "1", "1 Fallback, 1 Completed"],
    ]
    assert sentences(written) == [
        "Pass 1: started by a schedule, nightly; ended: Crashed: Flow run process exited with non-zero "
        "status code -9. (last sign of life 08:00:45 UTC, reported 08:10:51 UTC)",
        f"Pass 2: started by a recovery by {BY}: its run crashed; "
        "ended: Failed: ValueError: 7 pages are missing",
        "Pass 3: started by the Retry button of Prefect's UI; ended: Completed",
    ]


def test_a_pass_whose_process_died_without_a_report_says_so():
    states = [
        state("Running", 0),
        state("AwaitingRetry", 90, RECOVERED.format(by="ann", why="its run crashed")),
        state("Running", 100),
        state("Completed", 110),
    ]
    first = seen(run("page 1", ("Running", 20)))
    ends = told(
        "etl", divide(passes_of(states, run_count=2), "1b", {("1b", 1): first, ("1b", 2): seen(FINE)})
    )
    assert [line.partition("ended: ")[2] for line in sentences(markdown(ends))] == [
        "its process died without a report (last sign of life 08:00:20 UTC)",
        "Completed",
    ]


def test_the_list_of_calls_begins_with_those_that_did_not_end():
    rows = cells(markdown(etl()), "Calls")
    assert [row[:4] for row in rows] == [
        ["`page 2`", "1", "did not end (Crashed)", "1"],
        ["`page 4`", "2", "Failed", "1"],
        ["`page 3`", "1", "Pending", "0"],
        ["`page 4`", "3", "Fallback", "2"],
    ]
    assert [one.name for one in list_calls(etl())][:1] == ["page 2"]


def test_the_time_for_which_a_run_was_parked_is_no_pass_and_not_counted():
    parked = StateSeen("SCHEDULED", "Parked", AT + 20, "Parked until 12:00: ask: 503 unavailable")
    woken = replace(
        parked, at=AT + 3_000, message="Its circuit closed. Parked until 11:00: ask: 503 unavailable"
    )
    again = replace(parked, at=AT + 3_660)
    states = [state("Running", 10), parked, woken, state("Running", 3_620), again]
    states += [
        state("Running", 7_260),
        state("Failed", 7_300),
        StateSeen("SCHEDULED", "AwaitingRetry", AT + 7_310),
    ]
    states += [state("Running", 7_320), state("Completed", 7_330)]
    kept = told("night", [PassSeen(part, PassFacts()) for part in passes_of(states)])
    assert kept.seconds_parked == 7_200
    assert headline(kept).startswith(
        "The run of `night` ended **Completed** in pass 2, 2 min after it first began, without 2 h parked:"
    )
    assert [row[:3] for row in cells(markdown(kept), "Passes")] == [
        ["1", "08:00:10 UTC", "10 s"],
        ["1", "09:00:20 UTC", "40 s"],
        ["1", "10:01:00 UTC", "40 s"],
        ["2", "10:02:00 UTC", "10 s"],
    ]
    first, second, third, fourth = sentences(markdown(kept))
    assert first.endswith("; ended: Parked")
    assert second == (
        "Pass 1: parked 08:00:20 to 09:00:20 UTC, "
        "Its circuit closed. Parked until 11:00: ask: 503 unavailable; ended: Parked"
    )
    assert third.startswith("Pass 1: parked 09:01:00 to 10:01:00 UTC, Parked until 12:00: ")
    assert fourth.startswith("Pass 2: started by ")


def test_the_picture_has_the_last_pass():
    shown = texts(picture(markdown(etl())))
    assert shown.index("page 4") < shown.index("page 5")
    assert not {"page 1", "page 2"} & {*shown}
    # The call that was cut off ends with the last sign of life, not with the report of the crash.
    (span,) = list_calls(etl())[0].spans
    assert (span.look, span.end - span.start) == ("crashed", 32.0)


def test_the_letters_that_wait():
    assert cells(markdown(etl()), "Dead letters") == [["`l-2`", "send", "401 auth"]]
    assert "`prefect-resilience dead-letters replay l-2`" in markdown(etl())
    assert "dead letter" not in headline(replace(etl(), letters=()))


def test_ends_that_nobody_reported_and_passes_that_go_on():
    found = passes_of([state("Running", 0), state("Pending", 5), state("Running", 6)])
    ends = told("etl", [PassSeen(one, PassFacts()) for one in found])
    assert [line.partition("ended: ")[2] for line in sentences(markdown(ends))] == [
        "unknown: its end was not reported, last sign of life 08:00:00 UTC",
        "still running",
    ]
    assert "![" not in markdown(ends), "nothing is there to be drawn"


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
    assert describe_start(start) == said


def test_a_pass_is_that_of_the_source_that_knows_more_of_it():
    noted = seen(run("a", ("Running", 914), ("Completed", 915)))
    runs = [(run("a", ("Running", 914)), 3), (run("b", ("Failed", 914), begun=2), 3)]
    refused = happening("attempt.refused", "b", 916, task_run_id="b")
    *_, last = divide(PASSES, "1b", {("1b", 3): noted}, [*runs, runs[0]], [refused] * 2)
    assert (last.facts.total, last.facts.retried, last.facts.retries) == (2, 1, 1)
    assert [(row.id, row.attempts) for row in last.facts.task_runs.values()] == [("a", 1), ("b", 1)]
    assert last.facts.counts == {"attempt.refused": 1}
    *_, last = divide(PASSES, "1b", {("1b", 3): noted}, runs[:1], [refused])
    assert last.facts == noted


def many(passes: int) -> Story:
    parts = []
    for number in range(1, passes + 1):
        at = 100.0 * number
        rows = [run(f"ok {n}", ("Running", at + n), ("Completed", at + n + 1)) for n in range(30)]
        rows += [run(f"bad {n}", ("Running", at + n), ("Failed", at + n + 1)) for n in range(30)]
        one = RunPass(number, AT + at, Start("retry button"), AT + at + 50, "Failed", "FAILED", over=True)
        parts.append(PassSeen(one, seen(*rows)))
    return told("etl", parts)


def test_many_passes_are_bounded():
    whole = many(90)
    written = markdown(whole)
    rows = cells(written, "Passes")
    assert [row[0] for row in rows[:2]] == ["41", "42"]
    assert "and 40 more." in written


# -- calls


def call(found: PassFacts, name: str) -> CallRow:
    return next(one for one in list_calls(story(found)) if one.name == name)


def test_a_retried_call_says_what_went_wrong_and_how_long_it_waited():
    errors = [
        happening("retry.scheduled", "it", at, task_run_id="ask", code="503", category="unavailable",
                  message="busy")
        for at in (1, 2)
    ]  # fmt: skip
    found = call(seen(ONCE_AGAIN, FINE, happenings=errors), "ask")
    assert (found.attempts, found.ended) == (2, "Completed")
    assert [span.end - span.start for span in found.spans if span.look == "wait"] == [2.0]
    assert found.description == "503 unavailable: busy (x2)"
    assert call(seen(ONCE_AGAIN), "ask").description == "AwaitingRetry it is", (
        "a plain task has its states alone"
    )


def test_a_rejected_call_is_no_attempt():
    refused = {"task_run_id": "ask", "by": "circuit", "category": "circuit_open", "circuit": "llm"}
    asked = run("ask", ("Running", 0), ("AwaitingRetry", 1), ("Retrying", 2), ("Failed", 3))
    whole = seen(asked, happenings=[happening("attempt.refused", "ask", 2, **refused)])
    found = call(whole, "ask")
    assert (found.attempts, found.rejected) == (1, 1)
    assert "1 failed, 1 rejected call" in headline(story(whole))
    assert [span.look for span in found.spans] == ["failed", "wait", "rejected"]
    written = markdown(story(whole))
    assert cells(written, "Calls") == [["`ask`", "Failed", "1", "1"]]
    assert f"- `ask`: {found.description}\n" in written


def test_failures_fallbacks_and_effects_say_what_happened():
    runs = [GONE, run("a", ("Running", 0), ("Fallback", 1)), run("b", ("Running", 0), ("Degraded", 1))]
    runs += [run("s", ("Running", 0), ("Replayed", 1)), run("d", ("Running", 0), ("Failed", 1))]
    events = [
        happening("run.failed", task_run_id="send", code="401", category="auth", message="who?\nreally"),
        happening("fallback.used", task_run_id="a", to="cached", degraded=True, code="X", category="timeout"),
        happening("effect.replayed", "invoice:1", task_run_id="s", external_id="m-1"),
        happening("effect.in-doubt", "invoice:2", task_run_id="d", why="it was cut off"),
        happening("effect.in-doubt", "invoice:3", 2, why="nobody knows"),
    ]
    found = {one.name: one.description for one in list_calls(story(seen(*runs, happenings=events)))}
    assert found == {
        "send": "401 auth: who?",
        "a": "X timeout; fallback cached (degraded)",
        "b": "",
        "s": "effect invoice:1 replayed: m-1",
        "d": "Failed it is; effect invoice:2 in doubt: it was cut off",
        "invoice:3": "effect invoice:3 in doubt: nobody knows",
    }
    assert [*found][:3] == ["send", "d", "invoice:3"], "failed, in doubt, and then the others"


def test_a_call_that_never_began_is_not_one_that_was_cut_off():
    waits = run("waits", ("NotReady", 1))
    whole = seen(waits, run("cut", ("Running", 2)), GONE)
    assert [one.name for one in list_calls(story(whole))] == ["cut", "send", "waits"]
    assert "3 task runs, 1 did not end, 1 failed" in headline(story(whole))


def test_circuits_and_stores():
    events = [
        happening("circuit.opened", "llm:a", before="closed", after="open", reason="5 failures"),
        happening("store.unavailable", "sqlite", reason="locked"),
    ]
    written = markdown(story(seen(happenings=events)))
    assert re.findall("^## (.*)", written, re.MULTILINE) == ["Circuits and stores"]
    rows = cells(written, "Circuits and stores")
    assert [row[1:] for row in rows] == [
        ["llm:a", "closed → open", "5 failures"],
        ["sqlite", "unavailable", "locked"],
    ]


def test_calls_inside_tasks_are_counted_by_function():
    counts = {"calls": 3, "attempts": 4, "rejected": 1, "fallbacks": 0, "failures": 1, "waited": 1.5}
    written = markdown(
        story(seen(happenings=[happening("calls.counted", "ask", last_error="503", **counts)]))
    )
    assert cells(written, "Calls inside tasks") == [["`ask`", "3", "4", "1", "1", "1.5", "503"]]
    assert "fallbacks" not in written, "a column without a value"


def test_rows_are_bounded_and_the_rest_is_counted():
    found = seen(*[run(f"ask-{n}", ("Running", 0), ("Failed", 1)) for n in range(55)])
    found.states["Failed"] = 10_000
    written = markdown(story(found, "FAILED", "Failed"))
    assert "and 9,950 more." in written


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


def test_a_summary_is_never_larger_than_a_page_should_be():
    written = markdown(story(much_of_everything(), "FAILED", "Failed", "m" * 10_000))
    assert len(written.encode()) <= 300_000
    ET.fromstring(picture(written))


# -- the text


def test_the_headline_counts():
    found = seen(
        ONCE_AGAIN, GONE, run("f", ("Running", 0), ("Fallback", 1)), run("r", ("Running", 0), ("Replayed", 1))
    )
    found.counts |= Counter({"effect.in-doubt": 1})
    assert headline(story(found, inner_runs=2, letters=(("l-1", "send", "401"),))) == (
        "The run of `night` ended **Completed** after 10 s: 4 task runs, "
        "1 retried (1 retry), 1 answered by a fallback, 1 replayed, 1 failed, 1 in doubt, "
        "1 dead letter, in 3 flow runs."
    )


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("for url 'http://a/x?b=1&c=2_d'", "for url '`http://a/x?b=1&c=2_d`'"),
        ("a & b", "a & b"),
        ("*now* | <b>", "\\*now\\* ¦ \\<b\\>"),
    ],
)
def test_words_are_escaped_and_addresses_stay_as_they_are(said, written):
    assert text(said) == written


def test_an_artifact_has_a_name_that_a_person_reads():
    names = [artifact_key("run-summary", flow, "tidy-newt", "0-3f2a") for flow in ("ETL: night", "夜")]
    assert names == ["run-summary-etl-night-tidy-newt-3f2a", "run-summary-tidy-newt-3f2a"]


def test_how_to_go_on_is_told_with_its_commands():
    advice = Advice(
        "restart_batch", "it failed", (("Run it again", "prefect-resilience ..."),), "It is automatic."
    )
    written = markdown(story(seen(GONE), "FAILED", "Failed", "went | wrong"), advice)
    assert "**restart\\_batch**: it failed." in written
    assert "```\nprefect-resilience ...\n```" in written
    assert "> went ¦ wrong" in written
    assert "It is automatic." in written


def test_a_run_is_quiet_when_nothing_of_note_happened():
    assert not seen(FINE).remarkable
    assert not seen(FINE, happenings=[happening("plan.branched")]).remarkable
    assert seen(ONCE_AGAIN).remarkable
    assert seen(GONE).remarkable
    assert seen(happenings=[happening("circuit.closed")]).remarkable
    quiet = story(PassFacts())
    assert [quiet.remarkable, replace(quiet, passes=quiet.passes * 2).remarkable] == [False, True]


# -- the picture


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
    found = {one.name: [span.look for span in one.spans] for one in list_calls(story(seen(*runs)))}
    assert found == {
        "ask": ["failed", "wait", "ok"],
        "send": ["failed"],
        "load": ["ok"],
        "swapped": ["replaced"],
        "kept": ["replayed"],
        "at once": ["failed", "failed"],
        "unfinished": ["running"],
        "never begun": [],
    }


def test_the_calls_with_the_most_trouble_have_a_lane():
    whole = many(1)
    labels = [label for label in texts(draw(whole, list_calls(whole))) if label.startswith(("ok", "bad"))]
    assert len(labels) == MOST_LANES
    assert all(label.startswith("bad") for label in labels)


def test_the_axis_says_how_long_it_took():
    for ended, shown in ((36_000, "10 h"), (1_200, "20 min"), (0.5, "500 ms"), (20, "20 s")):
        whole = story(seen(run("a", ("Running", 0), ("Completed", ended))), ended=AT + ended)
        assert shown in texts(draw(whole, list_calls(whole)))


# -- properties

KINDS = {"Completed": "COMPLETED", "Failed": "FAILED", "Crashed": "CRASHED", "Running": "RUNNING"}
COUNTS = st.dictionaries(st.sampled_from(sorted(KINDS)), st.integers(1, 60), max_size=4)
READS = st.lists(COUNTS, min_size=3, max_size=3)


@settings(deadline=None, max_examples=60)
@given(READS, st.lists(st.sampled_from("xy"), max_size=8))
def test_numbers_count_things_and_not_their_repetitions(reads, openings):
    events = [happening("circuit.opened", name, 700 + place) for place, name in enumerate(openings)]
    runs = [
        (run(f"{name}{n}", (name, 0), id=f"{number}{name}{n}"), number)
        for number, counts in enumerate(reads, start=1)
        for name, times in counts.items()
        for n in range(times)
    ]
    whole = told("etl", divide(PASSES, "1b", {}, runs * 2, events * 2))
    assert [part.facts.total for part in whole.passes] == [sum(counts.values()) for counts in reads]
    assert len(whole.happenings) == len(openings)
    assert f": {sum(reads[2].values()):,} task run" in headline(whole) or not reads[2]
    rows = cells(markdown(whole), "Passes")
    assert [row[3] for row in rows] == [f"{sum(counts.values()):,}" for counts in reads]


words = st.text(max_size=60) | st.sampled_from(
    [SECRET, "a|b", "`x`", "</text>", "\x00\x1b[31m", "]]>", "&amp;", "http://a/?b=`&c"]
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
    whole = seen(*found, happenings=happened)
    advice = Advice("manual_only", message, (("Look", message),))
    before = RunPass(
        1, AT - 100, Start("recovery", name, message), AT - 50, name, "CRASHED", message, over=True
    )
    again = RunPass(2, AT, Start("recovery", name, message), AT + 10, name, "FAILED", message, over=True)
    parts = (PassSeen(before, whole), PassSeen(again, whole))
    letters = ((name, message, message),)
    written = markdown(Story(name, name or "f", parts, letters=letters), advice)
    assert SECRET not in written
    assert len(written) < 300_000
    if "data:image" in written:
        svg = picture(written)
        assert SECRET not in svg
        ET.fromstring(svg)
