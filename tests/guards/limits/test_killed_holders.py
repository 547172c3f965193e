"""Places of a fleet whose holder was killed, by Prefect's own clock: minutes of a real server."""

import os
import subprocess
import sys
import textwrap
import time
from uuid import uuid4

import pytest
from prefect import task
from prefect.settings import PREFECT_API_URL, temporary_settings

from prefect_resilience.guards.limits import leases
from prefect_resilience.guards.limits.bulkhead import Bulkhead
from prefect_resilience.guards.limits.guarding import BulkheadFullError
from tests.durable.effects.worker_kills_fleet import server

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

HOLDER = textwrap.dedent(
    """
    import sys, time
    from prefect import flow
    from prefect_resilience import AttemptTimeout
    from prefect_resilience.guards.limits.bulkhead import Bulkhead
    from prefect_resilience.guards.timeouts.threads import call_with_deadline

    @flow
    def hold():
        try:
            Bulkhead(1, name=sys.argv[1]).call(call_with_deadline, time.sleep, (3600,), {}, 0.1)
        except AttemptTimeout:
            print("its call goes on", flush=True)
        time.sleep(3600)

    hold()
    """
)


@pytest.fixture
def api(tmp_path):
    """A whole server: the tests' shared one has no service that revokes leases."""
    with server(tmp_path) as url, temporary_settings({PREFECT_API_URL: url}):
        yield url


def test_an_overdue_call_keeps_its_place_beyond_its_lease_and_a_killed_holder_loses_it(api):
    name = f"held {uuid4().hex[:8]}"
    environment = {**os.environ, "PREFECT_API_URL": api, "PREFECT_LOGGING_LEVEL": "ERROR"}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, name], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "its call goes on\n"

    def refused():
        with pytest.raises(BulkheadFullError):
            Bulkhead(1, max_wait=0, name=name).call(int)

    def body():
        until = time.monotonic() + leases.LEASE_SECONDS + 30
        while time.monotonic() < until:
            refused()
            time.sleep(5)
        holder.kill()
        holder.wait()
        killed = time.monotonic()
        refused()
        Bulkhead(1, max_wait=150, name=name).call(int)
        return time.monotonic() - killed

    waited = task(name="limited")(body)()
    print(f"the place of a killed holder was free after {waited:.0f} s")
    assert 0 < waited < leases.LEASE_SECONDS + 60
