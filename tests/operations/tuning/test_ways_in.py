"""`tune` on real runs, blocks that are written and restored, the flow, and the pages, on a real server."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client

from prefect_resilience import ConfigurationError, resilient_flow, resilient_task, tune
from prefect_resilience.blocks import ResiliencePolicy
from prefect_resilience.operations import tune as tune_flow
from prefect_resilience.operations import tuning
from prefect_resilience.operations.cli.app import app
from prefect_resilience.operations.tuning import applying, compare_with
from prefect_resilience.operations.tuning.report import TuningAdvice, TuningReport
from prefect_resilience.tasks.edge.task_options import forget_options_told
from tests.prefect_runs import until

pytestmark = [pytest.mark.usefixtures("own_prefect_api"), pytest.mark.timeout(300)]

RUNS = 24
QUICK = {"attempts": 3, "backoff": {"kind": "constant", "initial": 0.01}}


@pytest.fixture(scope="module")
def runs(own_prefect_api: Path) -> datetime:
    """Runs of two tasks, with a block and without."""
    forget_options_told()
    since = datetime.now(UTC)
    block("tuned-block", {"retry": QUICK, "timeout": 30})
    failures = iter(range(10_000))

    def body(n: int) -> int:
        if n % 3 == 0 and next(failures) % 2 == 0:
            raise ConnectionError("reset")
        return n

    governed = resilient_task(name="label", policy="tuned-block", circuit="labels")(body)
    plain = resilient_task(name="fetch", retry=QUICK)(body)

    @resilient_flow
    def work() -> None:
        for n in range(RUNS):
            governed(n, return_state=True)
            plain(n, return_state=True)

    work()
    until(lambda: tune(since).runs == 2 * RUNS, 60)
    return since


@pytest.fixture
def shared_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_store: Any) -> str:
    url = f"sqlite:///{tmp_path}/store.db"
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", url)
    return url


def block(name: str, data: dict[str, Any]) -> None:
    ResiliencePolicy.model_validate(data).save(name, overwrite=True)


def stored(name: str) -> dict[str, Any]:
    with get_client(sync_client=True) as client:
        return client.read_block_document_by_name(name, "resilience-policy").data


def report_of(*advice: TuningAdvice) -> TuningReport:
    return TuningReport(since=0, until=86_400, runs=120, advice=advice)


def advice(option: str, now: Any, better: Any, task: str = "label") -> TuningAdvice:
    return TuningAdvice(task=task, option=option, now=now, better=better, why="it is clearly better")


ATTEMPTS = advice("retry.attempts", 3, 5)
TIMEOUT = advice("timeout", 30.0, 3)
IN_CODE = advice("retry.attempts", 3, 5, task="fetch")


def artifacts(key: str) -> list[dict[str, Any]]:
    with get_client(sync_client=True) as client:
        return client.request(
            "POST", "/artifacts/filter", json={"artifacts": {"key": {"any_": [key]}}}
        ).json()


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = app(list(words), exit_on_error=False, result_action="return_value")
    return code, json.loads(capsys.readouterr().out)


class TestTune:
    def test_real_runs_are_judged(self, runs: datetime) -> None:
        report = tune(runs)
        assert report.runs == 2 * RUNS
        assert {one.task for one in report.not_judged} == {"label", "fetch", "every task"}
        one = tune(runs, task="label")
        assert {each.task for each in (*one.advice, *one.not_judged)} == {"label", "every task"}

    def test_an_unknown_task_is_an_error(self, runs: datetime) -> None:
        with pytest.raises(
            ConfigurationError, match=r"no runs of a resilient task 'lable'.*did you mean 'label'"
        ):
            tune(runs, task="lable")

    def test_a_period_is_a_duration(self, runs: datetime) -> None:
        assert tune("1h").runs == 2 * RUNS
        with pytest.raises(ConfigurationError, match=r"since must be a duration.*write how long ago"):
            tune("yesterday")

    def test_the_command(self, runs: datetime, capsys: pytest.CaptureFixture[str]) -> None:
        code, found = told(capsys, "tune", "--since", "1h", "--json")
        assert (code, found["runs"]) == (0, 2 * RUNS)
        assert app(["tune", "--since", "1h"], exit_on_error=False, result_action="return_value") == 0
        assert f"{2 * RUNS} recorded runs" in capsys.readouterr().out

    def test_what_if(self, runs: datetime, capsys: pytest.CaptureFixture[str]) -> None:
        words = ("what-if", "--task", "label", "--attempts", "5", "--timeout", "3", "--since", "1h")
        code, found = told(capsys, *words, "--set", "circuit.open_for=10", "--json")
        assert (code, found["task"]) == (0, "label")
        assert app([*words], exit_on_error=False, result_action="return_value") == 0
        out = capsys.readouterr().out
        assert "runs that failed" in out
        assert "of label were replayed" in out
        assert compare_with("label", {"timeout": 3}, runs).task == "label"

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["what-if", "--task", "label"], "needs an option to change"),
            (["what-if", "--task", "label", "--set", "open_for"], "must be name=value"),
            (["tune", "--apply", "--undo"], "exclude each other"),
            (["tune", "--yes"], "add --apply"),
        ],
    )
    def test_wrong_options(self, runs: datetime, words: list[str], said: str) -> None:
        with pytest.raises(ConfigurationError, match=said):
            app(words, exit_on_error=False, result_action="return_value")


@pytest.mark.usefixtures("runs", "shared_store")
class TestApply:
    def test_blocks_are_written_and_restored(self) -> None:
        before = stored("tuned-block")
        report = report_of(ATTEMPTS, TIMEOUT, IN_CODE)
        plan = applying.plan_of(report)
        assert [one.option for one in plan.changes] == ["retry.attempts", "timeout"]
        assert [one.task for one in plan.left] == ["fetch"]
        assert "reads no block" in plan.left[0].why
        entry = applying.apply_changes(report, plan)
        assert entry is not None
        assert (stored("tuned-block")["retry"]["attempts"], stored("tuned-block")["timeout"]) == (5, 3)
        assert [one.before for one in entry.changes] == [3, 30.0]
        assert applying.restore() == (entry, entry.changes, ())
        assert stored("tuned-block") == before
        with pytest.raises(ConfigurationError, match="nothing to restore"):
            applying.restore()

    def test_what_a_person_changes_stays(self) -> None:
        before = stored("tuned-block")
        report = report_of(ATTEMPTS, TIMEOUT)
        applying.apply_changes(report, applying.plan_of(report))
        block("tuned-block", {"retry": {**QUICK, "attempts": 9}, "timeout": 3})
        _, back, left = applying.restore()
        assert [one.option for one in back] == ["timeout"]
        assert left[0].why == "the block 'tuned-block' now says 9, not 5"
        assert stored("tuned-block")["timeout"] == 30
        block("tuned-block", before)

    def test_an_invalid_block_is_not_written(self) -> None:
        with pytest.raises(ConfigurationError, match="attempts"):
            report_of(advice("retry.attempts", 3, 100_000)).apply()
        assert report_of(IN_CODE).apply() is None

    def test_rules_of_a_category_are_added(self) -> None:
        rule = advice("retry.by_category.rate_limit", None, {"attempts": 6})
        report = report_of(rule)
        entry = report.apply()
        assert entry is not None
        assert stored("tuned-block")["retry"]["by_category"]["rate_limit"]["attempts"] == 6
        applying.restore()
        assert not stored("tuned-block")["retry"].get("by_category")

    def test_the_commands(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        report = report_of(ATTEMPTS, TIMEOUT, IN_CODE)
        monkeypatch.setattr(tuning, "tune", lambda *_: report)
        code, found = told(capsys, "tune", "--apply", "--yes", "--json")
        assert code == 0
        assert [one["after"] for one in found["applied"]["changes"]] == [5, 3]
        assert [one["task"] for one in found["left"]] == ["fetch"]
        code, found = told(capsys, "tune", "--undo", "--json")
        assert (code, len(found["restored"]), found["left"]) == (0, 2, [])
        with pytest.raises(ConfigurationError, match="add --yes"):
            app(["tune", "--apply"], exit_on_error=False, result_action="return_value")

    def test_nothing_to_write(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tuning, "tune", lambda *_: report_of(IN_CODE))
        assert app(["tune", "--apply"], exit_on_error=False, result_action="return_value") == 1
        assert "Nothing was written" in capsys.readouterr().out


def test_the_flow_leaves_an_artifact(runs: datetime, shared_store: str) -> None:
    found = tune_flow(days=1)
    assert found["runs"] == 2 * RUNS
    (artifact,) = artifacts("policy-advice")
    assert artifact["data"].startswith("# Advice for policies")
