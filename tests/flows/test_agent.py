"""The agent's example, and a team lead who rejects every draft."""

import pytest

from flows.agent.__main__ import main
from flows.agent.assistant import assistant
from flows.agent.desk import Outbox, model
from flows.llm_service import LLMService
from flows.serving import running
from prefect_resilience.testing import answers, no_wait

pytestmark = [pytest.mark.api, pytest.mark.slow]


def test_it_prints_what_its_readme_shows(example) -> None:
    example.check("agent", main)


def test_nothing_is_sent_without_an_approval() -> None:
    outbox, service = Outbox(), LLMService(model=model)
    with running(service) as llm, running(outbox) as address, no_wait(), answers(False, False):
        assert assistant(7, "Where is my refund?", llm, address, rounds=2) is None
    assert outbox.replies == []
    assert service.given == {"anthropic": ["ok", "ok"]}
