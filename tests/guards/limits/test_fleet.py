"""Processes that share an adaptive limit through a store: they start, one is killed, one joins."""

import subprocess
import sys
import time

import pytest

from prefect_resilience.guards.limits.sharing import get_limits
from tests.guards.limits.processes import with_our_path

pytestmark = pytest.mark.timeout(120)

# Looks five times a second: what a process has told expires after 0.6 s.
PROCESS = """
import sys, time
from prefect_resilience.guards.circuits import registry
from prefect_resilience.guards.limits import sharing
from prefect_resilience.guards.limits.adaptive import LimitFinder
from prefect_resilience.guards.limits.gradient import LimitBounds

sharing.INTERVAL = 0.2
registry.set_default_store(sys.argv[1])
finder = LimitFinder(LimitBounds(20, 1, 200))
if sys.argv[2] != "new":
    number = float(sys.argv[2])
    finder.become(finder.state._replace(limit=number, center=number, base=0.1))
print("ready", flush=True)
while True:
    finder.share("llm", "no line")
    time.sleep(0.1)
"""


@pytest.fixture(params=["redis", "sqlite"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/limits.db"
    return request.getfixturevalue("redis_url")


@pytest.fixture
def starts(url):
    started = []

    def start(number):
        command = [sys.executable, "-c", PROCESS, url, str(number)]
        started.append(subprocess.Popen(command, env=with_our_path(), stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout.readline() == "ready\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def shown(url, processes, number):
    """The limit, when so many processes share this number."""
    deadline = time.monotonic() + 30
    while True:
        found = get_limits(url)
        if found and found[0].processes == processes and abs(found[0].number - number) <= 1:
            return found[0]
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_the_shares_add_up_whoever_comes_and_goes(url, starts):
    fleet = [starts(number) for number in (22, 22, 22)]
    assert shown(url, 3, 22).least >= 7
    fleet[0].kill()
    left = shown(url, 2, 22)
    assert (left.least, left.most) == (11, 11)
    starts("new")
    shown(url, 3, 22)
