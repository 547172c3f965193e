"""Rehearsals: five planted mistakes are found and five right programs are not accused, nothing leaves the
machine, and a result can be read by a person and by CI."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL

from flows import rehearse_payment
from flows.etl.rehearsal import receiver as etl_receiver
from prefect_resilience import ConfigurationError
from prefect_resilience.operations.rehearsed import LOOPBACK, AuditGuard, end_run
from prefect_resilience.testing import Rehearsal, ScriptedService, rehearse
from prefect_resilience.testing.kill_points import (
    UNDISTURBED,
    Case,
    CodePlace,
    Point,
    Thing,
    choose,
    judge,
    rows_of,
    stable,
    write_line,
)
from prefect_resilience.testing.rehearsal import read_answer
from tests.docs.pages import ROOT
from tests.testing import rehearsed_programs as programs

pytestmark = pytest.mark.timeout(600)
Rehearse = Callable[..., Rehearsal]


@pytest.fixture
def on_api(prefect_api: None) -> Rehearse:
    """`rehearse` on the API of the session."""
    return lambda *args, **options: rehearse(*args, api=PREFECT_API_URL.value(), **options)


# -- real processes


@pytest.mark.api
def test_a_plain_post_is_sent_twice_and_its_line_is_named(on_api: Rehearse) -> None:
    said: list[str] = []
    with ScriptedService() as service:
        result = on_api(programs.plain, service.url, receiver=service, say=said.append)
    (row,) = result.twice
    assert (row.task, row.kill) == ("prepare", "after request POST /announce")
    assert row.line.startswith("tests/testing/rehearsed_programs.py:")
    assert (result.points, result.cases, result.kills, len(said)) == (3, 3, 2, 5)
    assert said[1] == "1 of 4, without a kill: 1 once"
    with pytest.raises(AssertionError, match=r"POST /announce.*twice"):
        result.assert_once()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """It listens on another address of the loopback."""
    with socket.create_server(("127.0.0.2", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.mark.api
@pytest.mark.parametrize(
    "name", [pytest.param("127.0.0.2"), *(pytest.param(name, marks=pytest.mark.slow) for name in programs.BY)]
)
def test_nothing_leaves_to_another_address(
    name: str, on_api: Rehearse, listener: socket.socket, tmp_path: Path
) -> None:
    flow = programs.BY.get(name, programs.to_another_host)
    with pytest.raises(ConfigurationError, match="the first run, which is not disturbed, does not succeed"):
        on_api(flow, f"http://127.0.0.2:{listener.getsockname()[1]}", keep=tmp_path)
    assert "rejected by the rehearsal" in (tmp_path / "000" / "log").read_text()
    with pytest.raises(BlockingIOError):  # a connection would wait here, whether accepted or not
        listener.accept()


@pytest.mark.long
@pytest.mark.api
@pytest.mark.parametrize("name", programs.MISTAKES)
def test_a_planted_mistake_is_found(name: str, on_api: Rehearse) -> None:
    flow, task = programs.MISTAKES[name]
    result = on_api(flow, "{receiver}", receiver=programs.bank)
    wrong = result.twice + result.lost
    assert {row.task for row in wrong} == {task}, result
    assert not result.unjudged


@pytest.mark.long
@pytest.mark.api
@pytest.mark.parametrize("name", programs.RIGHT)
def test_a_right_program_is_not_accused(name: str, on_api: Rehearse) -> None:
    result = on_api(programs.RIGHT[name], "{receiver}", receiver=programs.bank)
    result.assert_once()
    assert not result.stopped
    assert result.kills > 10


@pytest.mark.long
@pytest.mark.api
def test_the_table_of_the_readme_is_what_its_command_prints() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "\n".join(rehearse_payment.table()) in page


EFFECT = ', effect=Effect(key="orders:{day}", verify=was_it_received)'
TRUTH = 'return Done(found["id"], external_id=found["id"]) if found else NotDone()'


@pytest.mark.long
@pytest.mark.api
@pytest.mark.parametrize(
    ("text", "instead", "verdict"),
    [
        ("", "", "once"),
        (EFFECT, "", "twice"),
        (TRUTH, "return NotDone()", "twice"),
        (TRUTH, 'return Done("hook")', "never"),
    ],
    ids=["as it is", "without effect=", "verify says not done", "verify says done"],
)
def test_the_pipeline_and_copies_with_a_mistake(
    text: str, instead: str, verdict: str, on_api: Rehearse, tmp_path: Path
) -> None:
    code = (ROOT / "flows" / "etl" / "pipeline.py").read_text(encoding="utf-8")
    assert text in code
    copy = tmp_path / "copied_pipeline.py"
    copy.write_text(code.replace(text, instead) if text else code)
    result = on_api(f"{copy}:etl", receiver=etl_receiver, kills=30)
    (webhook,) = result.rows
    assert (webhook.verdict, webhook.task) == (verdict, "announce")
    line = copy.read_text().partition("client.post(")[0].count("\n") + 1
    assert webhook.line.endswith(f"copied_pipeline.py:{line}")


# -- the verdict


PAY, ANNOUNCE = Thing("POST /pay", "k", '{"order":1}', "POST"), Thing("POST /announce", "", "1", "POST")
PUT = Thing("PUT /row", "", "1", "PUT")
PAY_IN_DOUBT = {"k": ("external", "unknown", "pay")}
ANNOUNCE_IN_DOUBT = {"other": ("external", "unknown", "announce")}
PAY_REPEATABLE = {"k": ("idempotent", "done", "pay")}


def case(*things: Thing, **about: Any) -> Case:
    point = Point("after", "request POST /pay")
    return Case(point, things=list(things), **{"state": "COMPLETED", **about})


@pytest.mark.parametrize(
    ("got", "verdicts"),
    [
        (case(PAY, ANNOUNCE, PUT), ("once", "once", "once")),
        (case(PAY, PAY, ANNOUNCE, PUT), ("twice", "once", "once")),
        (case(ANNOUNCE, PUT, PUT), ("never", "once", "once")),
        (case(PAY, ANNOUNCE), ("once", "once", "never")),
        (case(PAY, ANNOUNCE, state="FAILED", stopped=True), ("once", "once", "stopped")),
        (case(PAY, ANNOUNCE, PUT, effects=PAY_IN_DOUBT), ("stopped", "once", "once")),
        (case(PAY, ANNOUNCE, PUT, effects=ANNOUNCE_IN_DOUBT), ("once", "stopped", "once")),
        (case(PAY, PAY, ANNOUNCE, PUT, effects=PAY_REPEATABLE), ("once", "once", "once")),
        # a body that is another one in each run
        (case(Thing("POST /pay", "k", "new", "POST"), ANNOUNCE, PUT), ("once", "once", "once")),
        (case(PAY, Thing("POST /pay", "k", "new", "POST"), ANNOUNCE, PUT), ("twice", "once", "once")),
        (case(PAY, ANNOUNCE, PUT, Thing("POST /other", "", "", "POST")), ("once", "once", "once")),
    ],
)
def test_the_verdict_on_each_thing(got: Case, verdicts: tuple[str, ...]) -> None:
    announced = Thing("POST /announce", "", "1", "POST", CodePlace("announce", "a.py:1"))
    expected = case(PAY, announced, PUT)
    assert tuple(judge(expected, got).values()) == verdicts
    rows = [*rows_of(expected, [case(PAY, ANNOUNCE, PUT), got])]
    assert tuple(row.verdict for row in rows) == verdicts
    assert [row.kill for row in rows] == ["" if one == "once" else str(got.point) for one in verdicts]


def test_what_a_run_without_a_kill_shows_is_told_apart() -> None:
    twice = Case(UNDISTURBED, things=[PAY, PAY], state="COMPLETED")
    assert [row.kill for row in rows_of(case(PAY), [twice, case(PAY, PAY)])] == ["without a kill"]


def test_things_with_one_name_are_told_apart_by_their_keys_and_ids() -> None:
    one, two, late = Thing("payment", "pay:1"), Thing("payment", "pay:2"), Thing("payment", "pay:1:09:41")
    assert [*judge(case(one, two), case(one, one, two)).values()] == ["twice", "once"]
    assert [*judge(case(one, two), case(one, one)).values()] == ["twice", "never"]
    assert [*judge(case(one, two), case(late, two)).values()] == ["once", "once"]
    one, two = Thing("order 123456789"), Thing("order 987654321")
    assert [*judge(case(one, two), case(one, one)).values()] == ["twice", "never"]
    one, two, new = Thing("POST /pay", "1", "a"), Thing("POST /pay", "2", "b"), Thing("POST /pay", "1", "c")
    assert [*judge(case(one, two), case(new, new)).values()] == ["twice", "never"]


def test_a_case_without_an_end_is_not_judged(tmp_path: Path) -> None:
    book, point = tmp_path / "book", Point("after", "request POST /pay")
    case = Case(point, book, message="it took too long")
    write_line(book, passed=[("before", "request POST /pay", 1)])
    with open(book) as lines:
        case.read(lines)
        assert case.trouble == f"{point}: the flow does not end well: it took too long"
        write_line(book, passed=[point], state="COMPLETED", message="", stopped=False, effects={})
        case.read(lines)
    assert (case.points[1:], case.trouble) == ([point], "")


def test_names_have_no_ids_and_times() -> None:
    text = "pay:7 6f1c1d5e-9f5e-4a0e-8d43-0e2ae8a3a5d5 2026-11-28T03:40:28.583 1795837228.58 2026-11-28"
    assert stable(text) == "pay:7 * * * 2026-11-28"
    assert stable("open tmpq3_k2j1x.csv") == "open tmp*.csv"


# -- the processes


def read(path: Path) -> bytes:
    """A file of /proc; empty if its process has ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def is_alive(pid: int) -> bool:
    return bool(read(Path(f"/proc/{pid}/cmdline")))  # empty for a zombie


ENDLESS = """
import os, time
from pathlib import Path
from prefect import flow

@flow
def endless():
    Path("started").write_text(str(os.getpid()))
    time.sleep(600)
"""


@pytest.mark.api
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_processes_of_a_rehearsal_end_with_it(number: int, tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    (tmp_path / "prefect.toml").write_text(
        '[server.database]\nconnection_url = "sqlite+aiosqlite:///real.db"'
    )
    started = tmp_path / "started"
    options = ("--keep", "cases", "--timeout", "1000")
    words = [sys.executable, "-m", "prefect_resilience", "rehearse", "endless.py:endless", *options]
    with Popen(words, cwd=tmp_path, start_new_session=True) as command:
        while command.poll() is None and not (started.exists() and started.read_text()):
            time.sleep(0.1)
        os.killpg(command.pid, number)
        assert command.wait(60)
    assert not (tmp_path / "real.db").exists()
    # Runs, and the processes that serve them, have a home in this folder. The last ones are dying.
    while str(tmp_path / "cases").encode() in b"".join(map(read, Path("/proc").glob("[0-9]*/environ"))):
        time.sleep(0.05)


def test_a_run_that_takes_too_long_is_ended_with_its_processes() -> None:
    program = (
        "import subprocess as s; print(s.Popen(['sleep', '60']).pid, flush=True); s.run(['sleep', '60'])"
    )
    with Popen([sys.executable, "-c", program], stdout=PIPE, text=True, start_new_session=True) as run:
        assert run.stdout is not None
        child = int(run.stdout.readline())
        assert end_run(run.pid, 0.1, os.pipe()[0]) is None
        assert run.wait() == -signal.SIGKILL
    while is_alive(child):
        time.sleep(0.01)
    with Popen([sys.executable, "-c", "raise SystemExit(3)"], start_new_session=True) as run:
        assert end_run(run.pid, 60, os.pipe()[0]) == 3


def test_a_process_that_has_ended_is_told() -> None:
    ended = Popen([sys.executable, "-c", ""], stdout=PIPE, text=True)
    with ended, pytest.raises(ConfigurationError, match="has ended"):
        read_answer(ended)


def test_a_sample_is_even() -> None:
    points = [Point("before", "ledger", number) for number in range(1, 11)]
    assert choose(points, 20) == points
    assert [point.nth for point in choose(points, 5)] == [1, 3, 5, 7, 9]


# -- the guard


@pytest.mark.parametrize(
    ("event", "args", "refused"),
    [
        ("socket.connect", (None, ("127.0.0.1", 1)), False),
        ("socket.connect", (None, ("::1", 1, 0, 0)), False),
        ("socket.connect", (None, ("bank", 1)), False),
        ("socket.connect", (None, ("127.0.0.2", 1)), True),
        ("socket.connect", (None, b"/run/postgresql/.s.PGSQL.5432"), True),
        ("socket.sendto", (None, ("8.8.8.8", 53)), True),
        ("socket.sendmsg", (None, None), False),
        ("socket.getaddrinfo", ("example.com", 80, 0, 0, 0), True),
        ("socket.getaddrinfo", (b"localhost", 80, 0, 0, 0), False),
        ("socket.gethostbyname", ("example.com",), True),
        ("socket.gethostbyaddr", ("8.8.8.8",), True),
        ("socket.getnameinfo", (("8.8.8.8", 53),), True),
        ("import", ("psycopg.rows", None), True),
        ("import", ("json", None), False),
        ("subprocess.Popen", ("curl", ["curl"], None, None), True),
        ("subprocess.Popen", ("uname", ["uname", "-p"], None, None), False),
        ("subprocess.Popen", ("file", ["file", "-b"], None, None), False),
        ("os.system", ("curl",), True),
        ("os.exec", ("curl", ["curl"], None), True),
        ("open", ("file", "r", 0), False),
    ],
)
def test_the_guard_rejects_what_leaves(event: str, args: tuple[Any, ...], refused: bool) -> None:
    told: list[str] = []
    guard = AuditGuard(LOOPBACK | {"bank"}, told.append)
    if refused:
        with pytest.raises((ConnectionRefusedError, ImportError), match="rejected by the rehearsal"):
            guard.check(event, args)
    else:
        guard.check(event, args)
    assert bool(told) is refused


def fail_to_start() -> None:
    raise OSError("the port is in use")


@pytest.mark.parametrize(("receiver", "why"), [(7, "TypeError"), (fail_to_start, r"OSError\(.*in use.\)")])
def test_receivers_that_do_not_start_are_named(receiver: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"receivers do not start: {why}"):
        rehearse(programs.plain, "{receiver}", receiver=receiver, api="http://127.0.0.1:9/api")


def test_a_flow_that_cannot_be_sent_is_refused() -> None:
    with ScriptedService() as service, pytest.raises(ConfigurationError, match="pass the address"):
        rehearse(programs.plain, service, api="http://127.0.0.1:9/api")
