"""Every number in the report equals what a scripted day produced, read or counted, in every form."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from prefect import flow, tags
from prefect.client.orchestration import get_client
from prefect.events.schemas.events import Event, Resource

from prefect_resilience import ConfigurationError, ErrorBudget, resilient_task
from prefect_resilience.guards.budgets import policy
from prefect_resilience.guards.circuits.registry import forget_circuits
from prefect_resilience.operations import report as report_flow
from prefect_resilience.operations import reports as reading
from prefect_resilience.operations.cli.app import app
from prefect_resilience.operations.reports import api, period_of, report, runs
from prefect_resilience.operations.reports.figures import FleetReport, RunFigures
from prefect_resilience.operations.reports.rendering import html_of, markdown_of
from tests.operations.reports.scripted_day import SECRET, Day, play
from tests.prefect_runs import until

# They count what all of a server has.
pytestmark = [pytest.mark.usefixtures("own_prefect_api"), pytest.mark.timeout(600)]

LINES = 90
FIGURES = list(RunFigures.model_fields)


def check(made: FleetReport, day: Day) -> None:
    """Every number, the zeros as well."""
    assert made.unknown == ()
    assert {name: getattr(made.task_runs, name) for name in FIGURES} == {
        name: day.runs[name] for name in FIGURES
    }
    found = {one.task: one for one in made.tasks}
    for name, counts in day.tasks.items():
        task = found.pop(name)
        assert {key: getattr(task, key) for key in FIGURES} == {key: counts[key] for key in FIGURES}, name
    assert found == {}
    assert {one.code: one.attempts for one in made.errors or ()} == dict(day.codes)
    assert made.categories == dict(day.categories)
    assert made.failed_attempts == sum(day.codes.values())
    assert made.effects.replayed == day.runs["replayed"]
    assert made.effects.in_doubt == 0
    assert made.dead_letters is not None
    assert (made.dead_letters.created, made.dead_letters.waiting) == (day.letters, day.letters)
    circuits = {one.name: one for one in made.circuits or ()}
    assert circuits[day.circuit].openings == day.openings
    assert circuits[day.circuit].complete
    assert 0 < circuits[day.circuit].seconds_open < 600
    nothing_bad = {"crashes": 0, "failures": 0, "recovered": 0, "seconds_in_error": 0, "recovery_time": None}
    assert made.flow_runs.model_dump() == {
        **{"runs": 1, "completed": 1, "failed": 0, "crashed": 0, "cancelled": 0, "parked": 1},
        **nothing_bad,
    }


@pytest.fixture(scope="module")
def day(own_prefect_api, tmp_path_factory):
    """One day for all tests of this file, with a store of its own."""
    with pytest.MonkeyPatch.context() as patch:
        url = f"sqlite:///{tmp_path_factory.mktemp('day')}/store.db"
        patch.setenv("PREFECT_RESILIENCE_STORE_URL", url)
        policy.forget_budgets()
        forget_circuits()
        played = play(LINES)
        _arrived(played)
        yield SimpleNamespace(day=played, url=url, until=datetime.now(UTC))


@pytest.fixture
def at_the_day(day, monkeypatch, own_store):
    """The store of that day again, after the one that each test has."""
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", day.url)
    return day


def _arrived(played: Day, seconds: float = 60.0) -> None:
    """Wait until the API has every run and its events."""
    deadline = time.monotonic() + seconds
    wanted = {"end_time": {"after_": played.since.isoformat()}}
    with get_client(sync_client=True) as client:
        while time.monotonic() < deadline:
            answer = client.request("POST", "/task_runs/count", json={"task_runs": wanted})
            if answer.json() >= played.runs["runs"]:
                break
            time.sleep(0.2)
    # The events of the last runs may come later than the runs.
    until(lambda: report(played.since).unknown == (), seconds)


@pytest.mark.requirement("002.26")
def test_every_number_is_that_of_the_script(at_the_day):
    check(report(at_the_day.day.since, at_the_day.until), at_the_day.day)


def test_and_where_the_server_counts(at_the_day, monkeypatch):
    _in_small_parts(monkeypatch)
    check(report(at_the_day.day.since, at_the_day.until), at_the_day.day)


def _in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "READ", 0)
    monkeypatch.setattr(runs, "EVENTS", 20)
    monkeypatch.setattr(runs, "PAGE", 7)
    monkeypatch.setattr(api, "PAGE", 7)


def test_every_run_is_read_where_events_are_missing(at_the_day, monkeypatch):
    _in_small_parts(monkeypatch)
    monkeypatch.setattr(reading, "final_events", lambda *_: 1)
    made = report(at_the_day.day.since, at_the_day.until)
    assert "lower bounds" in " ".join(made.unknown)
    check(made.model_copy(update={"unknown": ()}), at_the_day.day)


def test_what_is_told_twice_is_counted_once(at_the_day, monkeypatch):
    _in_small_parts(monkeypatch)
    began, ended = at_the_day.day.since.isoformat(), at_the_day.until.isoformat()
    period = {"end_time": {"after_": began, "before_": ended}}
    with get_client(sync_client=True) as client:
        body = {"task_runs": period, "limit": 200}
        rows = client.request("POST", "/task_runs/filter", json=body).json()
        failed = next(row for row in rows if row["state_name"] == "Failed")
        retried = next(row for row in rows if row["state_name"] == "Completed" and row["run_count"] > 1)
        for row, name in ((failed, "Running"), (retried, "Completed")):
            resource = {
                "prefect.resource.id": f"prefect.task-run.{row['id']}",
                "prefect.resource.name": row["name"],
            }
            event = Event(
                event=f"prefect.task-run.{name}", resource=Resource(resource), occurred=row["end_time"]
            )
            client.request("POST", "/events", json=[event.model_dump(mode="json")])
    about = {"resource": {"id": [f"prefect.task-run.{retried['id']}"]}, "event": {"prefix": ["prefect."]}}
    until(lambda: _events(about) == 2 + 2 * retried["run_count"])
    check(report(at_the_day.day.since, at_the_day.until), at_the_day.day)


def _events(about: dict[str, object]) -> int:
    with get_client(sync_client=True) as client:
        return client.request("POST", "/events/filter", json={"filter": about, "limit": 1}).json()["total"]


def test_a_period_that_ends_before_it_has_nothing(at_the_day):
    since = at_the_day.day.since
    made = report(since - timedelta(hours=3), since - timedelta(hours=2))
    assert made.task_runs == RunFigures()
    assert made.task_runs.retry_rate is None
    assert made.errors == ()
    assert made.failed_attempts == 0


def test_a_run_belongs_to_the_period_in_which_it_ended(at_the_day):
    begin, end = at_the_day.day.since, at_the_day.until
    middle = begin + (end - begin) / 2
    halves = report(begin, middle), report(middle, end)
    assert sum(half.task_runs.runs for half in halves) == at_the_day.day.runs["runs"]
    assert sum(half.task_runs.attempts for half in halves) == at_the_day.day.runs["attempts"]


def test_what_the_package_runs_for_itself_is_in_no_figure(own_store):
    @flow
    def housekeeping(ends: bool):
        if not ends:
            raise ValueError("the store is away")

    begin = datetime.now(UTC)
    with tags("prefect-resilience"):
        for ends in (True, False):
            housekeeping(ends, return_state=True)
    housekeeping(False, return_state=True)
    until(lambda: report(begin).flow_runs.runs == 1, 30.0)
    made = report(begin)
    assert (made.flow_runs.failed, made.flow_runs.failures) == (1, 1)


def test_what_nobody_can_know_is_unknown_and_not_zero(at_the_day, monkeypatch):
    monkeypatch.setattr(reading, "final_events", lambda *_: 0)
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", "sqlite:////proc/no/such/place.db")
    forget_circuits()
    made = report(at_the_day.day.since, at_the_day.until)
    assert made.task_runs.runs == at_the_day.day.runs["runs"]
    for name in ("failed_attempts", "errors", "circuits", "dead_letters", "budgets"):
        assert getattr(made, name) is None, name
    assert made.effects.in_doubt is None
    said = " ".join(made.unknown)
    assert "no events of this period" in said
    assert "the store is unavailable" in said
    assert "| failed attempts | unknown |" in markdown_of(made)


def test_every_rendering_has_the_numbers_and_no_secret(at_the_day):
    made = report(at_the_day.day.since, at_the_day.until)
    runs = at_the_day.day.runs
    for text in (markdown_of(made), html_of(made)):
        assert f"{runs['runs']:,} task runs" in text
        assert "ask model" in text
        assert SECRET not in text
        assert len(text) < 200_000
    ElementTree.fromstring(html_of(made).split("<body>")[1].join(["<body>", ""]).split("</html>")[0])
    assert FleetReport.model_validate_json(made.model_dump_json()) == made


def test_hostile_names_stay_names(at_the_day):
    made = report(at_the_day.day.since, at_the_day.until)
    hostile = made.tasks[0].model_copy(update={"task": "a|b<script>alert(1)</script>\n# x `y` [z](http://w)"})
    spoilt = made.model_copy(update={"tasks": (hostile,)})
    assert "<script>" not in html_of(spoilt)
    text = markdown_of(spoilt)
    assert "<script>" not in text
    assert "\n# x" not in text
    row = next(line for line in text.splitlines() if "alert" in line)
    assert row.count("|") == 11


def test_the_flow_writes_an_artifact(at_the_day):
    said = report_flow(since=at_the_day.day.since, until=at_the_day.until)
    assert said["task_runs"]["runs"] == at_the_day.day.runs["runs"]
    with get_client(sync_client=True) as client:
        wanted = {"artifacts": {"key": {"any_": ["fleet-report"]}}}
        (artifact,) = client.request("POST", "/artifacts/latest/filter", json=wanted).json()
    assert artifact["type"] == "markdown"
    assert "| retry rate |" in artifact["data"]
    assert SECRET not in json.dumps(artifact)


def test_the_command_says_the_same(at_the_day, capsys, tmp_path):
    begin = at_the_day.day.since.isoformat()
    end = at_the_day.until.isoformat()
    page, text = tmp_path / "r.html", tmp_path / "r.md"
    words = f"report --since {begin} --until {end} --json --html {page} --markdown {text}"
    assert app(words.split(), exit_on_error=False, result_action="return_value") == 0
    said = FleetReport.model_validate_json(capsys.readouterr().out)
    check(said, at_the_day.day)
    assert page.read_text().startswith("<!doctype html>")
    assert text.read_text().startswith("# Fleet report")
    app(["report", "--since", begin, "--until", end], exit_on_error=False, result_action="return_value")
    shown = capsys.readouterr().out
    assert "retry rate" in shown
    assert "behind" in shown
    with pytest.raises(ConfigurationError, match="cannot be written"):
        app(["report", "--html", str(tmp_path / "no" / "r.html")], exit_on_error=False)
    with pytest.raises(ConfigurationError, match="--since 'soon' is not a time"):
        app(["report", "--since", "soon"], exit_on_error=False)


def test_error_budgets_are_in_the_report(own_store):
    policy.forget_budgets()

    @resilient_task(name="budgeted", retry=None, error_budget=ErrorBudget(objective=0.5, name="in-report"))
    def work(fails):
        if fails:
            raise ValueError

    @flow
    def scenario():
        for fails in (True, False, False):
            work(fails, return_state=True)

    begin = datetime.now(UTC)
    scenario()
    (budget,) = report(begin).budgets or [None]
    assert (budget.name, budget.good, budget.bad) == ("in-report", 2, 1)


@pytest.mark.parametrize(
    ("since", "until"),
    [
        (datetime(2026, 1, 2), datetime(2026, 1, 1)),
        (timedelta(hours=1), timedelta(hours=2)),
        (timedelta(hours=-1), None),
    ],
)
def test_a_period_that_is_none(since, until):
    with pytest.raises(ConfigurationError, match="the report's period begins at"):
        period_of(since, until, datetime(2026, 6, 1, tzinfo=UTC))


def test_periods():
    now = datetime(2026, 6, 1, tzinfo=UTC)
    assert period_of(None, None, now).since == now - timedelta(days=1)
    assert period_of(timedelta(hours=2), datetime(2027, 1, 1), now).until == now
    parts = period_of(timedelta(hours=2), None, now).parts(7)
    assert parts[0].since == now - timedelta(hours=2)
    assert parts[-1].until == now
    assert all(a.until == b.since for a, b in pairwise(parts))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_thousand_runs(own_store, tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"sqlite:///{tmp_path}/store.db")
    forget_circuits()
    played = play(1_000)
    assert played.runs["runs"] > 1_000
    _arrived(played, 300)
    check(report(played.since), played)
    monkeypatch.setattr(runs, "READ", 0)
    check(report(played.since), played)
