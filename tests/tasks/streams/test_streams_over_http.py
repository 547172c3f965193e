"""Streams of a real HTTP server that ends, stalls and cuts them: what is counted, kept and tried again."""

from __future__ import annotations

import asyncio
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from prefect import flow
from prefect.runtime import task_run

from prefect_resilience import (
    AttemptTimeout,
    Backoff,
    CircuitBreaker,
    ConfigurationError,
    Fallback,
    Retry,
    Timeout,
    resilient_task,
)
from tests.contexts import context_of

pytestmark = pytest.mark.api

QUICK = Retry(attempts=3, backoff=Backoff.none())


class Streaming:
    """A server whose answers are scripts: texts are chunks, numbers are pauses, None cuts the connection."""

    def __init__(self) -> None:
        self.scripts: list[list] = []
        self.calls = 0
        self.gone = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                script = server.scripts[min(server.calls, len(server.scripts) - 1)]
                server.calls += 1
                try:
                    self.play(script)
                except OSError:
                    server.gone.set()
                    self.close_connection = True

            def play(self, script: list) -> None:
                if script == [503]:
                    self.send_error(503)
                    return
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for step in script:
                    if step is None:
                        self.close_connection = True
                        return
                    if isinstance(step, float):
                        time.sleep(step)
                        continue
                    data = step.encode()
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_: object) -> None:
                return

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                return

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def streaming():
    made = Streaming()
    yield made
    made.close()


def reading(mode, url, begins=lambda run_id: None, **options):
    """A generator task that hands on what the server sends. `begins` is told the id of its run."""
    if mode.isasync:

        @resilient_task(**options)
        async def read():
            begins(task_run.get_id())
            async with httpx.AsyncClient() as client, client.stream("GET", url) as answer:
                answer.raise_for_status()
                async for text in answer.aiter_text():
                    yield text
    else:

        @resilient_task(**options)
        def read():
            begins(task_run.get_id())
            with httpx.Client() as client, client.stream("GET", url) as answer:
                answer.raise_for_status()
                yield from answer.iter_text()

    return read


def test_half_a_stream_is_not_read_again_and_what_came_is_kept(mode, streaming):
    streaming.scripts = [["one ", 0.05, "two ", 0.05, None], ["never"]]
    circuit = CircuitBreaker(f"half-{mode.name}", failure_threshold=1)
    made = reading(mode, streaming.url, retry=QUICK, circuit=circuit, fallback=lambda: "never")
    got, error = mode.read(made)
    assert "".join(got) == "one two "
    assert isinstance(error, httpx.RemoteProtocolError)
    assert streaming.calls == 1
    context = context_of(error)
    assert (context.code, context.partial_output.content) == ("NETWORK_ERROR", "one two ")
    assert context.attempt == 1
    assert any("not restarted" in note for note in error.__notes__)
    assert circuit.state == "open"


@pytest.mark.smoke
def test_before_the_first_chunk_it_is_tried_again(mode, streaming):
    streaming.scripts = [[503], [0.01, None], ["one ", "two"]]
    got, error = mode.read(reading(mode, streaming.url, retry=QUICK))
    assert ("".join(got), error, streaming.calls) == ("one two", None, 3)


def test_only_a_task_that_says_so_starts_again(mode, streaming):
    streaming.scripts = [["one ", 0.05, None], ["one ", "two"]]
    got, error = mode.read(reading(mode, streaming.url, retry=QUICK, restart_stream=True))
    assert ("".join(got), error, streaming.calls) == ("one one two", None, 2)


def test_a_stream_that_stops_coming_ends_by_idle(mode, streaming):
    streaming.scripts = [["one ", 20.0, "two"]]
    began = time.monotonic()
    got, error = mode.read(reading(mode, streaming.url, retry=QUICK, timeout=Timeout(idle=1)))
    assert time.monotonic() - began < 15
    assert got == ["one "]
    assert isinstance(error, AttemptTimeout)
    context = context_of(error)
    assert (context.category, context.partial_output.content) == ("timeout", "one ")


def test_a_slow_reader_is_neither_idle_nor_a_slow_call(mode, streaming):
    streaming.scripts = [["one ", 0.02, "two ", 0.02, "three"]]
    circuit = CircuitBreaker(
        f"slow-reader-{mode.name}", minimum_calls=1, window=10, slow_call=3, slow_rate=0.1
    )
    made = reading(mode, streaming.url, retry=None, circuit=circuit, timeout=Timeout(total=3, idle=1))
    got, error = mode.read(made, pause=1.2)
    assert ("".join(got), error) == ("one two three", None)
    assert circuit.state == "closed"


def test_a_reader_that_leaves_early_is_no_failure(mode, streaming, seen):
    streaming.scripts = [["chunk ", 0.02] * 2000]
    circuit = CircuitBreaker(f"left-{mode.name}", failure_threshold=1)
    ids: list = []
    made = reading(mode, streaming.url, ids.append, retry=None, circuit=circuit, timeout=Timeout(idle=5))

    got, error = mode.read(made, most=2)
    assert (len(got), error) == (2, None)
    assert streaming.gone.wait(10)
    assert circuit.state == "closed"
    assert circuit.snapshot().window_failures == 0
    # Prefect calls it RolledBack, which is green: nothing of it is kept
    assert seen.task_run(ids[0]).state.is_completed()


def test_aclose_is_over_when_it_returns():
    closed: list = []
    inside: list = []

    @resilient_task(retry=None)
    async def words():
        try:
            for number in range(10):
                yield number
        finally:
            await asyncio.sleep(0.01)
            closed.append(True)

    @flow(persist_result=False)
    async def reading():
        source = words()
        assert await source.__anext__() == 0
        inside.append(task_run.get_id())
        await source.aclose()
        assert closed == [True]
        cancelled = words()
        await cancelled.__anext__()
        with pytest.raises(ZeroDivisionError):
            await cancelled.athrow(ZeroDivisionError("the reader's own"))

    asyncio.run(reading())
    assert inside == [None]  # between two chunks the reader is in its own run, not in the stream's


def test_a_reader_that_is_cancelled_cancels_the_stream():
    ended: list = []

    @resilient_task(retry=None)
    async def words():
        try:
            yield "one"
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    @flow(persist_result=False)
    async def reading():
        async def all_of_it():
            async for _ in words():
                started.set()

        started = asyncio.Event()
        reader = asyncio.ensure_future(all_of_it())
        await started.wait()
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader

    asyncio.run(reading())
    assert ended == ["cancelled"]


def broken(chunks):
    def stands_in():
        yield from chunks
        raise LookupError("the substitute broke")

    return stands_in


def test_a_fallback_s_stream_gives_way_before_its_first_chunk_and_never_after(mode, streaming):
    streaming.scripts = [[503]]
    made = reading(mode, streaming.url, retry=None, fallback=[broken([]), lambda: "the last"])
    assert mode.read(made) == (["the last"], None)
    made = reading(mode, streaming.url, retry=QUICK, fallback=[broken(["a"]), lambda: "never"])
    got, error = mode.read(made)
    assert got == ["a"]
    assert isinstance(error, LookupError)
    assert context_of(error).partial_output.content == "a"
    assert any("fallback 'stands_in' was used, after: 503" in note for note in error.__notes__)
    assert streaming.calls == 4
    made = reading(mode, streaming.url, retry=None, fallback=broken([]))
    got, error = mode.read(made)
    assert (got, type(error)) == ([], httpx.HTTPStatusError)
    assert any("fallback 'stands_in' failed: LookupError" in note for note in error.__notes__)


def test_mistakes():
    def words():
        yield "one"

    with pytest.raises(ConfigurationError, match="restart_stream= is for generators, and 'word' is not one"):

        @resilient_task(restart_stream=True)
        def word():
            return "one"

    with pytest.raises(ConfigurationError, match="restart_stream='yes' is not a boolean"):
        resilient_task(restart_stream="yes")(words)
    with pytest.raises(ConfigurationError, match="'words' is a generator: its chunks are not kept"):
        resilient_task(fallback=Fallback.last_known_good())(words)
    assert resilient_task(restart_stream=True)(words).with_options(name="x").guard.restart_stream
