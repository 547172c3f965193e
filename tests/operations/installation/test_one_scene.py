"""A night of an ETL on real workers: calls are rejected, a worker is killed and its run recovered by force,
letters are left, answers are degraded. Every number that a person sees of it is counted here by other means:
from the Prefect API, from the store, and from the lines that the functions leave in a file."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect import flow

from prefect_resilience.stores import open_store
from tests.operations.installation.conftest import Programs
from tests.prefect_runs import until

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

ROOT = Path(__file__).parents[3]
RETRY_BUTTON = {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retry from the UI"}
WAITING = {"batches", "budgets", "circuits", "letters"}
REJECTING = ("open", "forced_open")
Row = dict[str, Any]


@dataclass
class Night:
    """The API and the store, and what the screens showed. `runs`: every task run, with its `states`."""

    api: httpx.Client
    environment: dict[str, str]
    folder: Path
    since: str
    north: str = ""
    south: str = ""
    runs: list[Row] = field(default_factory=list[Row])
    report: Row = field(default_factory=dict[str, Any])
    page: Row = field(default_factory=dict[str, Any])

    def post(self, path: str, **body: Any) -> Any:
        return self.api.post(path, json=body).raise_for_status().json()

    def states(self, kind: str, run: str) -> list[Row]:
        states = self.api.get(f"{kind}_run_states/", params={f"{kind}_run_id": run}).json()
        return sorted(states, key=lambda state: state["timestamp"])

    def events(self, *names: str) -> list[Row]:
        names = tuple(name if name.startswith("prefect.") else f"prefect-resilience.{name}" for name in names)
        page = self.post("events/filter", filter={"event": {"name": names}}, limit=50)
        events = page["events"]
        while page["next_page"]:
            page = self.api.get(page["next_page"]).json()
            events += page["events"]
        return events

    def stored(self, prefix: str) -> list[Row]:
        store = open_store(self.environment["PREFECT_RESILIENCE_STORE_URL"])
        return [document.value for _, document in store.scan(prefix, None, 1_000)]

    def calls(self) -> Counter[str]:
        """How often each function was called."""
        lines = [line for run in self.folder.glob("*/calls") for line in run.read_text().splitlines()]
        return Counter(re.sub(r" \d+$", "", line).replace(" ", "_") for line in lines)

    def ask(self, *words: str) -> Any:
        """The answer of a command."""
        command = [sys.executable, "-m", "prefect_resilience", *words, "--json"]
        done = subprocess.run(command, env=self.environment, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def summary(self, run: str) -> Row:
        about = {"flow_run_id": {"any_": [run]}, "key": {"like_": "run-summary"}}
        return self.post("artifacts/latest/filter", artifacts=about)[0]

    def has_released(self, processes: int) -> bool:
        """Whether the workers have released so many processes: these write no summary any more."""
        return len(self.events("prefect.worker.executed-flow-run")) == processes

    def has_all_ends(self) -> bool:
        """Whether the API has heard of each end of a task run but the one that the recovery closed."""
        runs = Counter(run["state_name"] for run in self.post("task_runs/filter", limit=200))
        ends = self.events(*(f"prefect.task-run.{name}" for name in runs if name != "Crashed"))
        return runs["Crashed"] == 1 and len(ends) == runs.total() - 1


@pytest.fixture(scope="module")
def night(programs: Programs, server: dict[str, str]) -> Iterator[Night]:
    often = {"PREFECT_WORKER_QUERY_SECONDS": "1", "PREFECT_WORKER_HEARTBEAT_SECONDS": "2"}
    environment = {**server, **often, "PYTHONPATH": str(ROOT)}
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    with httpx.Client(base_url=server["PREFECT_API_URL"], timeout=60) as api:
        made = Night(api, {**plain, **environment}, programs.folder, datetime.now(UTC).isoformat())
        play(made, programs, environment)
        made.runs = made.post("task_runs/filter", limit=200)
        for run in made.runs:
            run["states"] = [state["name"] for state in made.states("task", run["id"])]
        made.report, made.page = made.ask("report", "--since", made.since), shown(made)
        yield made


def play(night: Night, programs: Programs, environment: dict[str, str]) -> None:
    def start(name: str) -> str:
        (night.folder / name).mkdir()
        parameters = {"folder": str(night.folder / name)}
        path = f"deployments/{deployment}/create_flow_run"
        return night.post(path, name=name, parameters=parameters, state={"type": "SCHEDULED"})["id"]

    def work(name: str) -> Any:
        pool = ("--type", "process", "--pool", "night", "--name", name)
        return programs.start("worker", "start", *pool, **environment)

    night.post("work_pools/", name="night", type="process")
    source: Any = flow.from_source(str(ROOT), "tests/operations/installation/night.py:etl")
    quiet = {"print_next_steps": False, "ignore_warnings": True}
    deployment = source.deploy(name="nightly", work_pool_name="night", **quiet)
    night.north, worker = start("north"), work("one")
    hangs = {"name": {"any_": ["last page"]}, "state": {"type": {"any_": ["RUNNING"]}}}
    until(lambda: worker.poll() is None and night.post("task_runs/count", task_runs=hangs) == 1, 100)
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    os.kill(int((night.folder / "north" / "pid").read_text()), signal.SIGKILL)
    (night.folder / "north" / "killed").touch()
    night.south = start("south")
    work("two")
    force = ("--force", "--yes", "--reason", "the machine is gone")
    assert night.ask("batches", "recover", night.north, *force)["action"] == "rescheduled"
    recovered = time.monotonic()
    until(lambda: night.has_released(2), 200)
    for name in ("north", "south"):
        (night.folder / name / "up").touch()
        night.ask("circuits", "close", f"warehouse:{night.folder / name}", "--reason", "it is open")
    # The end of a run closes the task runs of a pass that is over for half a minute.
    until(lambda: time.monotonic() > recovered + 31, 100)
    night.post(f"flow_runs/{night.north}/set_state", state=RETRY_BUTTON)
    until(lambda: night.has_released(3), 200)
    letter = night.ask("dead-letters", "list", "--status", "waiting")[0]
    night.ask("dead-letters", "replay", letter["id"], "--yes")
    until(night.has_all_ends, 100)
    assert programs.running[-1].poll() is None, "the other worker goes on"


def shown(night: Night) -> Row:
    """What the page of the dashboard shows, from its rows."""
    command = [sys.executable, "-m", "prefect_resilience", "dashboard", "--port", "0", "--json"]
    with subprocess.Popen(command, env=night.environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = json.loads((process.stdout or sys.stdin).readline())["url"]
            assert "fleet.db" in httpx.get(url).raise_for_status().text
            for _ in range(120):
                parts: Row = httpx.get(f"{url}/state", timeout=60).json()["set"]
                if parts.get("summary", {}).keys() >= WAITING:
                    return parts
                time.sleep(0.5)
        finally:
            process.terminate()
    raise AssertionError("the dashboard did not read everything")


def outcomes_of(runs: list[Row], rejected: Counter[str]) -> dict[str, int]:
    names = Counter(run["state_name"] for run in runs)
    retried = [run for run in runs if "AwaitingRetry" in run["states"]]
    return {
        "runs": len(runs),
        "refused": sum(rejected[run["id"]] for run in runs),
        "succeeded": names["Completed"],
        "retried": len(retried),
        "recovered": sum(run["state_name"] == "Completed" for run in retried),
        "fallbacks": names["Degraded"],
        "degraded": names["Degraded"],
        "replayed": names["Replayed"],
        "failed": names["Failed"],
        "crashed": names["Crashed"],
        "other": names["Cached"],
    }


def rejections(night: Night) -> Counter[str]:
    """The rejected calls of each task run."""
    return Counter(event["payload"]["task_run_id"] for event in night.events("attempt.refused"))


def test_the_report_counts_task_runs_as_the_api_does_and_attempts_as_the_functions(night: Night) -> None:
    calls, rejected = night.calls(), rejections(night)
    for row in night.report["tasks"]:
        runs = [run for run in night.runs if run["task_key"].startswith(f"{row['task']}-")]
        expected = {**outcomes_of(runs, rejected), "attempts": calls[row["task"]]}
        assert expected == {name: row[name] for name in expected}
        # Each start was a call, or rejected, or found what was there.
        starts = sum(run["run_count"] for run in runs)
        assert starts == row["attempts"] + row["refused"] + row["other"] + row["replayed"]
    total = night.report["task_runs"]
    expected = {**outcomes_of(night.runs, rejected), "attempts": calls.total() - calls["mirror"]}
    assert expected == {name: total[name] for name in expected}
    assert min(expected.values()) > 0
    failed = total["attempts"] - total["succeeded"] - total["crashed"]
    assert night.report["failed_attempts"] == failed == len(night.events("attempt.failed"))
    (error,) = night.report["errors"]
    assert (error["attempts"], error["rate"]) == (failed, failed / total["attempts"])
    assert night.report["effects"] == {"replayed": len(night.events("effect.replayed")), "in_doubt": 0}
    assert total["failed"] == len(night.events("run.failed"))
    assert night.report["unknown"] == []


def test_flow_runs_batches_and_budgets(night: Night) -> None:
    ends = Counter(night.states("flow", run)[-1]["type"] for run in (night.north, night.south))
    states = Counter(
        state["type"] for run in (night.north, night.south) for state in night.states("flow", run)
    )
    figures, page = night.report["flow_runs"], night.page["summary"]["batches"]
    # The package's own run, which replayed a letter, is none of the user's.
    assert figures["runs"] == ends.total() == night.post("flow_runs/count") - 1
    assert (figures["completed"], figures["failed"]) == (ends["COMPLETED"], ends["FAILED"])
    assert (figures["crashes"], figures["failures"], figures["recovered"]) == (0, states["FAILED"], 1)
    audits = Counter(
        entry["outcome"] for audit in night.stored("effects-audit/") for entry in audit["entries"]
    )
    assert night.report["batches"] == audits == {"rescheduled": 1}
    listed = {batch["batch_id"]: batch for batch in night.ask("batches", "list")}
    effects = Counter((effect["batch"], effect["state"]) for effect in night.stored("effects/"))
    assert effects == {(batch, "done"): row["total"] for batch, row in listed.items()}
    # The one that failed after its effects needs a person, on each screen.
    assert (
        [batch for batch, row in listed.items() if row["open"]] == [night.south] == [*night.page["batches"]]
    )
    assert (page["open"], page["failed"], page["in_doubt"], page["effects"]) == (1, 1, 0, 0)
    assert night.page["batches"][night.south]["done"] == effects[night.south, "done"]
    labels = Counter(run["state_name"] for run in night.runs if run["task_key"].startswith("label-"))
    (budget,) = night.report["budgets"]
    shown = night.page["budgets"]["labels"]
    assert (budget["good"] + budget["bad"], budget["bad"]) == (labels.total(), labels["Degraded"])
    assert (shown["runs"], shown["bad"]) == (labels.total(), labels["Degraded"])


def test_dead_letters(night: Night) -> None:
    stored = {letter["id"]: letter for letter in night.stored("dead-letter:")}
    listed = {letter["id"]: letter for letter in night.ask("dead-letters", "list")}
    statuses = Counter(letter.get("status", "waiting") for letter in stored.values())
    assert statuses == {"settled": 6, "waiting": 5, "replayed": 1}
    assert listed.keys() == stored.keys()
    assert Counter(letter["status"] for letter in listed.values()) == statuses
    figures, page = night.report["dead_letters"], night.page["summary"]["letters"]
    assert figures["created"] == len(stored) == len(night.events("dead-letter.created"))
    assert {status: figures[status] for status in statuses} == statuses
    assert figures["replays_succeeded"] == statuses["replayed"] == len(night.events("dead-letter.replayed"))
    assert page["waiting"] == statuses["waiting"]
    calls = [call for group in night.page["letters"].values() for call in group["calls"]]
    waiting = {key: letter["attempts"] for key, letter in listed.items() if letter["status"] == "waiting"}
    assert {call["id"]: call["attempts"] for call in calls} == waiting
    assert set(waiting.values()) == {0, 1}, "a rejected call is no attempt"


def test_circuits(night: Night) -> None:
    listed = {circuit["name"]: circuit for circuit in night.ask("circuits", "list")}
    figures = {circuit["name"]: circuit for circuit in night.report["circuits"]}
    events = Counter(event["resource"]["prefect.resource.name"] for event in night.events("circuit.opened"))
    assert listed.keys() == figures.keys() == events.keys() == night.page["circuits"].keys()
    until = datetime.fromisoformat(night.report["until"]).timestamp()
    for name, circuit in listed.items():
        history = circuit["history"]
        ends = [*(change["at"] for change in history[1:]), until]
        spans = [
            min(end, change["retry_at"]) - change["at"]
            for change, end in zip(history, ends, strict=True)
            if change["state"] in REJECTING
        ]
        assert len(spans) == figures[name]["openings"] == events[name]
        assert figures[name]["seconds_open"] == pytest.approx(sum(spans), abs=0.1)
        assert circuit["state"] == night.page["circuits"][name]["state"] == figures[name]["state"]
    rejecting = sum(circuit["state"] in REJECTING for circuit in night.stored("circuit/"))
    text = f"{rejecting} open of {len(listed)} circuits, 1 failed batch to recover, 5 dead letters to replay"
    assert night.page["summary"]["headline"]["text"] == f"{text}, 1 error budget burning"


def table(markdown: str, title: str) -> list[Row]:
    """The rows of a table, by its headings."""
    lines = markdown.split(f"## {title}\n", 1)[1].split("\n## ")[0].splitlines()
    head, _, *rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    return [dict(zip(head, map(str.strip, row), strict=False)) for row in rows]


@pytest.mark.parametrize("name", ["north", "south"])
def test_the_summary_of_a_run(night: Night, name: str) -> None:
    run, rejected = getattr(night, name), rejections(night)
    summary = night.summary(run)
    mine = [one for one in night.runs if one["flow_run_id"] == run]
    passes = [[one for one in mine if one["flow_run_run_count"] == number] for number in (1, 2, 3)]
    last = outcomes_of(next(runs for runs in reversed(passes) if runs), rejected)
    letters = sum(letter["flow_run_id"] == run for letter in night.stored("dead-letter:"))
    expected = {
        "task run": last["runs"],
        "retried": last["retried"],
        "answered by a fallback": last["fallbacks"],
        "replayed": last["replayed"],
        "failed": last["failed"],
        "rejected call": last["refused"],
        "dead letter": letters if name == "south" else 0,
    }
    for text in (summary["data"].splitlines()[2], summary["description"]):
        numbers = {words: re.search(rf"\b(\d+) {words}", text) for words in expected}
        assert {words: int(found[1]) if found else 0 for words, found in numbers.items()} == expected, text
    if name == "north":
        for row, runs in zip(table(summary["data"], "Passes"), passes, strict=True):
            retries = sum(one["states"].count("AwaitingRetry") for one in runs)
            assert (row["task runs"], row["retries"]) == (str(len(runs)), str(retries))
            tally = {state: int(count) for count, state in re.findall(r"(\d+) (\w+)", row["outcomes"])}
            assert tally == Counter(one["state_name"] for one in runs)
        # A dead pass ended with its process, not at its recovery.
        took, unit = table(summary["data"], "Passes")[0]["took"].split()
        states = night.states("flow", run)
        began = next(state["timestamp"] for state in states if state["type"] == "RUNNING")
        alive = (night.folder / name / "killed").stat().st_mtime - datetime.fromisoformat(began).timestamp()
        assert float(took) * {"ms": 0.001, "s": 1, "min": 60}[unit] < alive + 1
    by_name = {(one["name"], str(one["flow_run_run_count"])): one for one in mine}
    rows = table(summary["data"], "Calls")
    well = [one for one in mine if one["state_name"] in ("Completed", "Cached") and one["run_count"] == 1]
    assert len(rows) == len(mine) - len(well)
    for row in rows:
        one = by_name[row["call"].strip("`"), row.get("pass", "1")]
        made = one["run_count"] - rejected[one["id"]] - (one["state_name"] == "Replayed")
        # A column without a value is left out.
        shown = row.get("attempts") or "0", row.get("rejected") or "0"
        assert shown == (str(made), str(rejected[one["id"]])), row
        assert one["state_name"] in row["ended"]
