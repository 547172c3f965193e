"""`mode="process"` in real runs: the child finds the run, its log, its API, and its death is retried."""

import logging
import os
import pickle
import signal

import prefect.runtime
import pytest
from prefect import flow, get_run_logger, tags
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext, SettingsContext, TaskRunContext
from prefect.settings import PREFECT_API_URL, temporary_settings

from prefect_resilience import Backoff, Retry, Timeout, previous_error, resilient_task
from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.guards.timeouts.children import ProcessDied
from prefect_resilience.tasks.edge.in_child import _settings_and_client

PATIENT = Timeout(100, mode="process")
AT_ONCE = Backoff.none()


def test_a_child_that_died_is_an_agent_crash():
    killed = classify(ProcessDied("'work'", -signal.SIGKILL))
    assert (killed.category, killed.code, killed.retryable) == ("agent_crash", "SIGKILL", True)
    exited = classify(ProcessDied("'work'", 3))
    assert (exited.category, exited.code, exited.retryable) == ("agent_crash", "EXIT_3", True)
    assert classify(ProcessDied("'work'")).category == "agent_crash"


@pytest.mark.api
@pytest.mark.parametrize("end", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: os._exit(3)])
def test_a_child_that_died_is_retried_by_the_default_policy(mode, tmp_path, end):
    def fragile():
        if (error := previous_error()) is None:
            end()
        return error.category, error.exception_type

    made = mode.task(fragile, timeout=PATIENT, retry=Retry(backoff=AT_ONCE))
    category, name = mode.value(made)
    assert category == "agent_crash"
    assert name.endswith("ProcessDied")


@pytest.mark.api
def test_the_child_finds_the_run_and_its_api():
    @resilient_task(timeout=PATIENT, retry=None, tags=["of-the-task"])
    def look():
        task_run = TaskRunContext.get().task_run
        return {
            "task run": (task_run.id, prefect.runtime.task_run.id),
            "flow run": (FlowRunContext.get().flow_run.id, prefect.runtime.flow_run.id),
            "tags": sorted(task_run.tags),
            "url": PREFECT_API_URL.value(),
            "read": get_client(sync_client=True).read_flow_run(task_run.flow_run_id).name,
            "pid": os.getpid(),
        }

    @flow
    def scenario():
        with tags("of-the-flow"):
            state = look(return_state=True)
        run = FlowRunContext.get().flow_run
        return state.result(), state.state_details.task_run_id, run.id, run.name

    found, task_run_id, flow_run_id, name = scenario()
    assert found["task run"] == (task_run_id, str(task_run_id))
    assert found["flow run"] == (flow_run_id, str(flow_run_id))
    assert found["tags"] == ["of-the-flow", "of-the-task"]
    assert found["url"] == PREFECT_API_URL.value()
    assert found["read"] == name
    assert found["pid"] != os.getpid()


def test_without_a_configured_api_the_child_uses_that_of_the_parent():
    """That is where an ephemeral server's address is needed: it is in no setting."""
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        here = SettingsContext.get()
        packed = pickle.dumps((here.profile, here.settings))
        settings, client = _settings_and_client(packed, "http://127.0.0.1:9/api")
        again, same = _settings_and_client(packed, "http://127.0.0.1:9/api")
    assert settings.settings.api.url == "http://127.0.0.1:9/api"
    assert str(client.api_url).startswith("http://127.0.0.1:9/api")
    assert (again, same) == (settings, client)
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:8/api"}):
        here = SettingsContext.get()
        packed = pickle.dumps((here.profile, here.settings))
    settings, _ = _settings_and_client(packed, "http://127.0.0.1:9/api")
    assert settings.settings.api.url == "http://127.0.0.1:8/api"


@pytest.mark.api
def test_a_secret_is_masked_in_the_log_of_the_child(caplog):
    @resilient_task(timeout=PATIENT, retry=None)
    def tell(password):
        records = []
        handler = logging.Handler()
        handler.emit = lambda record: records.append(record.getMessage())
        logging.getLogger("prefect.task_runs").addHandler(handler)
        get_run_logger().info("using password=hunter2secret")
        return records

    @flow
    def scenario():
        return tell("hunter2secret")

    assert scenario() == ["using password=***"]
