"""No planted secret comes out of a failing run: not in states, logs, notes, events or contexts."""

from __future__ import annotations

import logging

import pytest
from prefect import flow, get_run_logger
from prefect.blocks.system import Secret
from pydantic import BaseModel, SecretStr

from prefect_resilience import Backoff, Fallback, Retry, resilient_task

pytestmark = pytest.mark.api

ONE_RETRY = Retry(attempts=2, backoff=Backoff.none(), retry_on=(Exception,))


def test_secrets_of_parameters_and_blocks_are_known(caplog, prefect_api):
    Secret(value="correct horse battery").save("for-the-log", overwrite=True)

    class Credentials(BaseModel):
        password: SecretStr

    @resilient_task(retry=ONE_RETRY)
    def leaky(credentials, token):
        loaded = Secret.load("for-the-log").get()
        raise RuntimeError(
            f"{credentials.password.get_secret_value()} / {token.get_secret_value()} / {loaded}"
        )

    @flow
    def leaking():
        return leaky(Credentials(password="swordfish-77"), SecretStr("xyzzy-plugh"), return_state=True)

    with caplog.at_level(logging.DEBUG):
        state = leaking(return_state=True)
    said = "\n".join(logging.Formatter().format(record) for record in caplog.records) + state.message
    for secret in ("swordfish-77", "xyzzy-plugh", "correct horse battery"):
        assert secret not in said


def test_secrets_in_source_lines_and_in_the_users_own_log_lines(caplog):
    @resilient_task(retry=None)
    def leaky():
        get_run_logger().info("using %s", "ghp_" + "a1b2c3d4e5" * 4)
        raise RuntimeError("key sk-proj-abcdefghijklmnopqrstuvwxyz0123456789")

    @flow
    def leaking():
        return leaky()

    with caplog.at_level(logging.DEBUG), pytest.raises(RuntimeError):
        leaking()
    said = "\n".join(logging.Formatter().format(record) for record in caplog.records)
    assert "raise RuntimeError(" in said
    assert "using ***" in said
    assert "a1b2c3d4e5a1b2" not in said
    assert "abcdefghijklmnopq" not in said


def test_a_fallbacks_message_is_clean(mode):
    def leaky():
        raise RuntimeError("key sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789")

    state = mode.state(mode.task(leaky, retry=ONE_RETRY, fallback=Fallback.value(1)))
    assert state.name == "Degraded"
    assert "abcdefghijklmnop" not in state.message
