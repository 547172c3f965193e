"""The complete examples: what their READMEs show, a lead who rejects, PostgreSQL, a page that fails."""

import pytest
from sqlalchemy import create_engine, text

from flows.agent.__main__ import main as agent
from flows.agent.assistant import assistant
from flows.agent.desk import Outbox, model
from flows.etl import pipeline
from flows.etl.__main__ import main as etl
from flows.etl.service import Shop
from flows.llm_service import LLMService
from flows.nightly.__main__ import main as nightly
from flows.serving import running
from prefect_resilience.testing import answers, no_wait

pytestmark = [pytest.mark.api, pytest.mark.slow]


@pytest.mark.parametrize(("name", "main"), [("agent", agent), ("etl", etl), ("nightly", nightly)])
def test_it_prints_what_its_readme_shows(example, name, main) -> None:
    example.check(name, main)


def test_nothing_is_sent_without_an_approval() -> None:
    outbox, service = Outbox(), LLMService(model=model)
    with running(service) as llm, running(outbox) as address, no_wait(), answers(False, False):
        assert assistant(7, "Where is my refund?", llm, address, rounds=2) is None
    assert outbox.replies == []
    assert service.given == {"anthropic": ["ok", "ok"]}


def test_a_day_in_postgres(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres_url.replace("postgresql://", "postgresql+psycopg://")
    monkeypatch.setenv("ETL_DATABASE_URL", url)
    shop = Shop({2: ["503", "cut"], 3: ["html"]})
    with no_wait(), running(shop) as address:
        for _ in range(2):
            assert pipeline.etl(address, f"{address}/webhook", "2026-11-23") == 200
    assert shop.responses[2][:3] == ["503", "cut", "200"]
    assert len(shop.webhooks) == 1
    with create_engine(url).connect() as connection:
        assert connection.execute(text("SELECT count(*), sum(cents) FROM orders")).one() == (200, 201_000)


def test_a_page_that_fails_for_good_fails_the_run_and_nothing_is_announced(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETL_DATABASE_URL", f"sqlite:///{tmp_path}/orders.db")
    shop = Shop({2: ["503"] * 4})
    with no_wait(), running(shop) as address:
        state = pipeline.etl(address, f"{address}/webhook", "2026-11-23", return_state=True)
        assert state.is_failed()
        assert shop.webhooks == []
        assert pipeline.etl(address, f"{address}/webhook", "2026-11-23") == 200
    assert len(shop.webhooks) == 1
