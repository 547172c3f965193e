"""Deployed flows whose processes are killed at any instruction, recovered until they end: nothing twice.

`make kills` is the long form.
"""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.responses import SetStateStatus
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Crashed

from prefect_resilience.durable.batches.edge import recovery
from prefect_resilience.effects import batch_status, recover
from tests.durable.effects import worker_kills_flow
from tests.durable.effects.victim import LATE_PHASES, PHASES, Book
from tests.durable.effects.worker_kills import POLICY, create_run
from tests.durable.effects.worker_kills_campaign import Campaign
from tests.durable.effects.worker_kills_fleet import Fleet, alive, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def api(prefect_api: None) -> str:
    return str(PREFECT_API_URL.value())


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, api: str) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("fleet"), api) as made:
        yield made


@pytest.fixture(autouse=True)
def crashes_settle_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash that is reported a second time costs another process, and most are on a machine like this."""
    monkeypatch.setattr(recovery, "CRASH_SETTLES", 1.0)
    monkeypatch.setattr(recovery, "OWNER_SETTLES", 40.0)  # the owners' times are short in these processes


@pytest.mark.requirement("004.10")
@pytest.mark.timeout(900)
def test_killed_again_and_again(fleet, api, shared, postgres_url, redis_url):
    stores = {"sqlite": shared, "postgres": postgres_url, "redis": redis_url}
    kills, lanes, most = {"forked": 36}, {"forked": 3}, {"forked": 4}
    toll = Campaign(fleet, api, stores, kills, lanes, count=8, most_kills=most).go()
    print(toll.table())
    assert toll.mistakes == []
    assert toll.kills >= 36
    assert set(toll.by("store")) == {(name,) for name in stores}
    assert set(toll.by("mode")) == {(mode,) for mode in worker_kills_flow.MODES}
    # Which of the rarer phases so few kills meet is chance; a thousand meet them all.
    met = {phase for tale in toll.tales for phase in tale.kills}
    assert met >= {*PHASES}
    assert met & {*LATE_PHASES}
    assert set(fleet.till.taken.values()) == {1}
    assert sum(tale.doubts for tale in toll.tales) > 0, "somebody had to be asked"


@pytest.mark.timeout(200)
def test_a_crash_that_is_told_late_ends_nothing(fleet, api, shared):
    """Process workers report a crash twice: the second time while the recovered run is at an effect."""
    book = Book(str(fleet.folder / "late"))
    given = {"url": fleet.till.url, "mode": "blind", "count": 4, "plot": str(fleet.folder / "late")}
    variables = {"env": {"PREFECT_RESILIENCE_STORE_URL": shared}}
    with get_client(sync_client=True) as client:
        deployment = fleet.deployments["forked"]
        run = create_run(client, deployment, given, variables)
        held = fleet.till.held[f"{run.id}.2"] = threading.Event()
        wait_until(lambda: fleet.till.taken[f"{run.id}.2"])
        answer = client.set_flow_run_state(run.id, Crashed(message="told late"))
        assert answer.status is SetStateStatus.ACCEPT
        reports: list[Any] = []
        recovering = threading.Thread(target=_recover, args=(api, str(run.id), shared, reports))
        recovering.start()
        recovering.join(2)
        assert reports == [], "it waits to see whether whoever is at the effect is dead"
        held.set()
        recovering.join(60)
        assert reports[0].action in ("nothing", "rescheduled"), reports
        processes = 1 + (reports[0].action == "rescheduled")
        wait_until(lambda: len(book.lines("sent")) == processes)
        wait_until(lambda: not any(alive(one["pid"]) for one in book.lines("born")))
        assert client.read_flow_run(run.id).state.is_completed()
    keys = [f"{run.id}.{order}" for order in range(4)]
    assert [fleet.till.arrived[key] for key in keys] == [1, 1, 1, 1]
    assert [one.state for one in batch_status(str(run.id)).effects] == ["done"] * 4


def _recover(api: str, batch_id: str, store: str, reports: list[Any]) -> None:
    with temporary_settings({PREFECT_API_URL: api}):
        reports.append(recover(batch_id, policy=POLICY, store=store))
