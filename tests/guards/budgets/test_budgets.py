"""Error budgets: the policy's words, counting in a store that processes share, and in real runs."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from prefect import flow

from prefect_resilience import ConfigurationError, ErrorBudget, Fallback, Retry, get_budgets, resilient_task
from prefect_resilience.guards.budgets import policy
from prefect_resilience.guards.circuits import registry


@pytest.fixture(autouse=True)
def forgotten(own_store):
    policy.forget_budgets()
    yield
    policy.forget_budgets()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"objective": 1}, "ErrorBudget(objective=1): write less than 1"),
        ({"objective": "99%"}, "ErrorBudget(objective='99%'): write a number"),
        ({"window": "7 weeks"}, "ErrorBudget(window): '7 weeks' is not a duration"),
        ({"window": 1}, "ErrorBudget(window=1.0): write at least 60"),
        ({"windw": "7d"}, "did you mean 'window'?"),
        ({"minimum_runs": 0}, "minimum_runs"),
    ],
)
def test_mistakes_are_one_sentence(options, said):
    with pytest.raises(ConfigurationError, match=r"(?s).*") as raised:
        ErrorBudget(**options)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_option_takes_a_budget_json_or_an_objective():
    assert ErrorBudget.of(0.95) == ErrorBudget(objective=0.95)
    assert ErrorBudget.of({"window": "30d"}).window == 30 * 86_400
    assert ErrorBudget.of(None) is None
    assert ErrorBudget(window=timedelta(hours=6)).window == 6 * 3_600
    assert ErrorBudget.model_validate_json(ErrorBudget(name="x").model_dump_json()) == ErrorBudget(name="x")
    with pytest.raises(ConfigurationError, match="error_budget='99%' is not an error budget"):
        resilient_task(error_budget="99%")(lambda: 1)
    with pytest.raises(ConfigurationError, match="has no name"):
        ErrorBudget().status()


def test_good_runs_wait_and_a_failure_brings_them_along():
    budget = ErrorBudget(name="counted")
    budget.count(good=True)  # the first merge is due at once
    for _ in range(5):
        budget.count(good=True)
    store = registry.link_to(None).store()
    assert _counted(store, "counted") == (1, 0)
    budget.count(good=False)
    assert _counted(store, "counted") == (6, 1)
    seen = budget.status()
    assert (seen.good, seen.bad) == (6, 1)
    assert [status.name for status in get_budgets()] == ["counted"]


def test_a_status_includes_what_this_process_has_not_merged():
    budget = ErrorBudget(name="fresh")
    for _ in range(10):
        budget.count(good=True)
    assert budget.status().good == 10


def _counted(store, name):
    document = store.load(policy.place_of(name)).value
    ring = document["rings"][-1]
    return sum(bucket[1] for bucket in ring["buckets"]), sum(bucket[2] for bucket in ring["buckets"])


def test_a_store_that_is_away_breaks_nothing_and_gets_the_counts_later(tmp_path, monkeypatch):
    folder = tmp_path / "later"
    folder.write_text("no folder yet")
    registry.set_default_store(f"sqlite:///{folder}/budgets.db")
    try:
        budget = ErrorBudget(name="patient")
        for good in (True, False, False):
            budget.count(good)
        folder.unlink()
        link = registry.link_to(None)
        monkeypatch.setattr(link, "rest_until", 0.0)
        seen = budget.status()
        assert (seen.good, seen.bad) == (1, 2)
    finally:
        from prefect_resilience.base.edge.current_settings import circuit_store_url

        registry.set_default_store(circuit_store_url)


WORKER = """
import sys
from prefect_resilience import ErrorBudget
budget = ErrorBudget(name="shared", objective=0.9)
for number in range(200):
    budget.count(good=number % 4 > 0)
"""


@pytest.mark.slow
def test_processes_count_together_and_the_last_ones_are_not_lost(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/shared.db"
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", url)
    registry.forget_circuits()
    ran = [subprocess.Popen([sys.executable, "-c", WORKER]) for _ in range(2)]
    assert [process.wait() for process in ran] == [0, 0]
    seen = ErrorBudget(name="shared", objective=0.9).status()
    assert (seen.good, seen.bad) == (300, 100)
    assert seen.remaining == pytest.approx(1 - 0.25 / 0.1)


def test_secrets_are_kept_out_of_the_store():
    budget = ErrorBudget(name="key sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789")
    budget.count(good=False)
    (seen,) = get_budgets()
    assert "abcdefghij" not in seen.name
    assert "abcdefghij" not in str(registry.link_to(None).store().scan("budgets/"))


@pytest.mark.api
class TestInRuns:
    @pytest.mark.smoke
    def test_runs_are_counted_once_however_often_they_were_tried(self, mode):
        tries = iter([ConnectionError(), None, ValueError("no"), None])

        def work():
            error = next(tries)
            if error is not None:
                raise error
            return 1

        task = mode.task(
            work, name="once", retry=Retry(attempts=2, backoff={"kind": "none"}), error_budget=0.5
        )
        assert mode.value(task) == 1
        with pytest.raises(ValueError, match="no"):
            mode.value(task)
        assert mode.value(task) == 1
        seen = task.guard.error_budget.status("once")
        assert (seen.good, seen.bad) == (2, 1)

    @pytest.mark.parametrize(("counts", "bad"), [(True, 1), (False, 0)])
    def test_a_degraded_answer_counts_as_the_budget_says(self, counts, bad):
        @resilient_task(
            retry=None,
            fallback=[Fallback.value(0, degraded=True)],
            error_budget=ErrorBudget(name=f"degraded-{counts}", degraded_counts=counts),
        )
        def work():
            raise ConnectionError

        @flow
        def scenario():
            work()

        scenario()
        assert work.guard.error_budget.status().bad == bad
        assert work.guard.error_budget.status().runs == 1

    @pytest.mark.requirement("002.32")
    def test_one_event_for_one_burn(self, seen):
        budget = ErrorBudget(name="burning-one", objective=0.9)

        @resilient_task(retry=None, error_budget=budget)
        def work():
            raise ValueError("token=hunter2hunter2")

        @flow
        def scenario():
            for _ in range(14):
                work(return_state=True)

        scenario()
        mine = seen.events(
            "prefect-resilience.budget.burned",
            lambda e: e["resource"]["prefect.resource.id"].endswith("burning-one"),
        )
        assert len(mine) == 1
        assert mine[0]["resource"]["prefect.resource.id"] == "prefect-resilience.budget.burning-one"
        assert mine[0]["payload"]["bad"] == 10
        assert mine[0]["payload"]["why"].startswith("it burns 10.0 times too fast")
        assert mine[0]["payload"]["remaining"] == -9.0
        assert mine[0]["payload"]["burn_rates"]["7d"] == 10.0
        since = datetime.fromisoformat(mine[0]["payload"]["burning_since"].replace("Z", "+00:00"))
        assert datetime.now(UTC) - since < timedelta(hours=1)
        assert budget.status().burned
        assert budget.status().bad == 14

    def test_another_name_of_a_task_counts_apart_unless_the_budget_has_one(self):
        @resilient_task(error_budget=0.9)
        def work():
            return 1

        @flow
        def scenario():
            work()
            work.with_options(name="renamed")()

        scenario()
        assert {status.name: status.good for status in get_budgets()} == {"work": 1, "renamed": 1}
