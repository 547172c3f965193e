"""A night of an ETL on two workers: one of its runs is killed, recovered by the automation, fails, and is run
again by the Retry button. Every number on its summary and in the report is counted from the API."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State, TaskRun
from prefect.client.schemas.sorting import TaskRunSort
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from prefect_resilience.dead_letters import list as list_letters
from prefect_resilience.operations.installation import install
from prefect_resilience.operations.reports import report
from prefect_resilience.operations.reports.figures import FleetReport
from tests.free_ports import free_port
from tests.operations.installation.conftest import Programs, answers, wait_for

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

PAGES, LABELS, MISSING = 100, 6, 7
RETRY_BUTTON = {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retry from the UI"}
PROGRAM = '''
import os
import time
from pathlib import Path

from prefect import unmapped
from prefect.task_runners import ThreadPoolTaskRunner

from prefect_resilience import Backoff, CircuitBreaker, Fallback, Retry, resilient_flow, resilient_task

LABELS = CircuitBreaker("labels", failure_threshold=3, open_for=2)


@resilient_task(retry=Retry(attempts=3, backoff=Backoff.constant(0.1)), task_run_name="page {number}")
def page(number, folder):
    tried = Path(folder, f"tried-{number}")
    if number % 10 == 3 and not tried.exists():
        tried.touch()
        raise ConnectionError("503 Service Unavailable")
    time.sleep(0.3)
    Path(folder, f"done-{number}").touch()
    return number


@resilient_task(retry=None, circuit=LABELS, fallback=Fallback.value("unknown", degraded=True))
def label(number, up):
    if not up:
        raise ConnectionError("503 Service Unavailable")
    return f"label {number}"


@resilient_task(retry=None, dead_letter=True)
def publish(number, folder):
    if not Path(folder, "up").exists():
        raise ConnectionError("the warehouse is away")


@resilient_flow(
    persist_result=True,
    recovery={"attempts": 1, "backoff": "none"},
    task_runner=ThreadPoolTaskRunner(max_workers=8),
)
def etl(folder: str):
    """Pages are fetched, labelled and published."""
    Path(folder, "pid").write_text(str(os.getpid()))
    up = Path(folder, "up").exists()
    pages = page.map(range(100), unmapped(folder)).result()
    labels = [label(number, up) for number in pages[:6]]
    missing = sum(publish(number, folder, return_state=True).is_failed() for number in pages[:7])
    if missing:
        raise ValueError(f"{missing} pages are missing")
    return labels
'''


@dataclass
class Night:
    """The server, and the two runs on it."""

    url: str
    client: SyncPrefectClient
    killed: UUID
    other: UUID
    since: datetime
    store: str

    def states(self, run: UUID) -> list[State]:
        return sorted(self.client.read_flow_run_states(run), key=lambda state: state.timestamp)

    def task_runs(self, run: UUID) -> list[TaskRun]:
        """Every task run of a run."""
        found: list[TaskRun] = []
        mine = FlowRunFilter(id=FlowRunFilterId(any_=[run]))
        by = {"flow_run_filter": mine, "limit": 200, "sort": TaskRunSort.ID_DESC}
        while page := self.client.read_task_runs(**by, offset=len(found)):
            found += page
        return found

    def states_of_task_run(self, task_run: UUID) -> list[dict[str, Any]]:
        answer = self.client.request("GET", "/task_run_states/", params={"task_run_id": str(task_run)})
        return sorted(answer.json(), key=lambda state: state["timestamp"])

    def events(self, name: str) -> list[dict[str, Any]]:
        about = {"event": {"name": [f"prefect-resilience.{name}"]}}
        return self.client.request("POST", "/events/filter", json={"filter": about, "limit": 50}).json()[
            "events"
        ]

    def summary(self, run: UUID) -> dict[str, Any]:
        """The run's latest summary, with its id as `latest_id`."""
        asked = {"artifacts": {"flow_run_id": {"any_": [str(run)]}, "key": {"like_": "run-summary"}}}
        return self.client.request("POST", "/artifacts/latest/filter", json=asked).json()[0]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    started = Programs(tmp_path_factory.mktemp("programs"))
    yield started
    started.end()


@pytest.fixture(scope="module")
def night(programs: Programs) -> Iterator[Night]:
    port, folder = free_port(), programs.folder
    url = f"http://127.0.0.1:{port}"
    environment = {
        "PREFECT_HOME": str(folder / "home"),
        "PREFECT_API_URL": f"{url}/api",
        "PREFECT_UI_API_URL": f"{url}/api",
        "PREFECT_RESILIENCE_STORE_URL": f"sqlite:///{folder}/fleet.db",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_WORKER_QUERY_SECONDS": "1",
    }
    programs.start("server", "start", "--port", str(port), **environment)
    wait_for(lambda: answers(f"{url}/api/health"))
    home = {PREFECT_API_URL: environment["PREFECT_API_URL"], PREFECT_HOME: folder / "home"}
    with temporary_settings(home), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_RESILIENCE_STORE_URL", environment["PREFECT_RESILIENCE_STORE_URL"])
        since = datetime.now(UTC)
        install()
        for name in ("one", "two"):
            words = ("worker", "start", "--type", "process", "--pool", "resilience", "--name", name)
            programs.start(*words, "--limit", "3", **environment)
        with get_client(sync_client=True) as client, ThreadPoolExecutor(1) as beside:
            # The thread of the tests has an event loop once a browser is open.
            deployment = beside.submit(copy_context().run, deployed, folder).result()
            yield played(client, deployment, folder, url, since)


def deployed(folder: Path) -> UUID:
    (folder / "program.py").write_text(PROGRAM)
    source: Any = flow.from_source(str(folder), "program.py:etl")
    return source.deploy(
        name="nightly", work_pool_name="resilience", print_next_steps=False, ignore_warnings=True
    )


def played(client: SyncPrefectClient, deployment: UUID, folder: Path, url: str, since: datetime) -> Night:
    runs: list[UUID] = []
    for name in ("north", "south"):
        (folder / name).mkdir()
        given = {"folder": str(folder / name)}
        runs.append(client.create_flow_run_from_deployment(deployment, parameters=given, name=name).id)
    killed, other = runs
    wait_for(lambda: len([*(folder / "north").glob("done-*")]) > 40)
    os.kill(int((folder / "north" / "pid").read_text()), signal.SIGKILL)
    for run in runs:
        wait_for(lambda run=run: client.read_flow_run(run).state.is_failed(), 300)
    (folder / "north" / "up").touch()
    # A worker with a limit breaks down if a run begins again that it is not done with.
    failed = client.read_flow_run(killed).state
    wait_for(lambda: datetime.now(UTC) - failed.timestamp > timedelta(seconds=15))
    pressed = client.request("POST", f"/flow_runs/{killed}/set_state", json={"state": RETRY_BUTTON})
    assert pressed.json()["status"] == "ACCEPT"
    wait_for(lambda: client.read_flow_run(killed).state.is_completed(), 200)
    made = Night(url, client, killed, other, since, os.environ["PREFECT_RESILIENCE_STORE_URL"])
    wait_for(lambda: "| 3 |" in made.summary(killed)["data"])
    wait_for(lambda: is_all_told(made))
    # An automation replays letters once the circuit closes.
    wait_for(lambda: all(run.state.is_final() for run in client.read_flow_runs()))
    return made


def is_all_told(night: Night) -> bool:
    """Whether the API, which hears of task runs later than of flow runs, knows all of the last pass."""
    last = [run for run in night.task_runs(night.killed) if run.flow_run_run_count == 3]
    return len(last) == PAGES + LABELS + MISSING and all(run.state.is_final() for run in last)


@pytest.fixture(autouse=True)
def at_its_store(night: Night, own_store: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of the night again, after the one that each test has."""
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", night.store)


# -- counted from the API


def passes_of(night: Night) -> list[tuple[State, State]]:
    """Of each pass of the killed run, the state in which it began and the one in which it ended."""
    found: list[tuple[State, State]] = []
    began: State | None = None
    for state in night.states(night.killed):
        if state.is_running():
            began = began or state
        elif state.is_final() and began is not None:
            found.append((began, state))
            began = None
    return found


def counted(night: Night) -> list[list[list[str]]]:
    """Of each pass, the names of the states that each of its task runs had, in their order."""
    begins = [began.timestamp for began, _ in passes_of(night)]
    found: list[list[list[str]]] = [[] for _ in begins]
    for run in night.task_runs(night.killed):
        states = night.states_of_task_run(run.id)
        first = datetime.fromisoformat(states[0]["timestamp"].replace("Z", "+00:00"))
        found[sum(begin <= first for begin in begins) - 1].append([state["name"] for state in states])
    return found


def rows_of(markdown: str, title: str) -> list[list[str]]:
    part = markdown.split(f"## {title}\n", 1)[1].split("\n## ")[0]
    rows = [line for line in part.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def tally(text: str) -> dict[str, int]:
    """What "100 Completed, 6 Degraded" counts."""
    return {name: int(count.replace(",", "")) for count, name in re.findall(r"(\d[\d,]*) (\w+)", text)}


def test_both_workers_are_still_there(night: Night, programs: Programs) -> None:
    assert [program.poll() for program in programs.running] == [None] * 3


def test_no_task_run_is_left_as_if_it_went_on(night: Night) -> None:
    for run in (night.killed, night.other):
        left = Counter(one.state_name for one in night.task_runs(run) if not one.state.is_final())
        assert left == {}


def test_the_summary_names_three_passes_with_their_causes_and_ends(night: Night) -> None:
    first, second, third = rows_of(night.summary(night.killed)["data"], "Passes")
    assert [first[0], second[0], third[0]] == ["1", "2", "3"]
    assert second[2].startswith("a recovery by ")
    assert "recover" in second[2]
    assert third[2] == "the Retry button of Prefect's UI"
    assert first[3].startswith("Crashed: ")
    assert second[3].startswith("Failed: ")
    assert second[3].endswith(f"ValueError: {MISSING} pages are missing")
    assert third[3] == "Completed"
    for row, (began, _) in zip((first, second, third), passes_of(night), strict=True):
        assert row[1].startswith(f"{began.timestamp:%H:%M:%S} UTC")


def test_every_number_of_the_summary_is_that_of_the_api(night: Night) -> None:
    markdown = night.summary(night.killed)["data"]
    passes = counted(night)
    assert sum(map(len, passes)) == len(night.task_runs(night.killed))
    for row, names in zip(rows_of(markdown, "Passes"), passes, strict=True):
        retries = sum(states.count("Retrying") for states in names)
        assert [row[5], row[6]] == [str(len(names)), str(retries)]
        assert tally(row[7]) == Counter(states[-1] for states in names)
    letters = [one for one in list_letters(status=None) if one.flow_run_id == str(night.killed)]
    openings = [
        one
        for one in night.events("circuit.opened")
        if any(night.killed.hex in about["prefect.resource.id"].replace("-", "") for about in one["related"])
    ]
    headline = markdown.splitlines()[2]
    told = {
        "task runs": len(passes[-1]),
        "answered by a fallback": sum(states[-1] in ("Fallback", "Degraded") for states in passes[-1]),
        "retried": sum("Retrying" in states for states in passes[-1]),
        "dead letters": sum(letter.status == "waiting" for letter in letters),
    }
    for what, number in told.items():
        assert (f"{number} {what}" in headline) == bool(number), headline
    assert bool(openings) == ("circuit opened" in headline), headline
    assert {letter.status for letter in letters} == {"settled"}, "its last pass made those calls"


def test_every_number_of_the_report_is_that_of_the_api(night: Night) -> None:
    made: FleetReport = report(since=night.since, until=datetime.now(UTC) + timedelta(seconds=1))
    runs = [run for one in (night.killed, night.other) for run in night.task_runs(one)]
    names = {run.id: [state["name"] for state in night.states_of_task_run(run.id)] for run in runs}
    assert made.task_runs.runs == len(runs)
    assert made.task_runs.crashed == sum(run.state.is_crashed() for run in runs)
    assert made.task_runs.failed == sum(run.state.is_failed() for run in runs)
    assert made.task_runs.fallbacks == sum(run.state_name in ("Fallback", "Degraded") for run in runs)
    assert made.task_runs.retried == sum("Retrying" in one for one in names.values())
    ended_badly = [state for run in (night.killed, night.other) for state in night.states(run)]
    assert made.flow_runs.crashes == 1
    assert made.flow_runs.failures == sum(state.is_failed() for state in ended_badly)
    assert made.flow_runs.recovered == 1
    (crash,) = (one for one in made.bad_ends or () if one.kind == "CRASHED")
    assert crash.flow_run_id == str(night.killed)
    assert "recover" in str(crash.by)
    letters = list_letters(status=None)
    assert made.dead_letters is not None
    assert made.dead_letters.created == len(letters)
    counted_letters = Counter(letter.status for letter in letters)
    assert made.dead_letters.settled == counted_letters["settled"] == MISSING
    # Once the circuit closes, an automation replays what waits, in vain: one of them may be at it.
    told = (made.dead_letters.waiting, made.dead_letters.replaying)
    assert sum(told) == counted_letters["waiting"] + counted_letters["replaying"] == MISSING
    (circuit,) = made.circuits or ()
    assert circuit.openings == len(night.events("circuit.opened"))


@pytest.mark.parametrize("ui", ["v2", "v1"])
def test_both_uis_show_the_story(night: Night, browser: Any, tmp_path: Path, ui: str) -> None:
    context = browser.new_context(viewport={"width": 1400, "height": 1500}, color_scheme="dark")
    context.set_default_timeout(60_000)
    page = context.new_page()
    artifact = night.summary(night.killed)["latest_id"]
    page.goto(f"{night.url}{'/v2' if ui == 'v2' else ''}/artifacts/artifact/{artifact}")
    for text in ("Passes", "the Retry button of Prefect", f"{MISSING} pages are missing"):
        page.get_by_text(text).first.wait_for()
    shown = page.locator("img[src^='data:image/svg']").first
    shown.wait_for()
    assert shown.evaluate("image => image.complete && image.naturalWidth > 300")
    page.screenshot(path=str(tmp_path / f"story-{ui}.png"), animations="disabled")
    context.close()
